"""The result of a sweep: one row for each simulation, and their ranking."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedloom.simulation.sweep.objective import Objective
from fedloom.simulation.sweep.settings import Sweep

FINISHED, PRUNED, FAILED = "finished", "pruned", "failed"
_AVERAGED = ("value", "rounds", "seconds", "wall_s", "virtual_s", "bytes_down", "bytes_up")
_ORDER = {FINISHED: 0, PRUNED: 1, FAILED: 2}


@dataclass(frozen=True, slots=True)
class Sample:
    """One quantity over the seeds of the same settings.

    Attributes:
        values: one for each simulation.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        """Arithmetic mean; infinite with an infinite value, None without values."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation, n - 1; None for fewer than two, or an infinite value."""
        finite = all(map(math.isfinite, self.values))
        return statistics.stdev(self.values) if len(self.values) > 1 and finite else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One simulation of a sweep, or the mean of its repeats with the same settings.

    Attributes:
        trial: its number, from 1.
        point: number of its settings, from 1; repeats share it.
        state: `finished`, `pruned` or `failed`.
        value: of the objective; of a pruned trial its last value.
        parameters: values of the parameters by name.
        derived: values of derived settings.
        settings: all replaced settings of the experiment, by dotted name.
        rounds: training rounds that it ran.
        seconds: its time, including its start.
        wall_s: seconds of its rounds.
        virtual_s: the virtual clock at its end; None without devices.
        bytes_down: that clients downloaded.
        bytes_up: of the clients' updates.
        reason: why it failed, or a remark.
        repeats: simulations that the sweep has with these settings.
        each: of repeats those whose mean this row is, all in its state.
    """

    trial: int
    point: int
    state: str
    value: float | None
    parameters: dict[str, Any]
    derived: dict[str, Any]
    settings: dict[str, Any]
    rounds: int = 0
    seconds: float = 0.0
    wall_s: float = 0.0
    virtual_s: float | None = None
    bytes_down: int = 0
    bytes_up: int = 0
    reason: str = ""
    repeats: int = 1
    each: "tuple[TrialRow, ...]" = ()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TrialRow":
        """A row of a study; fields of other versions are ignored."""
        return cls(
            **{f.name: values[f.name] for f in fields(cls) if f.name in values and f.name != "each"}
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values; infinities, which JSON lacks, are None."""
        values = asdict(replace(self, each=()))
        del values["each"]
        finite = self.value is not None and math.isfinite(self.value)
        return values if finite else {**values, "value": None}

    def sample(self, name: str = "value") -> Sample:
        """A numeric field over the repeats; missing values are left out."""
        found = (getattr(row, name) for row in self.each or (self,))
        return Sample(tuple(value for value in found if value is not None))

    @property
    def deviation(self) -> float | None:
        """Of the objective over the seeds; see `Sample`."""
        return self.sample().deviation

    @property
    def shown(self) -> dict[str, Any]:
        """Parameters by name, then derived settings."""
        return {**self.parameters, **self.derived}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """The result of a sweep that ended or was interrupted.

    Attributes:
        sweep: the search.
        folder: of its output.
        rows: of every simulation that ended, ordered by number.
        num_trials: number of simulations of the sweep.
    """

    sweep: Sweep
    folder: Path
    rows: tuple[TrialRow, ...]
    num_trials: int

    @property
    def ranking(self) -> list[TrialRow]:
        """Best first; finished before pruned before failed; repeats merged."""
        return sorted(
            merged(self.rows, self.sweep.repeats), key=lambda row: _rank(row, self.sweep.objective)
        )

    @property
    def best(self) -> TrialRow | None:
        """The best finished row; None if none has a value."""
        first = next(iter(self.ranking), None)
        usable = first is not None and first.state == FINISHED and first.value is not None
        return first if usable else None


def _rank(row: TrialRow, objective: Objective) -> tuple[int, float, int]:
    if row.value is None or math.isnan(row.value):
        return _ORDER[row.state], math.inf, row.trial
    sign = -1 if objective.direction == "maximize" else 1
    return _ORDER[row.state], sign * row.value, row.trial


def merged(rows: Sequence[TrialRow], repeats: int) -> list[TrialRow]:
    """Repeats of the same settings merged to one row: the mean of those that finished."""
    groups: dict[int, list[TrialRow]] = {}
    for row in rows:
        groups.setdefault(row.point, []).append(row)
    return [_merge(group, repeats) for group in groups.values()]


def _merge(group: list[TrialRow], repeats: int) -> TrialRow:
    state = min((row.state for row in group), key=_ORDER.__getitem__)
    alike = [row for row in group if row.state == state]
    reasons = dict.fromkeys(row.reason for row in group if row.reason)
    whole = replace(alike[0], each=tuple(alike), repeats=repeats, reason="; ".join(reasons))
    means: dict[str, Any] = {name: whole.sample(name).mean for name in _AVERAGED}
    means |= {name: round(means[name]) for name in ("rounds", "bytes_down", "bytes_up")}
    return replace(whole, **means)
