"""Every setting's curve by round, by bytes or by virtual time, with bands over the seeds.

Colours follow the parameter with most values and dashes another one. With more values than can be
told apart, the best settings have colours and the others are grey.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedloom.simulation.output import figures, words
from fedloom.simulation.output.figures import GREY, INK
from fedloom.simulation.sweep import table
from fedloom.simulation.sweep.outcome import FINISHED, SweepResult, TrialRow
from fedloom.simulation.sweep.pictures import frame
from fedloom.simulation.sweep.rounds import MeanPoint, Over, mean_curve, measured

_NAMED = {"trained": "round", "bytes": "bytes", "virtual_s": "virtual time"}
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1.2, 1.4)), (0, (6, 1.5, 1.2, 1.5)))
_COLORS = (figures.BLUE, figures.ORANGE, figures.GREEN, figures.PINK, figures.SKY,
           figures.AMBER, INK)  # fmt: skip
_BEST = 6
"""Settings with a colour of their own, if there are too many."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a curve is drawn."""

    color: Any
    dashes: Any = "solid"
    label: str = ""
    is_other: bool = False


def curves_figure(outcome: SweepResult, over: Over) -> Figure | None:
    """The metric of every setting; None without values.

    Args:
        outcome: of the sweep.
        over: the horizontal axis: `trained` rounds, `bytes` both ways, or `virtual_s`.
    """
    objective = outcome.sweep.objective
    drawn = {r.point: _curve(outcome, r, over) for r in outcome.ranking}
    drawn = {point: places for point, places in drawn.items() if places}
    rows = [row for row in outcome.ranking if row.point in drawn]
    longest = max((place.x for places in drawn.values() for place in places), default=0.0)
    if not rows or longest <= 0:
        return None
    figure, axes = frame.figure(f"{outcome.sweep.name}: {objective.metric} by {_NAMED[over]}")
    every = [v for places in drawn.values() for p in places for v in _ends(p)]
    if words.is_share(objective.metric):  # no share is below 0 or above 1, though a band may be
        every = [min(max(value, 0.0), 1.0) for value in every]
    frame.y_axis(axes, every, objective.metric)
    low, high = axes.get_ylim()
    looks = _looks(outcome, rows)
    for row in reversed(rows):  # the best is drawn last, above the others
        _draw(axes, drawn[row.point], looks[row.point], row, (low, high))
    _x_axis(axes, over, longest)
    if objective.target is not None:
        axes.axhline(objective.target, color=INK, linewidth=1, linestyle=(0, (2, 3)))
    _label(axes, outcome, rows, looks)
    return figure


def _curve(outcome: SweepResult, row: TrialRow, over: Over) -> list[MeanPoint]:
    folder, objective = outcome.folder / "trials", outcome.sweep.objective
    found = [measured(folder / f"{each.trial:04d}.jsonl", objective) for each in row.each]
    return mean_curve([each for each in found if each], over)


def _ends(place: MeanPoint) -> Sequence[float]:
    d = place.deviation
    return (place.mean,) if d is None else (place.mean - d, place.mean, place.mean + d)


def _looks(outcome: SweepResult, rows: Sequence[TrialRow]) -> dict[int, Look]:
    """The look of each row by its point."""
    names = [p.name for p in outcome.sweep.parameters if frame.varies(rows, p.name)]
    names.sort(key=lambda name: -len(frame.kinds(rows, name)))
    numbers = [len(frame.kinds(rows, name)) for name in names]
    if not names:
        return {row.point: Look(_COLORS[0]) for row in rows}
    if len(names) > 2 or numbers[0] > frame.FEW or numbers[1:] > [len(_DASHES)]:
        return _best_looks(outcome, rows)
    colors = dict(zip(frame.kinds(rows, names[0]), _palette(rows, names[0]), strict=False))
    dashes = dict(zip(frame.kinds(rows, names[1]), _DASHES, strict=False)) if names[1:] else {}
    return {
        row.point: Look(
            colors[words.setting(row.shown[names[0]])],
            dashes[words.setting(row.shown[names[1]])] if dashes else "solid",
        )
        for row in rows
    }


def _best_looks(outcome: SweepResult, rows: Sequence[TrialRow]) -> dict[int, Look]:
    looks = {row.point: Look(GREY, is_other=True) for row in rows}
    for color, row in zip(_COLORS, rows[:_BEST], strict=False):
        looks[row.point] = Look(color, label=frame.named(outcome, row))
    return looks


def _palette(rows: Sequence[TrialRow], name: str) -> Sequence[Any]:
    """Colours in order of lightness for numbers, the most different ones for names."""
    num = len(frame.kinds(rows, name))
    if num > len(_COLORS) or (num > 3 and frame.numeric([row.shown[name] for row in rows])):
        return [colormaps["viridis"](0.88 * i / (num - 1)) for i in range(num)]
    return _COLORS


def _draw(
    axes: Axes, places: Sequence[MeanPoint], look: Look, row: TrialRow, limits: tuple[float, float]
) -> None:
    xs, ys = [p.x for p in places], [p.mean for p in places]
    order = 2 if look.is_other else 3
    axes.plot(
        xs, ys, color=look.color, linestyle=look.dashes, linewidth=1.0 if look.is_other else 2.0,
        alpha=0.45 if look.is_other else 1.0, zorder=order,
        marker="o" if len(places) == 1 else None,
    )  # fmt: skip
    banded = [p for p in places if p.deviation is not None and math.isfinite(p.mean)]
    if banded and not look.is_other:
        low, high = zip(*((_ends(p)[0], _ends(p)[2]) for p in banded), strict=True)
        clip = [[min(max(y, limits[0]), limits[1]) for y in edge] for edge in (low, high)]
        axes.fill_between(
            [p.x for p in banded], clip[0], clip[1],
            color=look.color, alpha=0.16, linewidth=0, zorder=1.5,
        )  # fmt: skip
    if row.state != FINISHED:
        axes.plot(xs[-1:], ys[-1:], "x", color=look.color, markersize=7, zorder=order)


def _x_axis(axes: Axes, over: Over, longest: float) -> None:
    if over == "trained":
        figures.draw_rounds(axes, 0.0, longest)
    elif over == "bytes":
        figures.draw_bytes(axes, longest, "bytes down and up")
    else:
        figures.draw_seconds(axes, longest, "virtual time")
    axes.set_xlim(0, longest * 1.015)


def _label(
    axes: Axes, outcome: SweepResult, rows: Sequence[TrialRow], looks: dict[int, Look]
) -> None:
    names = [p.name for p in outcome.sweep.parameters if frame.varies(rows, p.name)]
    short = table.short_names(table.columns(rows))
    for row in rows:
        if look := looks[row.point].label:
            axes.plot([], [], color=looks[row.point].color, linewidth=2.4, label=look)
    if others := sum(look.is_other for look in looks.values()):
        label = f"{others} other setting" + "s" * (others > 1)
        axes.plot([], [], color=GREY, linewidth=1.2, label=label)
    elif not any(look.label for look in looks.values()):
        names.sort(key=lambda name: -len(frame.kinds(rows, name)))
        for place, name in enumerate(names):
            for kind, text in frame.labels(rows, name).items():
                row = next(r for r in rows if words.setting(r.shown[name]) == kind)
                look_ = looks[row.point]
                axes.plot(
                    [], [], linewidth=2.4, label=f"{short[name]} {words.shortened(text, 30)}",
                    color=INK if place else look_.color, linestyle=look_.dashes if place else "-",
                )  # fmt: skip
    if any(row.state != FINISHED for row in rows):
        axes.plot([], [], "x", color=GREY, markersize=7, label="pruned or failed")
    frame.legend(axes, table.deviation_note(outcome.sweep.repeats))
