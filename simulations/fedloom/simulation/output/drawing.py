"""The report's charts: SVG paths in a frame, with labels in HTML.

Pure. The SVG of a chart is stretched to its frame; labels are text of the page: they keep their
size on a phone, use the page's colours, and can be searched and copied. Lines keep their width by
`vector-effect: non-scaling-stroke`.

Legend: a Label is (percent of the axis, text).
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedloom.simulation.output import curves, words
from fedloom.simulation.output.history import RoundRecord
from fedloom.simulation.output.scales import (
    AxisScale,
    byte_ticks,
    byte_unit,
    time_ticks,
    time_unit,
    whole_ticks,
)

WIDTH, HEIGHT = 1000.0, 500.0
"""Of the SVG's coordinates, before the frame stretches them."""

Label = tuple[float, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """One curve of a chart.

    Attributes:
        style: CSS class of its colour and dashes.
        name: for the legend.
        last: its last value, as text.
        path: SVG path data.
        dots: SVG path data of single points, drawn as round line ends.
    """

    style: str
    name: str
    last: str
    path: str
    dots: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """One layer of a stack.

    Attributes:
        style: CSS class of its colour.
        name: for the legend.
        last: its share of the whole, as text.
        path: SVG path data, closed.
    """

    style: str
    name: str
    last: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart, ready for the template.

    Attributes:
        title: of the chart.
        x_name: name of the horizontal axis, with its unit.
        x_labels: of the horizontal axis.
        y_labels: of the vertical axis, from the bottom.
        lines: curves.
        areas: layers of a stack, from the bottom.
        note: a warning, such as that the model diverged.
        hover: JSON of the values at each x, for report.js.
    """

    title: str
    x_name: str
    x_labels: tuple[Label, ...]
    y_labels: tuple[Label, ...]
    lines: tuple[ChartLine, ...] = ()
    areas: tuple[Area, ...] = ()
    note: str = ""
    hover: str = "[]"


def metric_charts(records: Sequence[RoundRecord]) -> list[Chart]:
    """Every metric by round, and by virtual time if devices were modelled; shares first."""
    names = {name for source in curves.SOURCES for name in curves.metric_names(records, source)}
    axes = curves.axes_of(records)
    ordered = sorted(names, key=lambda name: (name != "accuracy", not words.is_share(name), name))
    drawn = [_metric_chart(records, name, over) for name in ordered for over in axes]
    drawn += [_spread_chart(records, name) for name in ordered]
    return [chart for chart in drawn if chart]


def _metric_chart(records: Sequence[RoundRecord], metric: str, over: curves.Over) -> Chart | None:
    found = {s: curves.series(records, s, metric, over=over) for s in curves.SOURCES}
    found = {source: points for source, points in found.items() if points}
    every = [point for points in found.values() for point in points]
    if not every:
        return None
    high = max(x for x, _ in every)
    scale = AxisScale.of([y for _, y in every], metric)
    axis = _axis(over, high, records)
    thin = {source: curves.thinned(points) for source, points in found.items()}
    return Chart(
        title=f"{metric} by {over}",
        x_name=axis.name,
        x_labels=axis.labels,
        y_labels=tuple((100 * scale.place(tick), scale.label(tick)) for tick in scale.ticks),
        lines=tuple(_line(s, points, metric, axis, scale) for s, points in thin.items()),
        note=_divergence(found, metric),
        hover=_hover(thin, metric, axis, scale, over),
    )


def _spread_chart(records: Sequence[RoundRecord], metric: str) -> Chart | None:
    """A metric's quantiles over the clients of each round as bands, with medians."""
    bands = {s: b for s in curves.SOURCES if (b := curves.band(records, s, metric))}
    if not bands:
        return None
    every = [point for band in bands.values() for point in (*band.lows, *band.highs)]
    scale, axis = AxisScale.of([y for _, y in every], metric), _round_axis(records)
    medians = {s: curves.thinned(band.middles) for s, band in bands.items() if band.middles}
    return Chart(
        title=f"{metric} over clients by round",
        x_name=axis.name,
        x_labels=axis.labels,
        y_labels=tuple((100 * scale.place(tick), scale.label(tick)) for tick in scale.ticks),
        lines=tuple(
            replace(line, name=f"{line.name}, median")
            for line in (_line(s, points, metric, axis, scale) for s, points in medians.items())
        ),
        areas=tuple(_band(s, band, metric, axis, scale) for s, band in bands.items()),
        hover=_hover(medians, metric, axis, scale, "round"),
    )


def _band(source: str, band: curves.Band, metric: str, axis: "_Axis", scale: AxisScale) -> Area:
    edge = [*curves.thinned(band.highs), *reversed(curves.thinned(band.lows))]
    low, high = (words.metric(metric, points[-1][1]) for points in (band.lows, band.highs))
    return Area(
        style=f"band-{source}",
        name=band.label(),
        last=f"{low} to {high}",
        path=_path([_place(point, axis, scale) for point in edge]) + "Z",
    )


def clients_chart(records: Sequence[RoundRecord]) -> Chart | None:
    """Members of each round's cohort by their last phase, stacked."""
    names = curves.phases(records)
    if not names:
        return None
    edges, heights = curves.binned(records, names, 160)
    top = max(*map(sum, heights), 1.0)
    ticks = whole_ticks(0, top, 5)
    axis = _Axis(edges[0], edges[-1], "round", _round_axis(records).ticks)
    members = {name: sum(record.counts.get(name, 0) for record in records) for name in names}
    everyone = sum(members.values())
    below = [0.0] * len(heights)
    areas = []
    for place, name in enumerate(names):
        above = [low + column[place] for low, column in zip(below, heights, strict=True)]
        areas.append(
            Area(
                style=name if name in curves.PHASES else "other",
                name=curves.phase_name(name),
                last=words.share(members[name] / everyone),
                path=_steps(edges, below, above, axis, top),
            )
        )
        below = above
    columns = [
        [
            round(axis.percent((left + right) / 2), 2),
            _rounds(left, right),
            [
                [curves.phase_name(name), f"{value:.3g}"]
                for name, value in zip(names, column, strict=True)
                if value
            ],
        ]
        for left, right, column in zip(edges, edges[1:], heights, strict=False)
    ]
    return Chart(
        title="clients by round",
        x_name="round",
        x_labels=axis.labels,
        y_labels=tuple((100 * tick / top, words.count(int(tick))) for tick in ticks),
        areas=tuple(areas),
        hover=json.dumps(columns),
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    name: str
    ticks: tuple[Label, ...]

    def percent(self, x: float) -> float:
        return 100 * (x - self.low) / (self.high - self.low)

    @property
    def labels(self) -> tuple[Label, ...]:
        return tuple((self.percent(x), text) for x, text in self.ticks)


def _round_axis(records: Sequence[RoundRecord]) -> _Axis:
    first, last = records[0].round, records[-1].round
    ticks = tuple((tick, f"{tick:,.0f}") for tick in whole_ticks(first, last))
    low, high = (first, last) if first < last else (first - 1, last + 1)
    return _Axis(low, high, "round", ticks)


def _time_axis(high_s: float) -> _Axis:
    unit_s, unit = time_unit(high_s)
    ticks = tuple((tick, f"{tick / unit_s:g}") for tick in time_ticks(high_s))
    return _Axis(0.0, high_s or 1.0, f"virtual time ({unit})", ticks)


def _byte_axis(high: float) -> _Axis:
    size, unit = byte_unit(high)
    ticks = byte_ticks(high)
    return _Axis(
        0.0, high or 1.0, f"bytes up and down ({unit})", tuple((t, f"{t / size:g}") for t in ticks)
    )


def _axis(over: curves.Over, high: float, records: Sequence[RoundRecord]) -> _Axis:
    if over == "round":
        return _round_axis(records)
    return _time_axis(high) if over == "virtual time" else _byte_axis(high)


def _line(
    source: str, points: Sequence[curves.Point], metric: str, axis: _Axis, scale: AxisScale
) -> ChartLine:
    places = [_place(point, axis, scale) for point in points]
    alone = [
        here
        for before, here, after in zip([None, *places], places, [*places[1:], None], strict=False)
        if here and not (before or after)
    ]
    dots = [place for place in places if place] if len(points) <= 40 else alone
    return ChartLine(
        style=source,
        name=curves.SOURCES[source],
        last=words.metric(metric, points[-1][1]),
        path=_path(places),
        dots=" ".join(f"M{x:.1f} {y:.1f}h0" for x, y in dots),
    )


def _place(point: curves.Point, axis: _Axis, scale: AxisScale) -> curves.Point | None:
    x, y = point
    if not math.isfinite(y):
        return None
    return WIDTH * axis.percent(x) / 100, HEIGHT * (1 - scale.place(y))


def _path(places: Sequence[curves.Point | None]) -> str:
    parts, command = [], "M"
    for place in places:
        if place is None:
            command = "M"
            continue
        parts.append(f"{command}{place[0]:.1f} {place[1]:.1f}")
        command = "L"
    return " ".join(parts)


def _steps(
    edges: Sequence[float], below: Sequence[float], above: Sequence[float], axis: _Axis, top: float
) -> str:
    xs = [WIDTH * axis.percent(edge) / 100 for edge in edges]

    def corners(heights: Sequence[float]) -> list[curves.Point]:
        ys = [HEIGHT * (1 - height / top) for height in heights]
        return [(x, y) for n, y in enumerate(ys) for x in (xs[n], xs[n + 1])]

    return _path([*corners(above), *reversed(corners(below))]) + "Z"


def _rounds(left: float, right: float) -> str:
    first, last = math.ceil(left), math.floor(right)
    return f"round {first:,}" if first == last else f"rounds {first:,} to {last:,}, mean"


def _divergence(found: dict[str, list[curves.Point]], metric: str) -> str:
    for points in found.values():
        bad = [x for x, y in points if not math.isfinite(y)]
        if len(bad) == len(points):
            return f"The {metric} was never finite: the model diverged."
        if bad:
            times = words.things(len(bad), "time")
            return f"The {metric} was not finite {times}; the curve has a gap there."
    return ""


def _hover(
    found: dict[str, list[curves.Point]],
    metric: str,
    axis: _Axis,
    scale: AxisScale,
    over: curves.Over,
) -> str:
    """Columns of [percent, heading, [[name, text], …], [percent from below, …]] by x."""
    columns: dict[float, list[tuple[str, float]]] = {}
    for source, points in found.items():
        for x, y in points:
            columns.setdefault(x, []).append((source, y))
    return json.dumps(
        [
            [
                round(axis.percent(x), 2),
                _heading(x, over),
                [[curves.SOURCES[source], words.metric(metric, y)] for source, y in values],
                [round(100 * scale.place(y), 2) for _, y in values if math.isfinite(y)],
            ]
            for x, values in sorted(columns.items())
        ]
    )


def _heading(x: float, over: curves.Over) -> str:
    if over == "round":
        return f"round {x:,.0f}"
    return words.duration(x) if over == "virtual time" else words.size(x)
