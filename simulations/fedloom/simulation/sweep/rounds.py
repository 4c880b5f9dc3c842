"""A trial's rounds on disk, one JSON line each; its curve is drawn from them."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedloom.simulation.output.metrics import plain
from fedloom.simulation.sweep.objective import Objective

_LEFT_OUT = ("shares",)

Over = Literal["trained", "bytes", "virtual_s"]
"""What a curve is drawn over."""


class RoundsFile:
    """Writes rounds as they come.

    Args:
        path: replaced if it exists; an interrupted trial starts again.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)

    def add(self, record: Mapping[str, Any]) -> None:
        """Write one round; numbers that are not finite become null."""
        kept = {name: value for name, value in record.items() if name not in _LEFT_OUT}
        self._file.write(json.dumps(plain(kept)) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Measured(NamedTuple):
    """A round in which the metric was measured.

    Attributes:
        trained: rounds trained until then.
        bytes: down and up until then.
        virtual_s: the virtual clock then; None without devices.
        value: of the metric.
    """

    trained: int
    bytes: int
    virtual_s: float | None
    value: float


def measured(path: Path, objective: Objective) -> list[Measured]:
    """The rounds of a trial in which the metric was measured; empty without a file."""
    if not path.exists():
        return []
    found, sent = [], 0
    for line in path.read_text("utf-8").splitlines():
        record = json.loads(line)
        sent += record.get("bytes_down", 0) + record.get("bytes_up", 0)
        value = objective.measured(record)
        if value is not None:
            found.append(Measured(record["trained"], sent, record.get("virtual_s"), value))
    return found


class MeanPoint(NamedTuple):
    """A point of a mean curve.

    Attributes:
        x: mean of what the curve is over.
        mean: of the metric; NaN if a value is not finite.
        deviation: sample standard deviation of the metric, n - 1; None for one curve.
    """

    x: float
    mean: float
    deviation: float | None


def mean_curve(curves: Sequence[Sequence[Measured]], over: Over) -> list[MeanPoint]:
    """The mean of the seeds' curves round by round, for the rounds that all of them measured.

    A mean over the seeds that happen to be left would jump where one of them ends.
    """
    by_round = [{each.trained: each for each in curve} for curve in curves]
    shared = [n for n in (by_round or [{}])[0] if all(n in each for each in by_round)]
    found = []
    for number in shared:
        here = [each[number] for each in by_round]
        xs = [x for each in here if (x := getattr(each, over)) is not None]
        if len(xs) == len(here):
            found.append(_place(xs, [each.value for each in here]))
    return found


def _place(xs: Sequence[float], values: Sequence[float]) -> MeanPoint:
    x = statistics.fmean(xs)
    if not all(map(math.isfinite, values)):
        return MeanPoint(x, math.nan, None)
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return MeanPoint(x, statistics.fmean(values), deviation)
