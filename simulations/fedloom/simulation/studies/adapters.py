"""Averages of low-rank adapters on a tiny GPT: factors, products, and training in one place.

Eight clients have texts of different domains. In the first column all devices have rank 8; in the
second two each have rank 1, 2, 4 and 8. The mean of factors needs equal ranks, so there all train
rank 1.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from fedloom.protocol.errors import UsageError
from fedloom.simulation.api import simulate
from fedloom.simulation.data.population import Examples, Population, numbered
from fedloom.simulation.experiment import EngineSettings, Experiment, run_spec
from fedloom.simulation.studies import low_rank_gpt as gpt
from fedloom.simulation.studies.study import Cell, Study, StudyRun

ROUNDS, STEPS, BATCH = 15, 10, 16
RATE = 5e-3
EQUAL, MIXED = "rank 8", "ranks 1, 2, 4, 8"
RANKS: Final[dict[str, tuple[int, ...]]] = {EQUAL: (8,) * 8, MIXED: (1, 1, 2, 2, 4, 4, 8, 8)}
METHODS: Final[dict[str, dict[str, Any]]] = {
    "factors (FedIT)": {"aggregate": "factors"},
    "freeze_a (FFA-LoRA)": {"aggregate": "freeze_a"},
    "product, rest dropped (FlexLoRA)": {"aggregate": "product"},
    "product, rest sent (FedEx-LoRA)": {"aggregate": "product", "rest": "send"},
    "stack (FLoRA)": {"aggregate": "stack"},
}
CENTRAL, BASE = "trained in one place", "not trained"


def study(*, quick: bool = False, rounds: int = ROUNDS) -> Study:
    """Every average under both conditions; quick: few rounds with equal ranks, one seed."""
    rounds = min(rounds, 4) if quick else rounds
    columns = [EQUAL] if quick else list(RANKS)
    return Study(
        name="adapters",
        title=f"Low-rank adapters: a tiny GPT, 8 clients, {rounds} rounds of all",
        about="average",
        cells=[
            Cell(row=row, column=column, settings={"rounds": rounds, "adapters": METHODS.get(row)})
            for row in (*METHODS, CENTRAL, BASE)
            for column in columns
            if row in METHODS or column == EQUAL
        ],
        seeds=range(1 if quick else 3),
        metric="loss",
        measure=measure,
        note="Cross-entropy on test texts of all domains at the end, lower is better",
        remarks=REMARKS,
    )


def measure(cell: Cell, seed: int) -> StudyRun:
    """Run a cell; `loss` is on the test texts of all domains."""
    torch.set_num_threads(1)
    rounds = int(cell.settings["rounds"])
    params: Mapping[str, Any]
    if cell.row == BASE:
        params = _start(gpt.adapters(1, seed, rest=False))
    elif cell.row == CENTRAL:
        params = _central(rounds, seed)
    else:
        result = simulate(experiment(cell.row, cell.column, rounds, seed), show=False)
        if result.stopped not in ("", "finished") or len(result.records) < rounds:
            raise UsageError(f"{cell.row}, {cell.column} stopped early: {result.stopped}.")
        params = result.params
    loss = gpt.loss_of(params, seed)
    return StudyRun(row=cell.row, column=cell.column, seed=seed, values={"loss": loss})


def experiment(row: str, column: str, rounds: int, seed: int) -> Experiment:
    """The simulation of an average by its name."""
    table, ranks = METHODS[row], RANKS[column]
    lower = table["aggregate"] in {"product", "stack"}
    ranks = ranks if lower else (min(ranks),) * len(ranks)
    rest = table["aggregate"] == "stack" or table.get("rest") == "send"
    names = numbered(gpt.DOMAINS)
    ones = np.zeros(gpt.DOMAINS, np.int64)
    return Experiment(
        population=Population(
            examples=Examples(x=ones, y=ones),
            names=names,
            shards=[np.array([number]) for number in range(gpt.DOMAINS)],
        ),
        model=partial(gpt.adapters, max(ranks), seed, rest=rest),
        client=partial(_client, dict(zip(names, enumerate(ranks), strict=True)), seed),
        spec=run_spec(
            {
                "name": "adapters",
                "rounds": rounds,
                "seed": seed,
                "evaluate": False,
                "cohort": {"goal": gpt.DOMAINS, "quorum": gpt.DOMAINS},
                "train": {"steps": STEPS, "batch_size": BATCH, "learning_rate": RATE},
                "adapters": {**table, "scale": gpt.SCALE},
            }
        ),
        engine=EngineSettings(workers=1, device="cpu"),
        test_every=0,
    )


def _client(ranks: dict[str, tuple[int, int]], seed: int, name: str) -> gpt.AdapterClient:
    number, rank = ranks[name]
    return gpt.AdapterClient(number, rank, seed)


def _start(adapters: torch.nn.Module) -> dict[str, Any]:
    return {name: value.numpy() for name, value in adapters.state_dict().items()}


def _central(rounds: int, seed: int) -> dict[str, Any]:
    """Adapters of rank 8, trained on all texts: as many steps, each of as many texts of all."""
    params = _start(gpt.adapters(8, seed, rest=False))
    model = gpt.base_model(seed)
    gpt.put(model, params, 8)
    texts = torch.cat([gpt.client_texts(number, seed) for number in range(gpt.DOMAINS)])
    trained = [p for module in model.adapted().values() for p in (module.lora_a, module.lora_b)]
    size = BATCH * gpt.DOMAINS
    gpt.minimize(model, trained, texts, steps=rounds * STEPS, rate=RATE, seed=seed, batch_size=size)
    return {
        f"{name}.{factor}.weight": values.detach().numpy()
        for name, module in model.adapted().items()
        for factor, values in (("lora_A", module.lora_a), ("lora_B", module.lora_b))
    }


REMARKS = """
"""
