"""Read an unchanged Comet Optimizer config as a sweep.

Source: "Configure the Optimizer", https://www.comet.com/docs/v2/guides/optimizer/configure-optimizer/.
The file is JSON or a Python literal. A parameter is a table with a `type`, a plain list of values,
or a constant. Keys for Comet's own service (`minSampleSize`, the retries) are ignored; a key that
a parameter's type or scaling does not have is refused.

Four additional keys allow a search in one file: `experiment`, `map` from names to settings,
`derived` as in a sweep file, and `pruner`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import check_names, subtable, within
from fedloom.simulation.sweep import literal
from fedloom.simulation.sweep.objective import Objective, natural_direction
from fedloom.simulation.sweep.settings import DEFAULT_TRIALS, Pruner, Sweep, locate, parse_derived
from fedloom.simulation.sweep.space import Parameter, different, space_size

ALGORITHMS = {"grid": "grid", "random": "random", "bayes": "tpe"}
GRID_SIZE = 10
"""Comet's default number of grid points of a range."""

SETTINGS: Mapping[str, str] = {
    "batch_size": "train.batch_size",
    "local_batch_size": "train.batch_size",
    "learning_rate": "train.learning_rate",
    "lr": "train.learning_rate",
    "client_learning_rate": "train.learning_rate",
    "client_lr": "train.learning_rate",
    "epochs": "train.epochs",
    "num_epochs": "train.epochs",
    "local_epochs": "train.epochs",
    "steps": "train.steps",
    "local_steps": "train.steps",
    "warmup_rounds": "train.warmup_rounds",
    "server_learning_rate": "strategy.server_learning_rate",
    "server_lr": "strategy.server_learning_rate",
    "momentum": "strategy.momentum",
    "server_momentum": "strategy.momentum",
    "rounds": "rounds",
    "num_rounds": "rounds",
    "seed": "seed",
    "weighting": "weighting",
    "clients": "data.clients",
    "num_clients": "data.clients",
    "clients_per_round": "cohort.goal",
    "cohort_size": "cohort.goal",
    "alpha": "data.partition.alpha",
    "dirichlet_alpha": "data.partition.alpha",
    "strategy": "strategy.name",
    "model": "model.name",
    "optimizer": "optimizer.name",
}
"""Well-known names of parameters → settings; hyphens and capitals are ignored."""

METRICS = {"acc": "accuracy", "categorical_accuracy": "accuracy"}
_PREFIXES = ("test_", "validation_", "val_", "valid_", "eval_")
_KEYS = (
    "algorithm", "spec", "parameters", "name", "trials", "experiment", "map", "derived", "pruner",
)  # fmt: skip
_SPEC = (
    "maxCombo", "metric", "objective", "seed", "gridSize", "minSampleSize", "retryLimit",
    "retryAssignLimit",
)  # fmt: skip
_WHOLE = ("integer", "int")
_REAL = ("float", "double")
_LISTED = ("discrete", "categorical")
_LISTED_KEYS = ("type", "values")
_RANGE_KEYS = ("type", "min", "max", "scalingType", "scaling_type", "gridSize", "grid_size")
_NORMAL_KEYS = (*_RANGE_KEYS, "mu", "sigma")
_NORMAL = ("normal", "lognormal")
_SCALINGS = ("linear", "uniform", "loguniform", *_NORMAL)


def read(
    path: Path,
    *,
    experiment: str | None = None,
    names: Mapping[str, str] | None = None,
    trials: int | None = None,
) -> Sweep:
    """Read a Comet Optimizer config.

    The experiment's file is used if the config names none, the names (parameter → setting) besides
    the well-known ones and the config's `map`; `trials` replaces `maxCombo`.

    Raises:
        UsageError: the config is invalid.
    """
    try:
        values = literal.parse(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise UsageError(f"The sweep {path} does not exist.") from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} is not a Comet Optimizer config: {error}. Expected JSON or a Python literal; "
            "a sweep in TOML has a name that ends in .toml."
        ) from None
    named = Path(experiment) if experiment is not None else None
    with within(path):
        return parse(
            values,
            folder=path.parent,
            name=path.stem,
            experiment=named,
            names=names or {},
            trials=trials,
        )


def parse(
    values: Mapping[str, Any],
    *,
    folder: Path = Path(),
    name: str = "sweep",
    experiment: Path | Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
    trials: int | None = None,
) -> Sweep:
    """A sweep from a config; see `read`.

    Raises:
        UsageError: the config is invalid.
    """
    check_names(values, _KEYS)
    spec = subtable(values, "spec")
    check_names(spec, _SPEC, "spec")
    if experiment is None:
        if "experiment" not in values:
            raise UsageError(
                "The config names no experiment. Give --experiment FILE.toml, or set "
                '"experiment" in the config.'
            )
        experiment = locate(values["experiment"], folder)
    algorithm = values.get("algorithm")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise UsageError(f"Expected algorithm of {', '.join(ALGORITHMS)}, got {algorithm!r}.")
    derived = parse_derived(subtable(values, "derived"))
    known = {**subtable(values, "map"), **(names or {})}
    used = {each for formula in derived.values() for each in formula.names}
    size = _whole("gridSize", spec.get("gridSize"), GRID_SIZE, 1)
    combos = _whole("maxCombo", spec.get("maxCombo"), 0, 0) or None
    parameters = tuple(
        _parameter(each, entry, _setting(each, known, used), size)
        for each, entry in subtable(values, "parameters").items()
    )
    return Sweep(
        name=str(values.get("name") or name),
        experiment=experiment,
        objective=_objective(spec),
        algorithm=ALGORITHMS[algorithm],
        parameters=parameters,
        derived=derived,
        trials=trials if trials is not None else combos,
        repeats=_whole("trials", values.get("trials"), 1, 1),
        seed=spec.get("seed"),
        pruner=Pruner(name=values.get("pruner", "none")),
        notes=_notes(algorithm, trials or combos, space_size(parameters)),
    )


def _notes(algorithm: str, trials: int | None, size: int | None) -> tuple[str, ...]:
    few = size is not None and size <= DEFAULT_TRIALS
    if algorithm == "grid" or trials is not None or few:
        return ()
    note = (
        f"maxCombo is 0, an endless search in Comet; this sweep ends after {DEFAULT_TRIALS} "
        "settings. --trials sets another number."
    )
    return (note,)


def _objective(spec: Mapping[str, Any]) -> Objective:
    metric = str(spec.get("metric", "loss"))
    for prefix in _PREFIXES:
        metric = metric.removeprefix(prefix)
    metric = METRICS.get(metric, metric)
    direction = spec.get("objective") or natural_direction(metric)
    if direction not in ("maximize", "minimize"):
        raise UsageError(f"Expected objective of maximize, minimize, got {direction!r}.")
    return Objective(metric=metric, direction=direction)


def _setting(name: str, names: Mapping[str, str], used: set[str]) -> str | None:
    """The setting of a parameter's name; None if only formulas use it."""
    if name in names:
        return names[name]
    if "." in name:
        return name
    found = SETTINGS.get(name.lower().replace("-", "_"))
    if found is None and name not in used:
        raise UsageError(
            f"The parameter {name!r} is not a well-known name of a setting. Map it to a setting: "
            f"--map {name}=train.{name}, for example."
        )
    return found


def _parameter(name: str, entry: Any, setting: str | None, grid_size: int) -> Parameter:
    if isinstance(entry, list):
        return Parameter(name=name, setting=setting, values=_values(name, entry))
    if not isinstance(entry, Mapping):
        return Parameter(name=name, setting=setting, values=(entry,))
    kind = entry.get("type", "discrete" if "values" in entry else None)
    if kind in _LISTED:
        check_names(entry, _LISTED_KEYS, f"parameters.{name}")
        return Parameter(name=name, setting=setting, values=_values(name, entry.get("values")))
    if kind not in (*_WHOLE, *_REAL):
        raise UsageError(
            f"Expected type of {', '.join((*_WHOLE[:1], *_REAL, *_LISTED))} of {name!r}, "
            f"got {kind!r}."
        )
    return _range(name, entry, setting, kind in _WHOLE, grid_size)


def _range(
    name: str, entry: Mapping[str, Any], setting: str | None, whole: bool, grid_size: int
) -> Parameter:
    scaling = entry.get("scalingType", entry.get("scaling_type", "linear"))
    if scaling not in _SCALINGS:
        raise UsageError(
            f"Expected scaling of {', '.join(_SCALINGS)} of {name!r}, got {scaling!r}."
        )
    points = entry.get("gridSize", entry.get("grid_size", grid_size))
    normal = scaling in _NORMAL
    check_names(entry, _NORMAL_KEYS if normal else _RANGE_KEYS, f"parameters.{name}")
    low, high = (_number(name, key, entry.get(key)) for key in ("min", "max"))
    mean, spread = (_number(name, key, entry.get(key)) for key in ("mu", "sigma"))
    if normal and (mean is None or spread is None):
        raise UsageError(f"Expected mu and sigma of {name!r} with the scaling {scaling}.")
    if whole and not all(end is None or end.is_integer() for end in (low, high)):
        raise UsageError(f"Expected a whole min and max of {name!r}, got {low} and {high}.")
    return Parameter(
        name=name,
        setting=setting,
        kind="int" if whole else "float",
        low=low if low is None or not whole else round(low),
        high=high if high is None or not whole else round(high),
        log=scaling in ("loguniform", "lognormal"),
        points=_whole(f"gridSize of {name!r}", points, GRID_SIZE, 1),
        mu=mean,
        sigma=1.0 if spread is None else spread,
    )


def _values(name: str, values: Any) -> tuple[Any, ...]:
    if not isinstance(values, list) or not values:
        raise UsageError(f"Expected a list of values of {name!r}, got {values!r}.")
    return tuple(different(values))


def _whole(name: str, value: Any, default: int, least: int) -> int:
    if value is None:
        return default
    if type(value) is not int or value < least:
        raise UsageError(f"Expected {name} as a whole number >= {least}, got {value!r}.")
    return value


def _number(name: str, key: str, value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise UsageError(f"Expected {key} of {name!r} as a number, got {value!r}.")
    return None if value is None else float(value)
