"""Values read off a simulation's rounds: curves, milestones, balance, totals.

Pure; plots, the report and the progress display all use it, so that they cannot disagree.

Legend: a Point is (x, y); y is NaN if a metric was measured and was not finite.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedloom.simulation.output.history import RoundRecord
from fedloom.simulation.output.words import is_share

Point = tuple[float, float]

PHASES = ("reported", "training", "offered", "declined", "failed", "refused", "lost")
"""Phases of a cohort's members at the end of a round, in stacking order."""

_PHASE_NAMES = {"offered": "not begun", "training": "not finished"}


def phase_name(phase: str) -> str:
    """A phase's name in a past round.

    >>> phase_name("training"), phase_name("lost")
    ('not finished', 'lost')
    """
    return _PHASE_NAMES.get(phase, phase)


SOURCES = {
    "test": "test examples",
    "evaluation": "clients' held-out examples",
    "training": "during training",
}
"""The fields of a record with metrics, most reliable first, and what they are measured on."""

_HUGE = 1e200
"""Larger values are treated as infinite: the model diverged, and no axis could show them."""

_MILESTONES = (*(share / 10 for share in range(1, 10)), 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestone:
    """When a metric was first reached.

    Attributes:
        value: that was reached.
        round: its number.
        wall_s: seconds of computing until then, over all processes of the simulation.
        virtual_s: the virtual clock then; None without devices.
        moved_bytes: both ways until then.
    """

    value: float
    round: int
    moved_bytes: int
    wall_s: float
    virtual_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """One worker over the whole simulation.

    Attributes:
        name: of the worker.
        clients: trained by it.
        busy_s: seconds of training.
        share: busy time over the rounds' wall time, from 0 to 1.
    """

    name: str
    clients: int
    busy_s: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotals:
    """Sums over a simulation.

    Attributes:
        rounds: number of rounds.
        trained: training rounds committed.
        abandoned: rounds abandoned.
        clients: accepted updates.
        examples: that the accepted updates were trained on.
        wall_s: seconds of the rounds, over all processes of the simulation.
        virtual_s: the virtual clock at the end; None without devices.
        clients_per_s: accepted updates per second of the rounds' wall time.
        bytes_down: that clients downloaded.
        bytes_up: that clients uploaded.
    """

    rounds: int
    trained: int
    abandoned: int
    clients: int
    examples: int
    wall_s: float
    virtual_s: float | None
    clients_per_s: float
    bytes_down: int
    bytes_up: int


def totals(records: Sequence[RoundRecord]) -> RunTotals:
    """Add up all rounds."""
    clients = sum(record.accepted for record in records)
    round_s = sum(record.round_wall_s for record in records)
    return RunTotals(
        rounds=len(records),
        trained=records[-1].trained if records else 0,
        abandoned=sum(record.state == "abandoned" for record in records),
        clients=clients,
        examples=sum(record.examples for record in records),
        wall_s=(wall_times(records) or [0.0])[-1],
        virtual_s=records[-1].virtual_s if records else None,
        clients_per_s=clients / round_s if round_s > 0 else 0.0,
        bytes_down=sum(record.bytes_down for record in records),
        bytes_up=sum(record.bytes_up for record in records),
    )


def wall_times(records: Iterable[RoundRecord]) -> list[float]:
    """Seconds of computing until the end of each round.

    `wall_s` counts from the first round of a process, so after a resumption it starts at 0 again.
    """
    times: list[float] = []
    before = last = 0.0
    for record in records:
        if record.wall_s < last:
            before += last
        last = record.wall_s
        times.append(before + last)
    return times


def main_metric(records: Iterable[RoundRecord]) -> tuple[str, str] | None:
    """Source and name of the metric that best shows the quality of the model.

    Returns:
        Such as `("test", "accuracy")`; None if nothing was measured.
    """
    records = list(records)
    return main_of({source: metric_names(records, source) for source in SOURCES})


def main_of(names: Mapping[str, Iterable[str]]) -> tuple[str, str] | None:
    """The same from the names of each source's metrics.

    >>> main_of({"test": ["loss", "accuracy"], "training": ["loss"]})
    ('test', 'accuracy')

    Order: accuracy, other shares, loss, any metric; training metrics only without others.
    """
    known = [(source, name) for source in SOURCES for name in sorted(names.get(source, ()))]
    known = [pair for pair in known if pair[0] != "training"] or known
    for wanted in (lambda name: name == "accuracy", is_share, lambda name: name == "loss"):
        if found := [pair for pair in known if wanted(pair[1])]:
            return found[0]
    return known[0] if known else None


def metric_names(records: Iterable[RoundRecord], source: str) -> list[str]:
    """All metrics of a source, in alphabetical order."""
    return sorted({name for record in records for name in values_of(record, source)})


def values_of(record: RoundRecord, source: str) -> dict[str, float]:
    """A source's metrics in a round."""
    return dict(getattr(record, source))


Over = Literal["round", "virtual time", "bytes"]
"""What a curve is drawn over: rounds, seconds of the virtual clock, or bytes both ways so far."""


def series(
    records: Sequence[RoundRecord], source: str, metric: str, *, over: Over = "round"
) -> list[Point]:
    """A metric's curve.

    Args:
        records: all rounds.
        source: a key of SOURCES.
        metric: its name.
        over: the horizontal axis.
    """
    points = []
    moved = 0
    for record in records:
        moved += record.bytes_down + record.bytes_up
        value = values_of(record, source).get(metric)
        x = {"round": record.round, "virtual time": record.virtual_s, "bytes": moved}[over]
        if value is not None and x is not None:
            points.append((float(x), value if abs(value) < _HUGE else math.nan))
    return points


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Quantiles of a metric over the clients of each round.

    Attributes:
        lows: the lowest quantile by round.
        middles: the median by round; empty if not requested.
        highs: the highest quantile by round.
        shares: of the clients below `lows` and below `highs`, such as ("0.1", "0.9").
    """

    lows: tuple[Point, ...]
    middles: tuple[Point, ...]
    highs: tuple[Point, ...]
    shares: tuple[str, str]

    def label(self) -> str:
        """The quantiles, for a legend.

        >>> Band(lows=(), middles=(), highs=(), shares=("0.1", "0.9")).label()
        '10th to 90th percentile'
        """
        low, high = (f"{100 * float(share):g}{_ordinal(share)}" for share in self.shares)
        return f"{low} to {high} percentile"


def band(records: Iterable[RoundRecord], source: str, metric: str) -> Band | None:
    """Quantiles of a metric over clients; None for fewer than two quantiles."""
    lows: list[Point] = []
    middles: list[Point] = []
    highs: list[Point] = []
    shares = "", ""
    for record in records:
        known = record.spread.get(source, {}).get("quantiles", {}).get(metric, {})
        ordered = sorted(known, key=float)
        if len(known) < 2 or max(abs(known[ordered[0]]), abs(known[ordered[-1]])) >= _HUGE:
            continue
        shares, x = (ordered[0], ordered[-1]), float(record.round)
        lows.append((x, known[ordered[0]]))
        highs.append((x, known[ordered[-1]]))
        if "0.5" in known:
            middles.append((x, known["0.5"]))
    if not lows:
        return None
    return Band(lows=tuple(lows), middles=tuple(middles), highs=tuple(highs), shares=shares)


def _ordinal(share: str) -> str:
    number = 100 * float(share)
    if number % 1 or number % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(int(number) % 10, "th")


def axes_of(records: Sequence[RoundRecord]) -> list[Over]:
    """What the curves of these rounds can be drawn over."""
    found: list[Over] = ["round"]
    if any(record.bytes_down + record.bytes_up for record in records):
        found.append("bytes")
    return [*found, "virtual time"] if has_virtual_time(records) else found


def has_virtual_time(records: Iterable[RoundRecord]) -> bool:
    """Whether devices were modelled."""
    return any(record.virtual_s is not None for record in records)


def best(points: Iterable[Point], metric: str) -> Point | None:
    """The best point of a curve, the first of equals; None if none is finite."""
    finite = [point for point in points if math.isfinite(point[1])]
    sign = 1 if is_share(metric) else -1
    return max(finite, key=lambda point: (sign * point[1], -point[0]), default=None)


def milestones(
    records: Sequence[RoundRecord], source: str, metric: str, *, most: int = 5
) -> list[Milestone]:
    """When shares such as 90% were first reached, the highest ones.

    Args:
        records: all rounds.
        source: a key of SOURCES.
        metric: a share; other metrics have no milestones.
        most: milestones at most.
    """
    if not is_share(metric):
        return []
    found: list[Milestone] = []
    left = list(_MILESTONES)
    moved = 0
    for record, wall_s in zip(records, wall_times(records), strict=True):
        moved += record.bytes_down + record.bytes_up
        value = values_of(record, source).get(metric, math.nan)
        while left and value >= left[0]:
            found.append(
                Milestone(
                    value=left.pop(0),
                    round=record.round,
                    moved_bytes=moved,
                    wall_s=wall_s,
                    virtual_s=record.virtual_s,
                )
            )
    # Of several in one round only the highest is kept.
    last_by_round = {milestone.round: milestone for milestone in found}
    return list(last_by_round.values())[-most:]


def workers(records: Iterable[RoundRecord]) -> list[WorkerLoad]:
    """The load of each worker, in the order of first appearance."""
    clients: Counter[str] = Counter()
    busy_s: dict[str, float] = {}
    round_s = 0.0
    for record in records:
        round_s += record.round_wall_s if record.shares else 0.0
        for share in record.shares:
            clients[share.worker] += share.clients
            busy_s[share.worker] = busy_s.get(share.worker, 0.0) + share.busy_s
    return [
        WorkerLoad(
            name=name,
            clients=clients[name],
            busy_s=busy,
            share=min(busy / round_s, 1.0) if round_s > 0 else 0.0,
        )
        for name, busy in busy_s.items()
    ]


def balance(record: RoundRecord) -> float | None:
    """Mean over largest busy time of the workers: 1 if none waited for another.

    Returns:
        From 0 to 1; None with fewer than two workers, or without busy times.
    """
    times = [share.busy_s for share in record.shares]
    longest = max(times, default=0.0)
    return sum(times) / len(times) / longest if len(times) > 1 and longest > 0 else None


def mean_balance(records: Iterable[RoundRecord]) -> float | None:
    """The balance over all rounds, weighted by the busy time of the slowest worker."""
    total = longest = 0.0
    for record in records:
        if (value := balance(record)) is not None:
            peak = max(share.busy_s for share in record.shares)
            total, longest = total + value * peak, longest + peak
    return total / longest if longest > 0 else None


def phases(records: Iterable[RoundRecord]) -> list[str]:
    """Every final phase of any member of a cohort, in stacking order."""
    seen = {phase for record in records for phase, members in record.counts.items() if members}
    return [p for p in PHASES if p in seen] + sorted(seen.difference(PHASES))


def thinned(points: Sequence[Point], most: int = 600) -> list[Point]:
    """Fewer points for the same picture: the ends, and each section's lowest and highest.

    Args:
        points: in order of x.
        most: points at most; at least 8.
    """
    if len(points) <= most:
        return list(points)
    num_stretches = (most - 2) // 3
    kept = {0, len(points) - 1}
    for stretch in range(num_stretches):
        start = stretch * len(points) // num_stretches
        places = range(start, (stretch + 1) * len(points) // num_stretches)
        finite = [place for place in places if math.isfinite(points[place][1])]
        if len(finite) < len(places):
            kept.add(next(place for place in places if not math.isfinite(points[place][1])))
        if finite:
            kept.update((_extreme(points, finite, min), _extreme(points, finite, max)))
    return [points[place] for place in sorted(kept)]


def _extreme(points: Sequence[Point], places: Sequence[int], pick: Callable[..., int]) -> int:
    return pick(places, key=lambda place: points[place][1])


def binned(
    records: Sequence[RoundRecord], names: Sequence[str], most: int
) -> tuple[list[float], list[list[float]]]:
    """Members by phase for a stacked picture: a column is the mean of neighbouring rounds.

    Args:
        records: all rounds, at least one.
        names: of phases, as `phases` gives them.
        most: columns at most.

    Returns:
        The edges of the columns, from half a round before the first to half a round after the
        last, and for each column the mean number of members in each phase.
    """
    width = -(-len(records) // most)
    starts = range(0, len(records), width)
    columns = [records[start : start + width] for start in starts]
    edges = [column[0].round - 0.5 for column in columns] + [records[-1].round + 0.5]
    means = [[sum(r.counts.get(n, 0) for r in c) / len(c) for n in names] for c in columns]
    return edges, means
