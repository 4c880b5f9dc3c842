"""The result of a sweep: one row for each simulation, and their ranking."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedloom.simulation.sweep.objective import Objective
from fedloom.simulation.sweep.settings import Sweep

FINISHED, PRUNED, FAILED = "finished", "pruned", "failed"
_ORDER = {FINISHED: 0, PRUNED: 1, FAILED: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One simulation of a sweep, or its repeats with the same settings merged.

    Attributes:
        trial: its number, from 1.
        point: number of its settings, from 1; repeats share it.
        state: `finished`, `pruned` or `failed`.
        value: of the objective; of a pruned trial its last value.
        spread: largest minus smallest value of repeats.
        parameters: values of the parameters by name.
        derived: values of derived settings.
        settings: all replaced settings of the experiment, by dotted name.
        rounds: training rounds that it ran.
        seconds: its time, including its start.
        reason: why it failed, or a remark.
    """

    trial: int
    point: int
    state: str
    value: float | None
    spread: float | None = None
    parameters: dict[str, Any]
    derived: dict[str, Any]
    settings: dict[str, Any]
    rounds: int = 0
    seconds: float = 0.0
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values; infinities, which JSON lacks, are None."""
        values = asdict(self)
        finite = self.value is not None and math.isfinite(self.value)
        return values if finite else {**values, "value": None}

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
        return sorted(merged(self.rows), key=lambda row: _rank(row, self.sweep.objective))

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


def merged(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Repeats of the same settings merged to one row: the mean of those that finished."""
    groups: dict[int, list[TrialRow]] = {}
    for row in rows:
        groups.setdefault(row.point, []).append(row)
    return [_merge(group) for group in groups.values()]


def _merge(group: list[TrialRow]) -> TrialRow:
    if len(group) == 1:
        return group[0]
    state = min((row.state for row in group), key=_ORDER.__getitem__)
    alike = [row for row in group if row.state == state]
    values = [row.value for row in alike if row.value is not None]
    finite = all(map(math.isfinite, values))
    reasons = dict.fromkeys(row.reason for row in group if row.reason)
    return replace(
        alike[0],
        value=statistics.fmean(values) if values else None,
        spread=max(values) - min(values) if values and finite else None,
        rounds=round(statistics.fmean(row.rounds for row in alike)),
        seconds=sum(row.seconds for row in group),
        reason="; ".join(reasons),
    )
