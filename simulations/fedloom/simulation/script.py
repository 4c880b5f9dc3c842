"""`run`: a simulation from a model and data that a script or a notebook has.

The settings become those of an experiment's file, with objects in the places of names, and
`config.build` makes the experiment of them: checks and defaults are the same.
"""

import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedloom.client import Client
from fedloom.client.torch.loop import Loss, MakeOptimizer
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import merged, subtable, usage_errors
from fedloom.simulation import config, sources
from fedloom.simulation.api import OnClient, OnRound, simulate
from fedloom.simulation.data.population import Population
from fedloom.simulation.kernels.metrics import Metric
from fedloom.simulation.output.history import BY_CALLER, INTERRUPTED, Result
from fedloom.simulation.partition.registry import decides
from fedloom.simulation.training.evaluate import Evaluate
from fedloom.strategies.registry import strategy_of
from fedloom.strategies.setting_checks import parameters

CLIENTS = 10
"""Clients, if neither the data nor the partition decide, and most clients of a round."""
LEARNING_RATE = 0.1
"""Of plain gradient descent; an optimizer has its own."""


def run(
    model: nn.Module | Callable[..., nn.Module] | str | Mapping[str, Any],
    data: Any,
    *,
    strategy: str | Mapping[str, Any] | Callable[..., Any] = "fedavg",
    rounds: int = 10,
    clients: int | None = None,
    clients_per_round: int | None = None,
    partition: Any = None,
    test: Any = None,
    held_out: float | None = None,
    epochs: int | None = None,
    batch_size: int = 32,
    learning_rate: float | None = None,
    loss: str | Loss | None = None,
    optimizer: str | Mapping[str, Any] | MakeOptimizer | None = None,
    client: Callable[[str], Client] | None = None,
    inputs: str | None = None,
    target: str | None = None,
    seed: int = 0,
    metrics: Mapping[str, Metric] | None = None,
    evaluate: Evaluate | None = None,
    settings: Mapping[str, Any] | None = None,
    on_round: OnRound | None = None,
    on_client: OnClient | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    accept_changes: bool = False,
    show: bool = True,
) -> Result:
    """Simulate federated training of a model on data that a program has.

        result = run(model=net, data=(x, y), strategy="fedadam", rounds=20)
        result.frame()

    The model and the data are not changed, and neither are torch's threads, the global random
    states and the default dtype.

    Args:
        model: a module, whose values are the initial model; a function that makes one, called
            with the `seed` set (and `input_shape`, `num_classes` if it has such arguments); or
            the name of a model, alone or in a table with its settings.
        data: (inputs, targets) as arrays or tensors, a torch or Hugging Face data set, any of
            these by the names of clients, a named source of data, alone or in a table, or a
            `Population`.
        strategy: a name, a table with a name and settings, or a class or function of a `Strategy`.
        rounds: of training.
        clients: over which the data are split; default: 10.
        clients_per_round: clients that train in a round; default: 10, or all if they are fewer.
        partition: a name, a table, a partitioner, or a function from an `ExamplePool` to each
            client's indices of examples; default: `iid`.
        test: fraction of central test examples, or these examples in a form of `data`.
        held_out: fraction of its examples that each client keeps for evaluation.
        epochs: of a client in a round; default: 1, or none with `train.steps` in `settings`.
        batch_size: of a client's steps.
        learning_rate: default: 0.1 for plain gradient descent, else the optimizer's.
        loss: a name, or a function of (outputs, targets); default: cross-entropy for class
            numbers, squared error for values.
        optimizer: of torch.optim by name, in a table with its settings, or its class.
        client: makes a client's own training code by its name.
        inputs: column of inputs of a Hugging Face data set.
        target: column of its targets.
        seed: of everything that is drawn.
        metrics: functions of all outputs and targets by name; see `Experiment`.
        evaluate: a function of (round, params) that returns numbers by name; see `Experiment`.
        settings: any other settings of an experiment's file, nested or dotted.
        on_round: called with each round and the model after it; see `simulate`.
        on_client: called with each client of a round; see `simulate`.
        out: folder for the report; None for none.
        resume: continue the simulation in `out`.
        accept_changes: with `resume`, continue also with changed code or examples; see `simulate`.
        show: show the progress and a summary; without, a simulation that fails warns.

    Returns:
        Every round and the last model; see `Result.frame` and `Result.plot`.

    Raises:
        UsageError: an argument or a setting is invalid.
        UnavailableError: a worker died, or the disk is full.
    """
    settings = merged({}, settings or {})
    of_data = {
        "clients": clients, "partition": partition, "test": test, "held_out": held_out,
        "inputs": inputs, "target": target, **settings.pop("data", {}),
    }  # fmt: skip
    table = _of_data(data, {k: v for k, v in of_data.items() if v is not None}, seed)
    population = data if isinstance(data, Population) else sources.load(**table)
    values: dict[str, Any] = {
        "rounds": rounds,
        "seed": seed,
        "data": {"source": population},
        "model": _table(model) if loss is None else {**_table(model), "loss": loss},
        "strategy": _strategy(strategy, len(population)),
        "cohort": {
            "goal": min(CLIENTS, len(population))
            if clients_per_round is None
            else clients_per_round
        },
        "train": {"batch_size": batch_size},
        "engine": {"workers": _workers()},
    }
    if epochs is not None or "steps" not in subtable(settings, "train"):
        values["train"]["epochs"] = 1 if epochs is None else epochs
    if optimizer is not None:
        values["optimizer"] = _table(optimizer)
    if client is not None:
        values["client"] = {"code": client}
    values["train"]["learning_rate"] = (
        _learning_rate(values.get("optimizer")) if learning_rate is None else learning_rate
    )
    changes = {
        name: {**values[name], **subtable(settings, name)}
        if isinstance(values.get(name), dict)
        else value
        for name, value in settings.items()
    }
    made = config.load(merged(values, changes))
    record = {**made.settings, "data": config.recorded(table, population)}
    experiment = replace(made, metrics=metrics or {}, evaluate=evaluate, settings=record)
    result = simulate(
        experiment,
        out=out,
        resume=resume,
        accept_changes=accept_changes,
        on_round=on_round,
        on_client=on_client,
        show=show,
    )
    if not show and result.stopped not in {"", INTERRUPTED, BY_CALLER}:
        rounds = sum(record.state == "committed" for record in result.records)
        warnings.warn(
            f"The simulation ended after {rounds} of {experiment.spec.rounds} rounds: "
            f"{result.stopped}",
            stacklevel=2,
        )
    return result


def _of_data(data: Any, given: dict[str, Any], seed: int) -> dict[str, Any]:
    """The table of the data, with the defaults of a script."""
    if isinstance(data, Population):
        if given:
            raise UsageError(f"A Population is split already. Leave out {', '.join(given)}.")
        return {"source": data}
    named = isinstance(data, str) or (isinstance(data, Mapping) and "source" in data)
    table = {**_table(data if named else {"source": data}, "source"), **given}
    split = "client" in table or sources.is_split(table["source"])
    if not (split or decides(table.get("partition"))):
        table.setdefault("clients", CLIENTS)
    return {"seed": seed, **table}


def _table(value: Any, name: str = "name") -> dict[str, Any]:
    """A table of settings with a name, or with an object in its place."""
    return dict(value) if isinstance(value, Mapping) else {name: value}


def _strategy(strategy: Any, clients: int) -> dict[str, Any]:
    """The strategy's table, with the number of clients if the strategy needs it."""
    table = _table(strategy)
    build = table.get("name", "fedavg")
    if isinstance(build, str):
        with usage_errors():
            build = strategy_of(build)
    needed = callable(build) and parameters(build).get("clients")
    if needed and needed.default is inspect.Parameter.empty:
        table.setdefault("clients", clients)
    return table


def _learning_rate(optimizer: Mapping[str, Any] | None) -> float:
    """The learning rate of an optimizer's own signature."""
    build: Any = (optimizer or {}).get("name")
    if isinstance(build, str):
        build = config.optimizer_of(build)
    rate = parameters(build)["lr"].default if callable(build) and "lr" in parameters(build) else ""
    return float(rate) if isinstance(rate, int | float) else LEARNING_RATE


def _workers() -> int | str:
    """One process where workers would import the script again, and thereby run it."""
    return "auto" if hasattr(os, "fork") and not torch.cuda.is_available() else 1
