"""What masked sums cost: accuracy, bytes and time, in clear, with words of b bits, and with noise.

FedAvg of a 2NN over twenty clients, all of them in every round. Runs are simulated, where sums have
the bits of sessions. The run of the first seed is repeated over the wire, with real sessions,
through a relay that counts every byte. It must end with the same model; with noise, which devices
draw from their system, with another one. The ledger must have the bytes of the simulation.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch

from fedloom.protocol.errors import IntegrityError
from fedloom.simulation import config, metrics
from fedloom.simulation.api import simulate
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.output.history import Result, RoundRecord
from fedloom.simulation.studies.study import (
    OVER_SEEDS,
    Cell,
    Column,
    Study,
    StudyResults,
    StudyRun,
    TableEntry,
    finished,
    metric_column,
)
from fedloom.simulation.wire import byte_meter
from fedloom.simulation.wire.harness import over_the_wire

CLIENTS: Final = 20
ROUNDS: Final = {"digits": 40, "mnist": 20}
LENGTH: Final = {"digits": {"epochs": 1}, "mnist": {"steps": 100}}
"""A client's training in a round: a pass over 72 digits, or 1,000 of 3,000 examples."""
PLAIN: Final = "in clear, exact"
_FAIR: Final[dict[str, Any]] = {"weighting": "uniform"}
_TIGHT: Final[dict[str, Any]] = {**_FAIR, "max_abs": 0.5}
_SESSION: Final = {"group": CLIENTS, "min_group": CLIENTS}


def _words(bits: int) -> dict[str, Any]:
    return {**_TIGHT, "masking": {**_SESSION, "precision": 0.01, "sum_bits": bits}}


def _noise(**amount: float) -> dict[str, Any]:
    private = {"mechanism": "distributed", "clip": 1.0, "delta": 1e-3, **amount}
    return {**_FAIR, "masking": _SESSION, "privacy": private}


CASES: Final[dict[str, dict[str, Any]]] = {
    PLAIN: _TIGHT,
    **{f"masked, {bits} bits": _words(bits) for bits in (64, 32, 24, 16)},
    "32 bits, noise of 0.3 clips": _noise(noise_multiplier=0.3),
    "32 bits, noise for epsilon 8": _noise(target_epsilon=8.0),
}
"""Settings of a run by row. Noise is that of the session's honest devices together."""
QUICK: Final = (PLAIN, "masked, 32 bits")


def study(
    *,
    quick: bool = False,
    rounds: int | None = None,
    data: str = "digits",
    folder: Path | None = None,
    download: bool = False,
) -> Study:
    """Every width of words, and noise, on one task; quick: few rounds of two of them, one seed.

    Args:
        quick: run a part.
        rounds: of each run.
        data: the task, `digits` or `mnist`.
        folder: of MNIST's files; default: in the cache.
        download: download MNIST if it is missing.
    """
    source: dict[str, Any] = {"source": data}
    if data == "mnist":
        source |= {"download": download} | ({"folder": str(folder)} if folder else {})
    length = rounds or (4 if quick else ROUNDS[data])
    return Study(
        name="masking",
        title=f"Masked sums: {data}, {CLIENTS} clients, {length} rounds",
        about="sums",
        cells=[
            Cell(row=case, column=data, settings=_settings(case, source, length))
            for case in (QUICK if quick else CASES)
            if data == "digits" or "epsilon" not in case  # on MNIST it diverges
        ],
        seeds=range(1 if quick else 3),
        measure=measure,
        columns=lambda _: _columns(data),
        baseline=PLAIN,
        note="Bytes and seconds are those of the first seed over the wire: bytes of one client in "
        "one round,\nthe median round's seconds. Accuracy is on the test examples after the last "
        f"round,\n{OVER_SEEDS}.",
        remarks=REMARKS,
    )


def measure(cell: Cell, seed: int) -> StudyRun:
    """Simulate a cell; with seed 0 also run it over the wire, and count bytes and seconds.

    Raises:
        IntegrityError: simulation and wire differ: the model, the bytes or the rounds.
    """
    experiment = config.load({**cell.settings, "seed": seed})
    result = finished(simulate(experiment, show=False))
    tests = [(record.trained, record.test["accuracy"]) for record in result.records if record.test]
    values = {"accuracy": tests[-1][1], "rounds": float(len(result.records))}
    if (epsilon := result.records[-1].epsilon) is not None:
        values["epsilon"] = epsilon
    if seed == 0:
        values |= _over_the_wire(experiment, result)
    return StudyRun(row=cell.row, column=cell.column, seed=seed, values=values, curve=tests)


def _over_the_wire(experiment: Experiment, result: Result) -> dict[str, float]:
    with TemporaryDirectory(prefix="fedloom-meter-") as folder:
        path = Path(folder) / "bytes.json"
        sent = over_the_wire(experiment, show=False, meter=path)
        counts = byte_meter.read(path)
    check_same(result, sent, noise=experiment.spec.session_noise() is not None)
    shares = len(sent.records) * CLIENTS
    return {
        "body": sum(record.bytes_up for record in sent.records) / shares,
        "up": counts.up / shares,
        "down": counts.down / shares,
        "seconds": statistics.median(record.round_wall_s for record in sent.records),
        "wire_accuracy": _accuracy(experiment, sent),
    }


def check_same(simulated: Result, sent: Result, *, noise: bool) -> None:
    """Check a run over the wire against its simulation.

    Args:
        simulated: the simulation's result.
        sent: over the wire.
        noise: devices added noise that nobody else knows, so the models must differ.

    Raises:
        IntegrityError: they differ in the model, the bytes or the rounds.
    """
    if (simulated.digest == sent.digest) == noise:
        raise IntegrityError(
            f"Expected {'another' if noise else 'the same'} model over the wire and in the "
            f"simulation, got {sent.digest[:12]} and {simulated.digest[:12]}."
        )
    ours, theirs = _facts(simulated.records), _facts(sent.records)
    if ours != theirs:
        differing = next((pair for pair in zip(theirs, ours, strict=False) if len({*pair}) > 1), "")
        raise IntegrityError(
            "Expected the same state, updates, bytes up, bytes down and epsilon of each round over "
            f"the wire and in the simulation, got {len(theirs)} and {len(ours)} rounds: {differing}"
        )


def _facts(records: tuple[RoundRecord, ...]) -> list[tuple[Any, ...]]:
    return [(r.state, r.accepted, r.bytes_up, r.bytes_down, r.epsilon) for r in records]


def _accuracy(experiment: Experiment, result: Result) -> float:
    """Of a result's model on the test examples."""
    model, test = experiment.model(), experiment.population.test
    assert test is not None
    model.load_state_dict({name: torch.tensor(value) for name, value in result.params.items()})
    with torch.no_grad():
        found = metrics.accuracy(model.eval()(torch.tensor(test.x)), torch.tensor(test.y))
    assert found is not None
    return found


def _columns(data: str) -> list[Column]:
    def of_plain(value: str) -> Callable[[StudyResults, str], TableEntry | None]:
        def entry(results: StudyResults, row: str) -> TableEntry | None:
            ours, plain = (results.entry(name, data, value) for name in (row, PLAIN))
            return None if ours is None or plain is None else TableEntry((ours.mean / plain.mean,))

        return entry

    def lost(results: StudyResults, row: str) -> TableEntry | None:
        ours, plain = (results.entry(name, data, "accuracy") for name in (row, PLAIN))
        return None if ours is None or plain is None else TableEntry((plain.mean - ours.mean,))

    def epsilon(results: StudyResults, row: str) -> TableEntry | None:
        """Of the run; infinite without noise."""
        ours = results.entry(row, data, "accuracy") and TableEntry((math.inf,))
        return results.entry(row, data, "epsilon") or ours

    def figure(value: str, title: str, digits: str) -> Column:
        column = metric_column(data, value, title, lambda entry: format(entry.mean, digits))
        return replace(column, is_drawn=False)

    def factor(value: str, title: str) -> Column:
        return Column(
            title=title, entry=of_plain(value), text=lambda e: f"{e.mean:.3f} ×", unit="factor"
        )

    accuracy = metric_column(
        data, "accuracy", "accuracy", lambda entry: f"{entry.mean:.4f} ± {entry.spread:.4f}"
    )
    return [
        replace(accuracy, unit="accuracy"),
        Column(
            title="less than in clear", entry=lost, text=lambda e: f"{e.mean:+.4f}", is_drawn=False
        ),
        Column(title="epsilon", entry=epsilon, text=lambda e: f"{e.mean:.4g}", is_drawn=False),
        figure("body", "update", ",.0f"),
        figure("up", "bytes up", ",.0f"),
        factor("up", "up, of in clear"),
        figure("down", "bytes down", ",.0f"),
        replace(factor("down", "down, of in clear"), is_drawn=False),
        figure("seconds", "seconds a round", ".2f"),
    ]


def _settings(case: str, data: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    return {
        "name": "masking",
        "rounds": rounds,
        "evaluate": False,
        "cohort": {"goal": CLIENTS, "quorum": CLIENTS},
        "train": {**LENGTH[data["source"]], "batch_size": 10, "learning_rate": 0.1},
        "data": {"clients": CLIENTS, **data},
        "model": {"name": "mlp", "hidden": [200, 200]},
        "engine": {"workers": 1, "kernel": "resident"},
        "test": {"every": max(1, rounds // 20)},
        **CASES[case],
    }


REMARKS = """
FedAvg of a 2NN (two hidden layers of 200) over twenty clients in one session, all of them in every
round. `update` is an update's body, which ledger and simulation both count. `bytes up` and `down`
are all that passed between client processes and a server process, TLS and HTTP/2 with what they
carry, counted by a relay; they have the messages of sessions as well. But for noise, the run over
the wire ended with the simulation's model; with noise with another one, since devices draw it from
their system. Rounds, updates, bytes of the ledger and epsilon were the same in all runs.

- Masked sums of 64, 32, 24 and 16 bits cost no accuracy under bounds that fit (`max_abs` 0.5, equal
  weights).
- A client sends about 7 kB and receives about 40 kB a round for its session of 20, whatever the
  model: 2.5 % of this small one.
- A session adds seconds to a round here, where all processes share two cores that others used
  too. Differences between masked rows say little.
- Noise of 0.3 clips costs nothing, and its epsilon promises nothing. With epsilon 8 the model
  learns nothing: twenty clients are far too few for 55,210 values. The study of privacy has
  central noise with a hundred clients a round and a model of 650 values. MNIST has no such row:
  training diverges there, and rounds are abandoned.
"""
