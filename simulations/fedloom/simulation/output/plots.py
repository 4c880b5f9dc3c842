"""A simulation's curves as PNG files, for papers, slides and chats.

Colours are Okabe and Ito's, which people with any colour vision can tell apart, and lines differ in
their dashes as well. Sizes are chosen so that a picture still reads at the width of a phone.

Figures are drawn by Agg canvases of their own: nothing here touches pyplot, so a notebook's or a
server's own figures stay as they are.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from fedloom.protocol.atomic_files import drafted
from fedloom.simulation.output import curves, words
from fedloom.simulation.output.history import RoundRecord
from fedloom.simulation.output.scales import AxisScale, time_ticks, time_unit, whole_ticks

INK, GREY, LINE = "#222222", "#6E6E6E", "#E3E3E3"
_STYLES = {
    "test": ("#0072B2", "solid"),
    "evaluation": ("#D55E00", (0, (5, 2))),
    "training": ("#009E73", (0, (1.2, 1.4))),
}
PHASE_COLORS = {
    "reported": "#009E73",
    "training": "#56B4E9",
    "offered": "#F0E442",
    "declined": "#E69F00",
    "failed": "#D55E00",
    "refused": "#222222",
    "lost": "#CC79A7",
}
_MAX_COLUMNS = 120


def draw_all(records: Sequence[RoundRecord], folder: Path, *, name: str = "") -> list[Path]:
    """Draw whatever these rounds have to show.

    Args:
        records: all rounds, at least one for any picture.
        folder: made where it is missing; pictures that lie there are replaced.
        name: of the experiment, for titles.

    Returns:
        The files: `accuracy.png`, `loss.png` and the like for every metric, the same with
        `-by-virtual-time` where devices were modelled, `accuracy-over-clients.png` and the like
        where quantiles were kept, `clients.png`, `workers.png`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    metrics = {m for source in curves.SOURCES for m in curves.metric_names(records, source)}
    for metric in sorted(metrics):
        for virtual in (False, True)[: 1 + curves.has_virtual_time(records)]:
            if figure := metric_figure(records, metric, virtual=virtual, name=name):
                tail = "-by-virtual-time" if virtual else ""
                files.append(_save(figure, folder / f"{file_stem(metric)}{tail}.png"))
    spreads = {metric: spread_figure(records, metric, name=name) for metric in sorted(metrics)}
    files += [
        _save(figure, folder / f"{file_stem(metric)}-over-clients.png")
        for metric, figure in spreads.items()
        if figure
    ]
    if figure := clients_figure(records, name=name):
        files.append(_save(figure, folder / "clients.png"))
    if figure := workers_figure(records, name=name):
        files.append(_save(figure, folder / "workers.png"))
    return files


def file_stem(metric: str) -> str:
    """A metric's name as part of a file's: letters, digits, dots, hyphens and underscores.

    >>> file_stem("top-5 accuracy/€"), file_stem("..")
    ('top-5_accuracy__', '__')
    """
    kept = "".join(c if c.isascii() and (c.isalnum() or c in ".-_") else "_" for c in metric)
    return "_" * len(kept) if not kept.strip(".") else kept[:80]


def metric_figure(
    records: Sequence[RoundRecord], metric: str, *, virtual: bool = False, name: str = ""
) -> Figure | None:
    """A metric by round, or by virtual time, from all who measured it.

    Returns:
        None where nobody did.
    """
    lines = {s: curves.series(records, s, metric, virtual=virtual) for s in curves.SOURCES}
    lines = {source: points for source, points in lines.items() if points}
    if not lines:
        return None
    figure, axes = _figure(f"{metric}{f' · {name}' if name else ''}".capitalize())
    scale = AxisScale.of([p[1] for points in lines.values() for p in points], metric)
    for source, points in lines.items():
        _draw_line(axes, curves.thinned(points, 2000), source, metric)
    _x_axis(axes, [p[0] for points in lines.values() for p in points], virtual=virtual)
    _y_axis(axes, scale, metric)
    _legend(axes, 1)
    return figure


def spread_figure(records: Sequence[RoundRecord], metric: str, *, name: str = "") -> Figure | None:
    """How a metric was spread over the clients of each round: a band of quantiles, its median.

    Returns:
        None where no quantiles were kept.
    """
    bands = {s: b for s in curves.SOURCES if (b := curves.band(records, s, metric))}
    if not bands:
        return None
    figure, axes = _figure(f"{metric} over clients{f' · {name}' if name else ''}".capitalize())
    every = [point for band in bands.values() for point in (*band.lows, *band.highs)]
    scale = AxisScale.of([y for _, y in every], metric)
    for source, band in bands.items():
        color, dashes = _STYLES[source]
        xs = [x for x, _ in band.lows]
        lows, highs = [y for _, y in band.lows], [y for _, y in band.highs]
        what = curves.SOURCES[source]
        axes.fill_between(
            xs, lows, highs, color=color, alpha=0.22, linewidth=0, label=f"{what}, {band.told()}"
        )
        if len(xs) == 1:
            axes.vlines(xs, lows, highs, color=color, alpha=0.4, linewidth=6)
        if band.middles:
            last = words.metric(metric, band.middles[-1][1])
            axes.plot(
                *zip(*band.middles, strict=True), color=color, linestyle=dashes, linewidth=2.4,
                marker="o" if len(xs) <= 40 else None, markersize=4.5,
                label=f"{what}, median, last {last}",
            )  # fmt: skip
    _x_axis(axes, [x for x, _ in every], virtual=False)
    _y_axis(axes, scale, metric)
    _legend(axes, 1)
    return figure


def clients_figure(records: Sequence[RoundRecord], *, name: str = "") -> Figure | None:
    """Where the members of each round's cohort ended, stacked; many rounds share a column."""
    found = curves.phases(records)
    if not found:
        return None
    figure, axes = _figure(f"Clients by round{f' · {name}' if name else ''}")
    edges, heights = curves.binned(records, found, _MAX_COLUMNS)
    bottom = np.zeros(len(heights))
    for phase, column in zip(found, np.array(heights).T, strict=True):
        color = PHASE_COLORS.get(phase, GREY)
        axes.stairs(
            bottom + column,
            edges,
            baseline=bottom,
            fill=True,
            color=color,
            label=curves.phase_name(phase),
        )
        bottom += column
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, max(bottom.max() * 1.04, 1))
    axes.set_xlabel("round", color=INK)
    axes.set_ylabel("clients asked", color=INK, fontsize=13)
    ticks = whole_ticks(records[0].round, records[-1].round)
    axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    _legend(axes, min(len(found), 4))
    return figure


def workers_figure(records: Sequence[RoundRecord], *, name: str = "") -> Figure | None:
    """How long each worker was at work; beyond 24 workers, the busiest and the idlest."""
    all_workers = curves.workers(records)
    if not all_workers:
        return None
    shown = _at_most(all_workers, 24)
    figure, axes = _figure(
        f"Workers{f' · {name}' if name else ''}", height=1.9 + 0.42 * max(len(shown), 2)
    )
    places = range(len(shown))
    axes.barh(places, [w.busy_s for w in shown], height=0.66, color=_STYLES["test"][0])
    longest = max(worker.busy_s for worker in shown) or 1.0
    for place, worker in enumerate(shown):
        text = f"{worker.share:.0%} busy, {words.things(worker.clients, 'client')}"
        inside = worker.busy_s > 0.55 * longest
        axes.annotate(
            text,
            (worker.busy_s, place),
            xytext=(-7 if inside else 7, 0),
            textcoords="offset points",
            ha="right" if inside else "left",
            va="center",
            color="white" if inside else INK,
            fontsize=11.5,
        )
    axes.set_yticks(places, [_shortened(worker.name) for worker in shown])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, longest * 1.02)
    _time_axis(axes, longest, "time at work")
    axes.grid(visible=False)
    return figure


def _time_axis(axes: Axes, longest_s: float, name: str) -> None:
    unit_s, unit = time_unit(longest_s)
    ticks = time_ticks(longest_s)
    axes.set_xticks(ticks, [f"{tick / unit_s:g}" for tick in ticks])
    axes.set_xlabel(f"{name} ({unit})", color=INK)


def _figure(title: str, *, height: float = 4.4) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.2, height), dpi=150, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    # A dollar sign would begin a formula, and a name may well hold one.
    axes.set_title(
        _plain(_shortened(title, 58)), loc="left", fontsize=15, fontweight="bold", color=INK, pad=14
    )
    style(axes, 12.5)
    axes.xaxis.label.set_fontsize(13)
    axes.grid(axis="y", color=LINE, linewidth=0.9)
    return figure, axes


def style(axes: Axes, label_size: float) -> None:
    """Draw the left and the lower spine alone, and grids below the data.

    Args:
        axes: of any picture.
        label_size: of the ticks' labels, in points.
    """
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#B0B0B0")
    axes.tick_params(colors=INK, labelsize=label_size)
    axes.set_axisbelow(True)


def _draw_line(axes: Axes, points: Sequence[curves.Point], source: str, metric: str) -> None:
    color, dashes = _STYLES[source]
    finite = [point for point in points if math.isfinite(point[1])]
    last = words.metric(metric, points[-1][1])
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=color,
        linestyle=dashes,
        linewidth=2.4 if len(points) < 500 else 1.5,
        marker="o" if len(finite) <= 40 else None,
        markersize=4.5,
        label=f"{curves.SOURCES[source]}, last {last}",
    )


def _x_axis(axes: Axes, xs: Sequence[float], *, virtual: bool) -> None:
    low, high = min(xs), max(xs)
    if virtual:
        _time_axis(axes, high, "virtual time")
        axes.set_xlim(0, high * 1.02 or 1.0)
        return
    axes.set_xlabel("round", color=INK)
    if low == high:
        axes.set_xlim(low - 1, high + 1)
        axes.set_xticks([low], [f"{low:,.0f}"])
        return
    ticks = whole_ticks(low, high)
    axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    axes.set_xlim(min(low, 1) if low <= 1 else 0, high + (high - low) * 0.015)


def _y_axis(axes: Axes, scale: AxisScale, metric: str) -> None:
    if scale.log:
        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(scale.low, scale.high)
    axes.set_yticks(scale.ticks, [scale.label(tick) for tick in scale.ticks])
    if scale.empty:
        axes.text(
            0.5,
            0.5,
            f"{_plain(metric)} was never finite: the model diverged",
            transform=axes.transAxes,
            ha="center",
            color=GREY,
            fontsize=13,
        )


def _legend(axes: Axes, columns: int) -> None:
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.17),
        ncols=columns,
        frameon=False,
        fontsize=12,
        handlelength=2.2,
        labelcolor=INK,
    )


def _at_most(workers: list[curves.WorkerLoad], most: int) -> list[curves.WorkerLoad]:
    if len(workers) <= most:
        return workers
    ordered = sorted(workers, key=lambda worker: -worker.busy_s)
    return ordered[: most // 2] + ordered[-(most - most // 2) :]


def _plain(text: str) -> str:
    return text.replace("$", r"\$")


def _shortened(text: str, most: int = 28) -> str:
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= most else text[: most - 1] + "…"


def _save(figure: Figure, path: Path) -> Path:
    with drafted(path) as draft:
        figure.savefig(draft, format="png")
    return path
