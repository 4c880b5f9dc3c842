"""Read an experiment from a TOML file, a Python file or a mapping, and check it.

The top level has the settings of a server's run.toml. Further tables are for simulations only, such
as the data, the model, the engine, the devices and the test.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedloom.cli.common.load_code import find
from fedloom.client import Client
from fedloom.client.torch.loop import Loss, MakeOptimizer
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import (
    call,
    check_names,
    lookup,
    merged,
    named,
    subtable,
    toml,
    typed,
    within,
)
from fedloom.server.planning.spec import RunSpec
from fedloom.server.planning.spec import parse as parse_spec
from fedloom.simulation import models, sources
from fedloom.simulation.clock.devices import Devices
from fedloom.simulation.data.population import Population
from fedloom.simulation.experiment import EngineSettings, Experiment
from fedloom.simulation.training import attacks
from fedloom.strategies.setting_checks import parameters

TABLES = (
    "data", "model", "optimizer", "client", "engine", "devices", "attack", "test", "stop", "output",
)  # fmt: skip
"""Tables of an experiment that a run.toml does not have."""


def load(
    source: Path | str | Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> Experiment:
    """Read an experiment.

    Args:
        source: a TOML file; `FILE.py` or `FILE.py:NAME`, where NAME (`experiment` by default) is
            an `Experiment`, a mapping of settings, or a function that returns one; or a mapping.
        overrides: dotted settings, such as `train.learning_rate`, that replace the file's.

    Raises:
        UsageError: the file or a setting is invalid.
    """
    if isinstance(source, Mapping):
        return build(merged(source, overrides or {}))
    text = str(source)
    if ".py" in text:
        found = find(text if ":" in text else f"{text}:experiment")
        if callable(found):
            found = found()
        if isinstance(found, Mapping):
            return build(merged(found, overrides or {}))
        if not isinstance(found, Experiment):
            raise UsageError(
                f"Expected an Experiment or settings in {text}, got {type(found).__name__}."
            )
        if overrides:
            raise UsageError("--set cannot change an Experiment made in Python. Change it there.")
        return found
    path = Path(text)
    values = merged(read(path), overrides or {})
    with within(f"{path} with --set" if overrides else path):
        return build(values, path.parent)


def read(path: Path) -> dict[str, Any]:
    """The settings of a TOML file; folders in it are relative to the file.

    Raises:
        UsageError: it is missing, cannot be read, or is not TOML.
    """
    values = toml.read(path, "an experiment")
    data = values.get("data")
    if isinstance(data, dict) and isinstance(data.get("folder"), str):
        data["folder"] = str(path.parent / Path(data["folder"]).expanduser())
    return values


def build(values: Mapping[str, Any], folder: Path = Path()) -> Experiment:
    """An experiment from its settings.

    Args:
        values: as in a TOML file.
        folder: that paths of traces are relative to.

    Raises:
        UsageError: a setting is unknown or has a wrong type, or settings conflict.
    """
    tables = {name: subtable(values, name) for name in TABLES}
    check_names(values, (*(field.name for field in fields(RunSpec)), *TABLES))
    if not tables["data"] or not tables["model"]:
        raise UsageError(
            "An experiment needs the tables [data] and [model]; see `fedloom simulate --help`."
        )
    run = {name: value for name, value in values.items() if name not in TABLES}
    has_own_held_out = "held_out" in tables["data"]
    spec = parse_spec({"evaluate": has_own_held_out, **run})
    if spec.evaluate_only:
        raise UsageError(
            "A simulation must train: remove evaluate_only = true. It evaluates every model on "
            "central test examples and, with evaluate = true, on clients."
        )
    _output(tables["output"])
    population = sources.load(**{"seed": spec.seed, **tables["data"]})
    devices = None
    if "devices" in values:  # an empty table is an error, as every timing is missing
        devices = Devices.build(tables["devices"], len(population), spec.seed, folder)
    check_names(tables["test"], ("every",), "test")
    return Experiment(
        population=population,
        model=_model(tables["model"], population, spec.seed),
        loss=_loss(str(tables["model"].get("loss", "cross_entropy")), population),
        optimizer=_optimizer(tables["optimizer"]),
        client=_client(tables["client"]),
        spec=spec,
        devices=devices,
        attack=attacks.attack(tables["attack"]),
        engine=call(EngineSettings, tables["engine"], table="engine"),
        test_every=_count("test.every", tables["test"].get("every", 1)),
        stop=_stop(tables["stop"]),
        settings=dict(values),
    )


def _model(table: Mapping[str, Any], population: Population, seed: int) -> partial[nn.Module]:
    settings = {name: value for name, value in table.items() if name != "loss"}
    named(settings, "model")
    offered = {
        "seed": seed,
        "input_shape": population.examples.x.shape[1:],
        "num_classes": 1 if _has_values(population) else population.num_classes,
    }
    make = partial(models.build, **{**offered, **settings})
    make()  # refuses an unknown name or setting now
    return make


def _loss(name: str, population: Population) -> Loss:
    loss = models.loss(name)
    of_values = name in models.LOSSES and name != "cross_entropy"
    if of_values and _has_values(population):
        return partial(models.of_values, loss)
    return loss


def _has_values(population: Population) -> bool:
    """Whether each target is one value, so that the model has one output."""
    y = population.examples.y
    return population.num_classes is None and y.ndim == 1 and y.dtype.kind == "f"


def _optimizer(table: dict[str, Any]) -> MakeOptimizer | None:
    """An optimizer of torch.optim by its name in lower case; None for plain gradient descent."""
    if not table:
        return None
    name, settings = named(table, "optimizer")
    known: dict[str, Any] = {
        name.lower(): kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type)
        and issubclass(kind, torch.optim.Optimizer)
        and kind is not torch.optim.Optimizer
    }
    build = lookup("an optimizer of torch.optim", name, known)
    if "lr" in settings:
        raise UsageError("Set the learning rate as train.learning_rate, not as optimizer.lr.")
    check_names(settings, parameters(build).keys() - {"params", "lr"}, "optimizer")
    make = partial(build, **settings)
    try:
        make([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    except (TypeError, ValueError) as error:
        raise UsageError(f"Invalid settings of the optimizer {name}: {error}.") from None
    return make


def _client(table: dict[str, Any]) -> Callable[[str], Client] | None:
    """The clients' own code: a function from a client's name to its `Client`."""
    if not table:
        return None
    check_names(table, ("code",), "client")
    code = typed("client.code", table["code"], str)
    found = find(code)
    if not callable(found):
        raise UsageError(
            f"Expected {code} to be a function from a client's name to its Client, got a "
            f"{type(found).__name__}."
        )
    make: Callable[[str], Client] = found
    return make


def _count(name: str, value: Any) -> int:
    found: int = typed(name, value, int)
    if found < 0:
        raise UsageError(f"Expected {name} >= 0, got {found}.")
    return found


def _output(table: dict[str, Any]) -> None:
    check_names(table, ("tensorboard", "mlflow"), "output")
    for name, value in table.items():
        typed(f"output.{name}", value, bool)


def _stop(table: dict[str, Any]) -> dict[str, float]:
    found = {name: typed(f"stop.{name}", value, float) for name, value in table.items()}
    for name, value in found.items():
        if not isfinite(value):
            raise UsageError(f"Expected stop.{name} as a finite number, got {value}.")
        if name == "accuracy" and not 0 < value <= 1:
            raise UsageError(f"Expected 0 < stop.accuracy <= 1, such as 0.97, got {value:g}.")
    return found
