"""Read an experiment from a TOML file, a Python file or a mapping, and check it.

The top level has the settings of a server's run.toml. Further tables are for simulations only, such
as the data, the model, the engine, the devices and the test.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedloom.cli.common.load_code import called, find
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
    usage_errors,
    within,
)
from fedloom.server.planning.spec import RunSpec
from fedloom.server.planning.spec import parse as parse_spec
from fedloom.server.planning.spec_tables import INNER
from fedloom.simulation import models, sources
from fedloom.simulation.clock.devices import Devices
from fedloom.simulation.data.population import Population
from fedloom.simulation.experiment import EngineSettings, Experiment
from fedloom.simulation.kernels.metrics import Metric
from fedloom.simulation.metrics import READY
from fedloom.simulation.sources.in_memory import described
from fedloom.simulation.training import attacks
from fedloom.strategies import STRATEGIES
from fedloom.strategies.setting_checks import check_settings, parameters

TABLES = (
    "data", "model", "optimizer", "client", "engine", "devices", "attack", "test", "stop", "output",
)  # fmt: skip
"""Tables of an experiment that a run.toml does not have."""
_MOST_CLASSES = 100
"""Different whole numbers up to which floats are taken for class numbers."""


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
        found = from_python(text)
        if isinstance(found, Mapping):
            return build(merged(found, overrides or {}))
        if overrides:
            raise UsageError("--set cannot change an Experiment made in Python. Change it there.")
        return found
    path = Path(text)
    values = merged(read(path), overrides or {})
    with within(f"{path} with --set" if overrides else path):
        return build(values, path.parent)


def from_python(source: str) -> Experiment | Mapping[str, Any]:
    """What `FILE.py` or `FILE.py:NAME` has: an `Experiment`, or settings.

    Raises:
        UsageError: it has neither, or its code raises an error.
    """
    found = find(source if ":" in source else f"{source}:experiment")
    if callable(found):
        found = called(source, found)
    if not isinstance(found, Mapping | Experiment):
        raise UsageError(
            f"Expected an Experiment or settings in {source}, got {type(found).__name__}."
        )
    return found


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
    values = _with_names(values)
    tables = {name: subtable(values, name) for name in TABLES}
    names = (*(field.name for field in fields(RunSpec)), *TABLES)
    check_names(values, names, elsewhere=INNER)
    if not tables["data"] or not tables["model"]:
        raise UsageError(
            "An experiment needs the tables [data] and [model]; see `fedloom simulate --help`."
        )
    run = {name: value for name, value in values.items() if name not in TABLES}
    source = tables["data"].get("source")
    held_out = isinstance(source, Population) and source.held_out_shards is not None
    has_own_held_out = held_out or "held_out" in tables["data"]
    spec = parse_spec({"evaluate": has_own_held_out, **run})
    if spec.evaluate_only:
        raise UsageError(
            "A simulation must train: remove evaluate_only = true. It evaluates every model on "
            "central test examples and, with evaluate = true, on clients."
        )
    _output(tables["output"])
    population = _population(tables["data"], spec.seed)
    devices = None
    if "devices" in values:  # an empty table is an error, as every timing is missing
        devices = Devices.build(tables["devices"], len(population), spec.seed, folder)
    check_names(tables["test"], ("every", "metrics"), "test")
    return Experiment(
        population=population,
        model=_model(tables["model"], population, spec.seed),
        loss=_loss(tables["model"].get("loss"), population),
        optimizer=_optimizer(tables["optimizer"]),
        client=_client(tables["client"]),
        spec=spec,
        devices=devices,
        attack=attacks.attack(tables["attack"]),
        engine=call(EngineSettings, tables["engine"], table="engine"),
        test_every=_count("test.every", tables["test"].get("every", 1)),
        stop=tables["stop"],
        metrics=_metrics(tables["test"].get("metrics", {})),
        settings=recorded(values, population),
    )


def _with_names(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings with a name instead of a strategy's class, registered for this process."""
    table = values.get("strategy")
    name = table.get("name") if isinstance(table, Mapping) else None
    if name is None or isinstance(name, str):
        return values
    if not callable(name):
        raise UsageError(
            "Expected strategy as a name, or a class or function that returns a Strategy, got "
            f"{type(name).__name__}."
        )
    return {**values, "strategy": {**values["strategy"], "name": _registered(name)}}


def _registered(build: Callable[..., Any]) -> str:
    """Register a user's strategy; another one of this name, which may still run, stays."""
    name, number = models.called(build), 1
    while STRATEGIES.get(name, build) is not build:
        number += 1
        name = f"{models.called(build)}#{number}"
    STRATEGIES[name] = build
    return name


def _population(table: Mapping[str, Any], seed: int) -> Population:
    if isinstance(source := table.get("source"), Population):
        check_names(table, ("source",), "data")
        return source
    return sources.load(**{"seed": seed, **table})


def recorded(values: Mapping[str, Any], population: Population) -> dict[str, Any]:
    """Settings as text and numbers: objects by their names, data in memory by their shapes."""
    found = {name: _plain(value, population) for name, value in values.items()}
    if not isinstance(values.get("source"), str | None):
        found["source"] = described(population.examples)
    if not isinstance(values.get("test"), str | int | float | Mapping | None):
        found["test"] = "given"
    return found


def _plain(value: Any, population: Population) -> Any:
    if isinstance(value, Mapping):
        return recorded(value, population)
    if isinstance(value, list):
        return [_plain(each, population) for each in value]
    if hasattr(value, "deal"):
        return repr(value)  # a partitioner with its settings
    return models.called(value) if callable(value) else value


def _model(table: Mapping[str, Any], population: Population, seed: int) -> partial[nn.Module]:
    settings = {name: value for name, value in table.items() if name != "loss"}
    name = settings.get("name")
    if isinstance(name, nn.Module):
        check_names(settings, ("name",), "model")
        return partial(copy.deepcopy, name)
    if not callable(name):
        named(settings, "model", models.MODELS)
    offered = {
        "seed": seed,
        "input_shape": population.input_shape,
        "num_classes": _num_outputs(population),
    }
    make = partial(models.build, **{**offered, **settings})
    make()  # refuses an unknown name or setting now
    return make


def _loss(wanted: str | Loss | None, population: Population) -> Loss:
    values = _has_values(population)
    if wanted is None:
        if population.examples.y.dtype.kind == "f" and not values:
            shape = list(population.examples.y.shape[1:])
            raise UsageError(
                f"The targets of an example are values of shape {shape}. Set the loss: mse or l1 "
                "for values, cross_entropy for probabilities of classes."
            )
        wanted = "mse" if values else "cross_entropy"
        if values:
            _check_values(population.examples.y)
    elif not isinstance(wanted, str) and not callable(wanted):
        raise UsageError(
            "Expected the loss as a name or a function of (outputs, targets), got "
            f"{type(wanted).__name__}."
        )
    loss = models.loss(wanted)
    if values and loss in models.LOSSES.values() and loss is not models.LOSSES["cross_entropy"]:
        return partial(models.of_values, loss)
    return loss


def _check_values(y: NDArray[np.generic]) -> None:
    """Refuse class numbers that are stored as floats, unless a loss is set."""
    few = np.unique(y)[: _MOST_CLASSES + 1].astype(np.float64)
    if 1 < len(few) <= _MOST_CLASSES and few[0] >= 0 and bool(np.all(few == np.floor(few))):
        raise UsageError(
            f"The targets are {y.dtype}, but whole numbers from {few[0]:g} to {few[-1]:g}. Store "
            "class numbers as integers, such as y.astype(int), or set the loss of values, such as "
            "mse."
        )


def _num_outputs(population: Population) -> int | None:
    """The outputs of a model for these targets; None if they do not say it."""
    y = population.examples.y
    if population.num_classes is None and y.dtype.kind == "f" and y.ndim <= 2:
        return 1 if y.ndim == 1 else y.shape[1]
    return population.num_classes


def _has_values(population: Population) -> bool:
    """Whether each target is one value, so that the model has one output."""
    y = population.examples.y
    return population.num_classes is None and y.ndim == 1 and y.dtype.kind == "f"


def _optimizer(table: dict[str, Any]) -> MakeOptimizer | None:
    """An optimizer of torch.optim by its name, or the user's; None for plain gradient descent."""
    if not table:
        return None
    build: Any = table.get("name")
    settings = {name: value for name, value in table.items() if name != "name"}
    if isinstance(build, torch.optim.Optimizer):
        raise UsageError(_instead_of(build))
    known = optimizers()
    if not callable(build):
        name, settings = named(table, "optimizer", known)
        build = optimizer_of(name)
    if "lr" in settings:
        raise UsageError("Set the learning rate as train.learning_rate, not as optimizer.lr.")
    if build in known.values():
        with usage_errors():
            check_settings(
                build.__init__, settings, table="optimizer", without=("self", "params", "lr")
            )
    check_names(settings, parameters(build).keys() - {"params", "lr"}, "optimizer")
    make = partial(build, **settings)
    try:
        make([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    except (TypeError, ValueError, IndexError) as error:
        name = models.called(build)
        raise UsageError(f"Invalid settings of the optimizer {name}: {error}.") from None
    return make


def _instead_of(optimizer: torch.optim.Optimizer) -> str:
    """The message for an optimizer in place of its name, without its parameters."""
    kind, usual = type(optimizer), inspect.signature(type(optimizer)).parameters
    own = {n: v for n, v in optimizer.defaults.items() if n in usual and v != usual[n].default}
    rate = own.pop("lr", None)
    table = {"name": kind.__name__, **own}
    speed = "" if rate is None else f", and learning_rate = {float(rate):g} (in [train] of a file)"
    return (
        "Expected optimizer as a name, a table or a class, since each client makes its own, got "
        f"an instance of {kind.__name__}. Write optimizer = {table if own else kind.__name__!r}"
        f"{speed}."
    )


def optimizer_of(name: str) -> type[torch.optim.Optimizer]:
    """The optimizer of a name, such as adam, Adam or torch.optim.Adam.

    Raises:
        UsageError: there is none.
    """
    return lookup("an optimizer of torch.optim", name.removeprefix("torch.optim."), optimizers())


def optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    """The optimizers of torch.optim by their names in lower case."""
    return {
        name.lower(): kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type)
        and issubclass(kind, torch.optim.Optimizer)
        and kind is not torch.optim.Optimizer
    }


def _client(table: dict[str, Any]) -> Callable[[str], Client] | None:
    """The clients' own code: a function from a client's name to its `Client`."""
    if not table:
        return None
    check_names(table, ("code",), "client")
    code = table["code"]
    found = code if callable(code) else find(typed("client.code", code, str))
    if not callable(found):
        raise UsageError(
            f"Expected {code} to be a function from a client's name to its Client, got a "
            f"{type(found).__name__}."
        )
    make: Callable[[str], Client] = found
    return make


def _metrics(table: Any) -> dict[str, Metric]:
    """Functions by name, from names of ready ones, "file.py:function", or functions."""
    if not isinstance(table, Mapping):
        raise UsageError(
            f'Expected test.metrics as a table, such as {{ f1 = "f1" }}, got {table!r}.'
        )
    found: dict[str, Metric] = {}
    for name, value in table.items():
        if not isinstance(value, str):
            found[name] = value  # a function; an Experiment refuses all else
        elif ":" in value:
            found[name] = find(value)
        else:
            found[name] = lookup(f"test.metrics.{name} as a ready metric", value, READY)
    return found


def _count(name: str, value: Any) -> int:
    found: int = typed(name, value, int)
    if found < 0:
        raise UsageError(f"Expected {name} >= 0, got {found}.")
    return found


def _output(table: dict[str, Any]) -> None:
    check_names(table, ("tensorboard", "mlflow"), "output")
    for name, value in table.items():
        typed(f"output.{name}", value, bool)
