"""A sweep, read from TOML: an experiment, the parameters that vary, and the objective.

    experiment = "digits.toml"          # beside this file; or a table [experiment]
    metric = "accuracy"                 # or: rounds_to_accuracy = 0.97
    algorithm = "grid"                  # grid, random, tpe

    [parameters]
    "train.batch_size" = [8, 32, 128, 512]
    "train.learning_rate" = { min = 0.01, max = 1.0, log = true }

Invariant: two sweeps with equal `identity()` make the same trials with one job.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import call, check_names, lookup, subtable, toml, typed, within
from fedloom.simulation.sweep import space
from fedloom.simulation.sweep.expression import Expression
from fedloom.simulation.sweep.objective import Objective, natural_direction
from fedloom.simulation.sweep.space import Parameter

ALGORITHMS = ("grid", "random", "tpe")
PRUNERS = ("none", "median", "asha", "hyperband")
DEFAULT_TRIALS = 20
MOST_COMBINATIONS = 100_000
"""Of a grid without a number of trials."""
_TARGETS = {"rounds_to_": "rounds", "virtual_s_to_": "virtual_s"}
_KNOWN = (
    "experiment", "name", "metric", "of", "objective", "algorithm", "trials", "repeats", "seed",
    "pruner", "parameters", "variables", "derived",
)  # fmt: skip
_RANGE = ("values", "min", "max", "log", "type", "points", "mu", "sigma")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruner:
    """How unpromising trials are ended early.

    Attributes:
        name: `none`, `median`, `asha` or `hyperband`.
        warmup_rounds: rounds without pruning.
        startup_trials: for `median`: trials without pruning.
        factor: for `asha` and `hyperband`: one in so many trials continues after a rung.

    Raises:
        UsageError: the name is unknown or a number is too small.
    """

    name: str = "none"
    warmup_rounds: int = 1
    startup_trials: int = 5
    factor: int = 3

    def __post_init__(self) -> None:
        name = lookup("a pruner", self.name, {each: each for each in PRUNERS})
        object.__setattr__(self, "name", name)
        for name, least in (("warmup_rounds", 1), ("startup_trials", 1), ("factor", 2)):
            if type(value := getattr(self, name)) is not int or value < least:
                raise UsageError(f"Expected pruner.{name} >= {least}, got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A search over an experiment's settings.

    Attributes:
        name: for displays.
        experiment: a file for `fedloom simulate`, or the settings.
        objective: of the search.
        algorithm: `grid`, `random` or `tpe`.
        parameters: at least one.
        derived: settings computed from parameters.
        trials: settings to try; None for 20, or for a whole grid.
        repeats: simulations for each of them, with consecutive seeds.
        seed: of the search and of every simulation; None for 0 and the experiment's seed.
        pruner: how unpromising trials are ended early.
        notes: remarks for the user.

    Raises:
        UsageError: a setting is invalid.
    """

    experiment: Path | Mapping[str, Any]
    objective: Objective
    parameters: tuple[Parameter, ...]
    name: str = "sweep"
    algorithm: str = "grid"
    derived: Mapping[str, Expression] = field(default_factory=dict)
    trials: int | None = None
    repeats: int = 1
    seed: int | None = None
    pruner: Pruner = field(default_factory=Pruner)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise UsageError(
                f"Expected an algorithm of {', '.join(ALGORITHMS)}, got {self.algorithm!r}."
            )
        if not self.parameters and self.repeats == 1:
            raise UsageError("[parameters] needs at least one parameter.")
        for name, count in (("trials", self.trials), ("repeats", self.repeats)):
            if count is not None and (type(count) is not int or count < 1):
                raise UsageError(f"Expected {name} >= 1, got {count!r}.")
        if self.seed is not None and (type(self.seed) is not int or self.seed < 0):
            raise UsageError(f"Expected seed >= 0, got {self.seed!r}.")
        self._check_names()
        self._check_formulas()
        if self.algorithm == "grid":
            self._check_grid()

    def _check_grid(self) -> None:
        size = space.grid_size(self.parameters)
        if size > MOST_COMBINATIONS and self.trials is None:
            raise UsageError(
                f"The grid has {size:,} combinations, more than {MOST_COMBINATIONS:,}. Give fewer "
                'values, or set algorithm = "random" and trials.'
            )

    def _check_names(self) -> None:
        settings = [p.setting for p in self.parameters if p.setting] + list(self.derived)
        names = [p.name for p in self.parameters]
        if twice := sorted({name for name in settings if settings.count(name) > 1}):
            raise UsageError(f"Settings that occur more than once: {', '.join(twice)}.")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(f"Names that occur more than once: {', '.join(twice)}.")
        if self.seed is not None and "seed" in settings:
            raise UsageError("Set seed as a parameter or as the sweep's seed, not both.")
        if self.repeats > 1 and "seed" in settings:
            raise UsageError(
                f"Expected one of seed and repeats = {self.repeats}: each repeat has its own seed. "
                "Remove seed from the parameters, or leave repeats and --seeds out."
            )

    def _check_formulas(self) -> None:
        known = {p.name for p in self.parameters} | {p.setting for p in self.parameters}
        for setting, formula in self.derived.items():
            if unknown := sorted(formula.names - known):
                raise UsageError(
                    f"The formula of {setting!r} has unknown names: {', '.join(unknown)}. Add them "
                    "to [parameters], or to [variables] if they are not settings of the experiment."
                )
        used = {name for formula in self.derived.values() for name in formula.names}
        if idle := [p.name for p in self.parameters if p.setting is None and p.name not in used]:
            raise UsageError(f"No formula in [derived] uses the variables {', '.join(idle)}.")

    @cached_property
    def constants(self) -> frozenset[str]:
        """Parameters with one value."""
        return frozenset(p.name for p in self.parameters if p.num_values == 1)

    @cached_property
    def points(self) -> tuple[dict[str, Any], ...]:
        """The grid's combinations that give different settings, in order, as in the study."""
        size = space.grid_size(self.parameters)
        grid = (space.combination(self.parameters, i) for i in range(size))
        return self._different(grid, self.trials)

    def combinations(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Every combination of a grid, and the number from 1 of the point with its settings."""
        numbers = {self.key(point): number for number, point in enumerate(self.points, 1)}
        for index in range(space.grid_size(self.parameters)):
            drawn = space.combination(self.parameters, index)
            if (number := numbers.get(self.key(drawn))) is not None:
                yield drawn, number

    @cached_property
    def num_points(self) -> int:
        """Number of different settings at most."""
        if self.algorithm == "grid":
            return len(self.points)
        wanted = DEFAULT_TRIALS if self.trials is None else self.trials
        if space.space_size(self.parameters) is None:
            return wanted
        return len(self._different(space.every(self.parameters), wanted))

    def _different(
        self, drawn: Iterable[dict[str, Any]], most: int | None
    ) -> tuple[dict[str, Any], ...]:
        """Combinations that give different settings, the first of equal ones, at most so many."""
        found: dict[str, dict[str, Any]] = {}
        for each in drawn:
            found.setdefault(self.key(each), each)
            if len(found) == most:
                break
        return tuple(found.values())

    def key(self, drawn: Mapping[str, Any]) -> str:
        """A text that is equal for draws that give the same settings."""
        try:
            return space.key(self._chosen(drawn))
        except UsageError:  # a formula without a value: its trial will say so
            return space.key(space.decode(self.parameters, drawn))

    @cached_property
    def file(self) -> tuple[bytes, Mapping[str, Any]]:
        """The experiment's file: its bytes, and its settings unless it is Python.

        Raises:
            UsageError: it cannot be read.
        """
        if isinstance(self.experiment, Mapping):
            return b"", self.experiment
        source = self.source_file(self.experiment)
        try:
            content = source.read_bytes()
        except OSError as error:
            raise UsageError(
                f"The experiment {source} cannot be read: {error.strerror}."
            ) from error
        return content, {} if source.suffix == ".py" else toml.read(source, "an experiment")

    @cached_property
    def own(self) -> Mapping[str, Any]:
        """The experiment's own settings; a Python file is run for them.

        Raises:
            UsageError: it cannot be read, or is an `Experiment` without settings to replace.
        """
        _, settings = self.file
        if (
            isinstance(self.experiment, Mapping)
            or self.source_file(self.experiment).suffix != ".py"
        ):
            return settings
        from fedloom.simulation import config  # noqa: PLC0415 - it loads PyTorch

        found = config.from_python(str(self.experiment))
        if not isinstance(found, Mapping):
            raise UsageError(
                f"A sweep replaces settings, and {self.experiment} is an Experiment made in "
                "Python. Make its settings there, as a mapping."
            )
        return found

    def check_unchanged(self) -> None:
        """Check that the experiment's file is the same as at the start of the sweep.

        Raises:
            UsageError: its file was changed or removed.
        """
        if isinstance(self.experiment, Path):
            source = self.source_file(self.experiment)
            if not source.is_file() or source.read_bytes() != self.file[0]:
                raise UsageError(
                    f"{source} changed while the sweep was running. Restore it and run the same "
                    "command again, or begin a new sweep."
                )

    @staticmethod
    def source_file(experiment: Path) -> Path:
        """The file of an experiment that may be `FILE.py:NAME`."""
        name, _, _ = experiment.name.partition(":")
        return experiment.with_name(name)

    def settings(self, drawn: Mapping[str, Any], repeat: int = 0) -> dict[str, Any]:
        """The settings of one simulation, by dotted name.

        Args:
            drawn: value of each parameter, as stored in the study.
            repeat: number of the simulation with these settings.

        Raises:
            UsageError: a formula has no value.
        """
        chosen = self._chosen(drawn)
        if "workers" not in subtable(self.own, "engine"):
            chosen.setdefault("engine.workers", 1)
        return self.with_seed(chosen, repeat)

    def with_seed(self, settings: Mapping[str, Any], repeat: int) -> dict[str, Any]:
        """The settings with the seed of a repeat, unless they have one.

        One simulation for each of the settings has the experiment's own seed, as the first of
        several has.
        """
        if "seed" in settings or (self.repeats == 1 and self.seed is None):
            return dict(settings)
        first = typed("seed", self.own.get("seed", 0), int) if self.seed is None else self.seed
        return {**settings, "seed": first + repeat}

    def _repetitions(self) -> dict[str, int]:
        """The number of different settings of a grid that has fewer of them than combinations.

        Studies from before repetitions were left out number the trials of such a grid otherwise.
        """
        size = space.grid_size(self.parameters) if self.algorithm == "grid" else 0
        if size > MOST_COMBINATIONS:
            return {}
        grid = (space.combination(self.parameters, i) for i in range(size))
        num = len(self._different(grid, None))
        return {"different_settings": num} if num < size else {}

    def _chosen(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        values = space.decode(self.parameters, drawn)
        chosen = {p.setting: values[p.name] for p in self.parameters if p.setting}
        known = values | chosen
        return chosen | {name: formula.value(known) for name, formula in self.derived.items()}

    def identity(self) -> dict[str, Any]:
        """All that determines its trials, as JSON, but for their number: `trials` and `repeats`."""
        return {
            **self._repetitions(),
            "experiment": self._experiment_identity(),
            "metric": self.objective.title,
            "objective": self.objective.direction,
            "algorithm": self.algorithm,
            "seed": self.seed,
            "pruner": {n: getattr(self.pruner, n) for n in Pruner.__dataclass_fields__},
            "parameters": {p.name: _described(p) for p in self.parameters},
            "derived": {name: formula.text for name, formula in self.derived.items()},
        }

    def _experiment_identity(self) -> dict[str, Any]:
        content, settings = self.file
        if settings or isinstance(self.experiment, Mapping):
            return dict(settings)
        _, _, name = self.experiment.name.partition(":")
        named = {"name": name} if name else {}
        return {"sha256": hashlib.sha256(content).hexdigest(), **named}


def _described(parameter: Parameter) -> dict[str, Any]:
    fields = {name: getattr(parameter, name) for name in Parameter.__dataclass_fields__}
    return {n: list(v) if isinstance(v, tuple) else v for n, v in fields.items() if n != "name"}


def read(path: Path, *, experiment: str | None = None) -> Sweep:
    """Read a sweep file; its experiment's path is relative to it, unless `experiment` replaces it.

    Raises:
        UsageError: the file is invalid.
    """
    values = toml.read(path, "a sweep")
    if experiment is not None:
        values["experiment"] = str(Path(experiment).absolute())
    with within(path):
        return parse(values, folder=path.parent, name=path.stem)


def parse(values: Mapping[str, Any], *, folder: Path = Path(), name: str = "sweep") -> Sweep:
    """A sweep from its settings.

    Args:
        values: as in a sweep file.
        folder: that the experiment's path is relative to.
        name: if the settings have none.

    Raises:
        UsageError: a setting is invalid.
    """
    targets = [key for key in values if key.startswith(tuple(_TARGETS))]
    check_names(values, (*_KNOWN, *targets))
    trials = typed("trials", values.get("trials"), int | None)
    if "experiment" not in values:
        raise UsageError('A sweep needs experiment = "FILE.toml", or a table [experiment].')
    fixed = [parse_parameter(n, spec, n) for n, spec in subtable(values, "parameters").items()]
    free = [parse_parameter(n, spec, None) for n, spec in subtable(values, "variables").items()]
    return Sweep(
        name=typed("name", values.get("name", name), str),
        experiment=locate(values["experiment"], folder),
        objective=_objective(values, targets),
        algorithm=typed("algorithm", values.get("algorithm", "grid"), Literal[ALGORITHMS]),
        parameters=(*fixed, *free),
        derived=parse_derived(subtable(values, "derived")),
        trials=None if values.get("algorithm", "grid") == "grid" else trials,
        repeats=typed("repeats", values.get("repeats", 1), int),
        seed=typed("seed", values.get("seed"), int | None),
        pruner=_pruner(values.get("pruner", "none")),
    )


def locate(experiment: Any, folder: Path) -> Path | Mapping[str, Any]:
    """The experiment's file or settings, with paths relative to `folder`.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(experiment, str):
        return folder / Path(experiment).expanduser()
    if not isinstance(experiment, Mapping):
        raise UsageError(f"Expected experiment as a path or a table, got {experiment!r}.")
    data = experiment.get("data")
    if isinstance(data, Mapping) and isinstance(data.get("folder"), str):
        data = {**data, "folder": str(folder / Path(data["folder"]).expanduser())}
        return {**experiment, "data": data}
    return experiment


def _objective(values: Mapping[str, Any], targets: list[str]) -> Objective:
    if len(targets) + ("metric" in values) > 1:
        raise UsageError(f"Set one objective, not {', '.join(targets)} and metric.")
    of = typed("of", values.get("of", "last"), Literal["last", "best"])
    direction = values.get("objective")
    typed("objective", direction, Literal["maximize", "minimize"] | None)
    if not targets:
        metric = typed("metric", values.get("metric", "accuracy"), str)
        return Objective(metric=metric, direction=direction or natural_direction(metric), of=of)
    key = targets[0]
    prefix = next(prefix for prefix in _TARGETS if key.startswith(prefix))
    target = typed(key, values[key], float)
    if direction == "maximize":
        raise UsageError(f'Expected objective = "minimize" with {key}, got {direction!r}.')
    count: Any = _TARGETS[prefix]
    metric = key.removeprefix(prefix)
    return Objective(metric=metric, direction="minimize", target=float(target), count=count)


def _pruner(value: Any) -> Pruner:
    table = {"name": value} if isinstance(value, str) else subtable({"pruner": value}, "pruner")
    return call(Pruner, table, table="pruner")


def parse_derived(table: Mapping[str, Any]) -> dict[str, Expression]:
    """Formulas by their setting.

    Raises:
        UsageError: a formula is invalid.
    """
    for name, text in table.items():
        typed(f"derived.{name}", text, str)
    return {name: Expression(text) for name, text in table.items()}


def parse_parameter(name: str, spec: Any, setting: str | None) -> Parameter:
    """One parameter: a list of values, a range, a normal distribution, or a constant.

    Raises:
        UsageError: it is none of them.
    """
    if isinstance(spec, list):
        spec = {"values": spec}
    if not isinstance(spec, Mapping):
        return Parameter(name=name, setting=setting, values=(spec,))
    table = f"parameters.{name}"
    try:
        check_names(spec, _RANGE, table)
    except UsageError as error:
        raise UsageError(
            f'{error} A dotted name needs quotes in TOML: "train.batch_size" = …'
        ) from None
    if "values" in spec:
        return _choice(name, spec, setting)
    for key in ("min", "max", "mu", "sigma"):
        typed(f"{table}.{key}", spec.get(key), float | None)
    typed(f"{table}.points", spec.get("points"), int | None)
    low, high = spec.get("min"), spec.get("max")
    whole = isinstance(low, int) and isinstance(high, int)
    default: Any = "int" if whole else "float"
    kind = typed(f"{table}.type", spec.get("type", default), Literal["int", "float"])
    if kind == "int" and any(x is not None and x != round(x) for x in (low, high)):
        raise UsageError(f"Expected whole min and max of {name!r}, got {low} and {high}.")
    return Parameter(
        name=name,
        setting=setting,
        kind=kind,
        low=low if low is None or kind == "int" else float(low),
        high=high if high is None or kind == "int" else float(high),
        log=typed(f"{table}.log", spec.get("log", False), bool),
        points=spec.get("points"),
        mu=spec.get("mu"),
        sigma=spec.get("sigma", 1.0),
    )


def _choice(name: str, spec: Mapping[str, Any], setting: str | None) -> Parameter:
    values = spec["values"]
    if not isinstance(values, list) or not values:
        raise UsageError(f"Expected values = […] of {name!r}, got {values!r}.")
    if more := sorted(set(spec) - {"values", "type"}):
        raise UsageError(f"Expected values or a range of {name!r}, got values and {more[0]}.")
    kinds = Literal["int", "float", "categorical"]
    kind = typed(f"parameters.{name}.type", spec.get("type", "categorical"), kinds)
    if kind == "float":
        values = [float(value) for value in values]
    return Parameter(name=name, setting=setting, values=tuple(values))
