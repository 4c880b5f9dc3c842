"""Small experiments for the simulator's tests; all together take seconds."""

from functools import partial
from typing import Any

import numpy as np

from fedloom.client import Client
from fedloom.simulation import models
from fedloom.simulation.data.population import Examples, Population, numbered
from fedloom.simulation.experiment import EngineSettings, Experiment, run_spec

FEATURES, CLASSES = 12, 4


def population(sizes=(9, 30, 12, 21, 5, 17), *, test=64, held_out=0, seed=0):
    """Clients of these sizes around four means; the first `held_out` of each evaluate."""
    rng = np.random.default_rng(seed)
    total = sum(sizes) + test
    means = rng.normal(size=(CLASSES, FEATURES)) * 2
    y = rng.integers(0, CLASSES, total)
    x = (means[y] + rng.normal(size=(total, FEATURES))).astype(np.float32)
    stops = np.cumsum(sizes)
    shards = [np.arange(b - n, b) for n, b in zip(sizes, stops, strict=True)]
    return Population(
        examples=Examples(x=x[: stops[-1]], y=y[: stops[-1]]),
        names=numbered(len(sizes)),
        shards=[shard[held_out:] for shard in shards],
        held_out_shards=[shard[:held_out] for shard in shards] if held_out else None,
        test=Examples(x=x[stops[-1] :], y=y[stops[-1] :]) if test else None,
        num_classes=CLASSES,
    )


def experiment(
    *,
    rounds=3,
    goal=4,
    workers: Any = 1,
    kernel="auto",
    data: Population | None = None,
    model="mlp",
    client: Any = None,
    devices: Any = None,
    backend="local",
    stop: Any = None,
    attack: Any = None,
    **settings: Any,
) -> Experiment:
    """An experiment on such clients; `settings` are a run's."""
    data = data or population()
    extra = {"hidden": (8,)} if model == "mlp" else {}
    values = {
        "rounds": rounds,
        "evaluate": data.held_out_shards is not None,
        "cohort": {"goal": goal},
        "train": {"epochs": 2, "batch_size": 4, "learning_rate": 0.1},
        **settings,
    }
    return Experiment(
        population=data,
        model=partial(
            models.build,
            model,
            input_shape=data.examples.x.shape[1:],
            num_classes=CLASSES,
            seed=1,
            **extra,
        ),
        spec=run_spec(values),
        client=client,
        devices=devices,
        attack=attack,
        engine=EngineSettings(workers=workers, kernel=kernel, backend=backend, device="cpu"),
        stop=stop or {},
    )


class Nudge(Client):
    """Adds its own number to every parameter; `bad` clients send invalid updates."""

    def __init__(self, name, bad=()):
        self.number = int(name.rpartition("-")[2])
        self.bad = name in bad

    def train(self, params, task):
        step = np.float32(np.nan if self.bad else self.number / 64)
        return {n: v + step for n, v in params.items()}, 1 + self.number, {"number": self.number}
