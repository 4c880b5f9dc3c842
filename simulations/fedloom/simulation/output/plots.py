"""A simulation's curves as PNG files, for papers, slides and chats.

Lines differ in colour and in dashes. Sizes are chosen so that a picture can be read at the width of
a phone.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedloom.simulation.output import curves, figures, words
from fedloom.simulation.output.figures import GREY, INK
from fedloom.simulation.output.history import RoundRecord
from fedloom.simulation.output.scales import AxisScale

_STYLES = {
    "test": (figures.BLUE, "solid"),
    "evaluation": (figures.ORANGE, (0, (5, 2))),
    "training": (figures.GREEN, (0, (1.2, 1.4))),
}
_PHASE_COLORS = {
    "reported": figures.GREEN,
    "training": figures.SKY,
    "offered": figures.YELLOW,
    "declined": figures.AMBER,
    "failed": figures.ORANGE,
    "refused": INK,
    "lost": figures.PINK,
}
_TAILS: dict[curves.Over, str] = {
    "round": "",
    "bytes": "-by-bytes",
    "virtual time": "-by-virtual-time",
}
_MAX_COLUMNS = 120
_MAX_WORKERS = 24


def draw_all(records: Sequence[RoundRecord], folder: Path, *, name: str = "") -> list[Path]:
    """Draw every picture that the rounds have values for.

    Args:
        records: all rounds; without rounds no picture is drawn.
        folder: made if missing; existing pictures are replaced.
        name: of the experiment, for titles.

    Returns:
        The files: `METRIC.png` and `METRIC-by-bytes.png` for every metric;
        `METRIC-by-virtual-time.png` if devices were modelled; `METRIC-over-clients.png` if
        quantiles were kept; `clients.png`; `workers.png`.
    """
    metrics = sorted({m for source in curves.SOURCES for m in curves.metric_names(records, source)})
    drawn = [
        (file_stem(m) + _TAILS[over], metric_figure(records, m, over=over, name=name))
        for m in metrics
        for over in curves.axes_of(records)
    ]
    drawn += [
        (f"{file_stem(m)}-over-clients", spread_figure(records, m, name=name)) for m in metrics
    ]
    drawn += [
        ("clients", clients_figure(records, name=name)),
        ("workers", workers_figure(records, name=name)),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    return figures.save_all(folder, drawn)


def file_stem(metric: str) -> str:
    """A metric's name as part of a file name: letters, digits, dots, hyphens and underscores.

    >>> file_stem("top-5 accuracy/€"), file_stem("..")
    ('top-5_accuracy__', '__')
    """
    kept = "".join(c if c.isascii() and (c.isalnum() or c in ".-_") else "_" for c in metric)
    return "_" * len(kept) if not kept.strip(".") else kept[:80]


def metric_figure(
    records: Sequence[RoundRecord], metric: str, *, over: curves.Over = "round", name: str = ""
) -> Figure | None:
    """A metric by round, by bytes or by virtual time, one line for each source.

    Returns:
        None if the metric was never measured.
    """
    lines = {s: curves.series(records, s, metric, over=over) for s in curves.SOURCES}
    lines = {source: points for source, points in lines.items() if points}
    if not lines:
        return None
    figure, axes = _figure(metric, name)
    for source, points in lines.items():
        _draw_line(axes, curves.thinned(points, 2000), source, words.metric(metric, points[-1][1]))
    every = [point for points in lines.values() for point in points]
    _finish(axes, every, metric, over)
    return figure


def spread_figure(records: Sequence[RoundRecord], metric: str, *, name: str = "") -> Figure | None:
    """A metric's quantiles over the clients of each round as a band, with the median.

    Returns:
        None if no quantiles were kept.
    """
    bands = {s: b for s in curves.SOURCES if (b := curves.band(records, s, metric))}
    if not bands:
        return None
    figure, axes = _figure(f"{metric} over clients", name)
    for source, band in bands.items():
        color = _STYLES[source][0]
        xs = [x for x, _ in band.lows]
        lows, highs = [y for _, y in band.lows], [y for _, y in band.highs]
        label = f"{curves.SOURCES[source]}, {band.label()}"
        axes.fill_between(xs, lows, highs, color=color, alpha=0.22, linewidth=0, label=label)
        if len(xs) == 1:
            axes.vlines(xs, lows, highs, color=color, alpha=0.4, linewidth=6)
        if band.middles:
            last = words.metric(metric, band.middles[-1][1])
            _draw_line(axes, band.middles, source, last, "median, ")
    every = [point for band in bands.values() for point in (*band.lows, *band.highs)]
    _finish(axes, every, metric, "round")
    return figure


def clients_figure(records: Sequence[RoundRecord], *, name: str = "") -> Figure | None:
    """Members of each round's cohort by their last phase, stacked; many rounds share a column."""
    found = curves.phases(records)
    if not found:
        return None
    figure, axes = _figure("clients by round", name)
    edges, heights = curves.binned(records, found, _MAX_COLUMNS)
    bottom = np.zeros(len(heights))
    for phase, column in zip(found, np.array(heights).T, strict=True):
        color, label = _PHASE_COLORS.get(phase, GREY), curves.phase_name(phase)
        axes.stairs(bottom + column, edges, baseline=bottom, fill=True, color=color, label=label)
        bottom += column
    figures.draw_rounds(axes, records[0].round, records[-1].round)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, max(bottom.max() * 1.04, 1))
    axes.set_ylabel("clients in the cohort", color=INK, fontsize=13)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    figures.draw_legend(axes, min(len(found), 4))
    return figure


def workers_figure(records: Sequence[RoundRecord], *, name: str = "") -> Figure | None:
    """The busy time of each worker; of more than 24 only the busiest and the idlest."""
    shown = curves.workers(records)
    if not shown:
        return None
    if len(shown) > _MAX_WORKERS:
        ordered = sorted(shown, key=lambda worker: -worker.busy_s)
        shown = ordered[: _MAX_WORKERS // 2] + ordered[-_MAX_WORKERS // 2 :]
    figure, axes = _figure("workers", name, height=1.9 + 0.42 * max(len(shown), 2))
    places = range(len(shown))
    axes.barh(places, [w.busy_s for w in shown], height=0.66, color=figures.BLUE)
    longest = max(worker.busy_s for worker in shown) or 1.0
    for place, worker in enumerate(shown):
        inside = worker.busy_s > 0.55 * longest
        axes.annotate(
            f"{words.share(worker.share)} busy, {words.things(worker.clients, 'client')}",
            (worker.busy_s, place), xytext=(-7 if inside else 7, 0), textcoords="offset points",
            ha="right" if inside else "left", va="center", color="white" if inside else INK,
            fontsize=11.5,
        )  # fmt: skip
    axes.set_yticks(places, [words.shortened(worker.name, 28) for worker in shown])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, longest * 1.02)
    figures.draw_seconds(axes, longest, "busy time")
    axes.grid(visible=False)
    return figure


def _figure(title: str, name: str, *, height: float = 4.4) -> tuple[Figure, Axes]:
    whole = title[:1].upper() + title[1:] + (f" · {name}" if name else "")
    figure, (axes,) = figures.panels(whole, 7.2, height)
    return figure, axes


def _draw_line(
    axes: Axes, points: Sequence[curves.Point], source: str, last: str, kind: str = ""
) -> None:
    color, dashes = _STYLES[source]
    axes.plot(
        *zip(*points, strict=True), color=color, linestyle=dashes,
        linewidth=2.4 if len(points) < 500 else 1.5,
        marker="o" if sum(math.isfinite(y) for _, y in points) <= 40 else None, markersize=4.5,
        label=f"{curves.SOURCES[source]}, {kind}last {last}",
    )  # fmt: skip


def _finish(axes: Axes, points: Sequence[curves.Point], metric: str, over: curves.Over) -> None:
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    if over != "round":
        if over == "bytes":
            figures.draw_bytes(axes, high, "bytes up and down")
        else:
            figures.draw_seconds(axes, high, "virtual time")
        axes.set_xlim(0, high * 1.02 or 1.0)
    else:
        figures.draw_rounds(axes, low, high)
        room = (high - low) * 0.015 or 1
        axes.set_xlim(low - 1 if low == high else min(low, 1), high + room)
    scale = AxisScale.of([y for _, y in points], metric)
    figures.draw_scale(axes, scale)
    if scale.empty:
        text = f"{figures.as_text(metric)} was never finite: the model diverged"
        middle = axes.transAxes
        axes.text(0.5, 0.5, text, transform=middle, ha="center", color=GREY, fontsize=13)
    figures.draw_legend(axes, 1)
