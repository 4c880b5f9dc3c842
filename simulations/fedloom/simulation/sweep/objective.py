"""The objective of a sweep: a metric's last or best value, or the time until it reaches a target.

Rounds to a target are counted as in McMahan et al. (2017), "Communication-efficient learning of
deep networks from decentralized data", section 3: the curve is made monotone by taking the best
value so far, and the crossing is interpolated linearly between the two rounds around it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedloom.protocol.errors import UsageError
from fedloom.server.engine import mode_of

Direction = Literal["maximize", "minimize"]
SOURCES = ("test", "evaluation", "training")
"""Sources of metrics; `accuracy` without a source is `test.accuracy`."""
TRAINED = "trained"
"""Rounds trained, as a metric: every simulation has it."""


def natural_direction(metric: str) -> Direction:
    """The direction in which a metric improves; see `fedloom.server.engine.mode_of`.

    Raises:
        UsageError: it is unknown.
    """
    mode = mode_of(metric)
    if mode is None:
        raise UsageError(
            f'Expected objective with the metric {metric!r}, got none: set "minimize" if less is '
            'better, or "maximize" if more is.'
        )
    return "minimize" if mode == "min" else "maximize"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The value by which trials are compared.

    Attributes:
        metric: such as `accuracy` (on the test examples), `evaluation.loss`, `training.loss`.
        direction: of the objective.
        of: the metric's value in the `last` round that measured it, or its `best` value.
        target: value of the metric to reach; the objective is then the time until it is reached.
        count: unit of that time, `rounds` or `virtual_s`.

    Raises:
        UsageError: the metric's source is unknown.
    """

    metric: str
    direction: Direction
    of: Literal["last", "best"] = "last"
    target: float | None = None
    count: Literal["rounds", "virtual_s"] = "rounds"

    def __post_init__(self) -> None:
        source, dot, name = self.metric.partition(".")
        if (not name and dot) or (dot and source not in SOURCES) or not self.metric:
            raise UsageError(
                f"Expected a metric such as accuracy or one of {', '.join(SOURCES)}.NAME, "
                f"got {self.metric!r}."
            )

    @property
    def title(self) -> str:
        """Its name in tables and axes."""
        if self.target is None:
            return self.metric if self.of == "last" else f"best {self.metric}"
        unit = "rounds" if self.count == "rounds" else "virtual seconds"
        return f"{unit} to {self.metric} {self.target:g}"

    @property
    def rising(self) -> bool:
        """Whether a larger metric is better."""
        if self.target is not None:
            return mode_of(self.metric) != "min"
        return self.direction == "maximize"

    @property
    def worst(self) -> float:
        """The value of a trial that diverged or never reached the target."""
        return -math.inf if self.direction == "maximize" else math.inf

    def measured(self, record: Mapping[str, Any]) -> float | None:
        """The metric in a round's record, or None if it was not measured."""
        if self.metric == TRAINED:
            return float(record[TRAINED])
        source, dot, name = self.metric.partition(".")
        values = record.get(source if dot else "test") or {}
        value = values.get(name if dot else self.metric)
        return None if value is None else float(value)

    def signal(self, measured: float) -> float:
        """A round's value for pruning, with the sign for the study's direction."""
        value = measured if math.isfinite(measured) else (-math.inf if self.rising else math.inf)
        return value if self.rising == (self.direction == "maximize") else -value


@dataclass(slots=True)
class ObjectiveMeter:
    """One trial's objective, computed round by round.

    Attributes:
        objective: of the sweep.
        last: the newest value of the metric.
        best: the best value of the metric.
        reached: when the target was reached, in its unit; None before that.
        diverged: whether the newest value is not finite.
    """

    objective: Objective
    last: float | None = None
    best: float | None = None
    reached: float | None = None
    diverged: bool = False
    _before: tuple[float, float] | None = field(default=None, repr=False)

    def add(self, record: Mapping[str, Any]) -> float | None:
        """Add a round's record.

        Returns:
            The metric in it, or None if it was not measured.

        Raises:
            UsageError: the objective needs virtual time and the round has none.
        """
        value = self.objective.measured(record)
        if value is None:
            return None
        self.last, self.diverged = value, not math.isfinite(value)
        if self.diverged:
            return value
        better = max if self.objective.rising else min
        self.best = value if self.best is None else better(self.best, value)
        if self.objective.target is not None and self.reached is None:
            self._advance(self._place(record), self.best, self.objective.target)
        return value

    def value(self) -> float | None:
        """The trial's value; None if its metric was never measured."""
        if self.last is None:
            return None
        if self.objective.target is not None:
            return self.objective.worst if self.reached is None else self.reached
        chosen = self.last if self.objective.of == "last" else self.best
        return self.objective.worst if chosen is None or not math.isfinite(chosen) else chosen

    def _place(self, record: Mapping[str, Any]) -> float:
        place = record.get("trained" if self.objective.count == "rounds" else "virtual_s")
        if place is None:
            raise UsageError(
                "The objective counts virtual seconds and the rounds have none. Add [devices] to "
                "the experiment, or count rounds."
            )
        return float(place)

    def _advance(self, place: float, best: float, target: float) -> None:
        if best >= target if self.objective.rising else best <= target:
            self.reached = place
            if self._before is not None:
                earlier, below = self._before
                self.reached = earlier + (place - earlier) * (target - below) / (best - below)
        self._before = (place, best)
