"""Parallel coordinates: an axis for each setting and the objective, a line for each point.

Source: Inselberg (1985), "The plane with parallel coordinates", The Visual Computer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedloom.simulation.output import figures, words
from fedloom.simulation.output.figures import INK, ORANGE
from fedloom.simulation.output.scales import AxisScale
from fedloom.simulation.sweep import table
from fedloom.simulation.sweep.outcome import SweepResult, TrialRow
from fedloom.simulation.sweep.pictures import frame
from fedloom.simulation.sweep.space import Parameter

_LEAST = 3
_MOST = 7
"""Settings; further ones are left out."""


@dataclass(frozen=True, slots=True)
class _Coordinate:
    """One axis: its name, its ticks from 0 to 1 with their labels, and the place of a row."""

    name: str
    ticks: tuple[tuple[float, str], ...]
    place: Callable[[TrialRow], float]


def parallel_figure(outcome: SweepResult) -> Figure | None:
    """The settings of every row; None for fewer than two that vary, or fewer than three rows."""
    rows = frame.usable(outcome.ranking)
    names = [name for name in table.columns(rows) if frame.varies(rows, name)]
    rows = [row for row in rows if all(name in row.shown for name in names)]
    if len(names) < 2 or len(rows) < _LEAST:
        return None
    short = table.short_names(table.columns(rows))
    found = [_setting(outcome.sweep.parameters, rows, name, short[name]) for name in names[:_MOST]]
    found.append(_objective(outcome, rows))
    title = f"{outcome.sweep.name}: settings and {outcome.sweep.objective.title}"
    figure, (axes,) = figures.panels(title, max(7.2, 1.75 * len(found)), 4.8)
    last, best = found[-1], outcome.best
    for row in reversed(rows):  # the best above the others
        mine = best is not None and row.point == best.point
        axes.plot(
            range(len(found)), [each.place(row) for each in found], linewidth=3.2 if mine else 1.4,
            color=ORANGE if mine else _color(_quality(outcome, row, last)),
            alpha=1.0 if mine else 0.8, zorder=3 if mine else 2,
        )  # fmt: skip
    _draw_axes(axes, found)
    if best is not None:
        axes.plot([], [], color=ORANGE, linewidth=3.2, label=f"best: {frame.named(outcome, best)}")
    axes.plot([], [], color=_color(0.9), linewidth=2, label="better")
    axes.plot([], [], color=_color(0.1), linewidth=2, label="worse")
    frame.legend(axes, "means over the seeds" if outcome.sweep.repeats > 1 else "")
    return figure


def _color(quality: float) -> tuple[float, float, float, float]:
    return colormaps["viridis"](0.92 * (1 - quality))


def _quality(outcome: SweepResult, row: TrialRow, axis: _Coordinate) -> float:
    """From 0, the worst, to 1."""
    place = min(max(axis.place(row), 0.0), 1.0)
    return place if outcome.sweep.objective.direction == "maximize" else 1 - place


def _objective(outcome: SweepResult, rows: Sequence[TrialRow]) -> _Coordinate:
    name = frame.unit(outcome)
    scale = AxisScale.of(frame.values(rows), name.rpartition(".")[2])
    return _scaled(name, scale, lambda row: row.value)


def _setting(
    parameters: Sequence[Parameter], rows: Sequence[TrialRow], name: str, title: str
) -> _Coordinate:
    found, kinds = [row.shown[name] for row in rows], frame.kinds(rows, name)
    if not frame.numeric(found) or len(kinds) <= frame.FEW:
        places = {kind: i / (len(kinds) - 1) for i, kind in enumerate(kinds)}
        labels = frame.labels(rows, name)
        ticks = tuple((at, words.shortened(labels[kind], 22)) for kind, at in places.items())
        return _Coordinate(title, ticks, lambda row: places[words.setting(row.shown[name])])
    log = any(each.log for each in parameters if each.name == name)
    return _scaled(title, AxisScale.of(found, "", log=log), lambda row: row.shown[name])


def _scaled(name: str, scale: AxisScale, value: Callable[[TrialRow], Any]) -> _Coordinate:
    ticks = tuple((scale.place(tick), scale.label(tick)) for tick in scale.ticks)
    return _Coordinate(name, ticks, lambda row: scale.place(value(row)))


def _draw_axes(axes: Axes, found: Sequence[_Coordinate]) -> None:
    axes.grid(visible=False)
    axes.set_yticks([])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    for x, each in enumerate(found):
        axes.axvline(x, color=INK, linewidth=1.2, zorder=4)
        for place, text in each.ticks:
            axes.plot([x - 0.012, x + 0.012], [place, place], color=INK, linewidth=1.2, zorder=4)
            axes.annotate(
                figures.as_text(text), (x, place), xytext=(5, 0), textcoords="offset points",
                va="center", fontsize=9.5, color=INK, zorder=5,
                bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.6},
            )  # fmt: skip
    axes.set_xticks(range(len(found)), [words.shortened(each.name, 18) for each in found])
    axes.tick_params(axis="x", length=0, pad=6)
    axes.set_xlim(-0.05, len(found) - 1 + 0.45)
    axes.set_ylim(-0.04, 1.04)
