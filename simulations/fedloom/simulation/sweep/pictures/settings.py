"""The objective and the training time by setting, side by side."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from fedloom.simulation.output import figures, words
from fedloom.simulation.output.figures import BLUE, GREY, INK, ORANGE
from fedloom.simulation.output.scales import AxisScale, time_unit
from fedloom.simulation.sweep import space, table
from fedloom.simulation.sweep.outcome import FINISHED, SweepResult, TrialRow
from fedloom.simulation.sweep.pictures import frame
from fedloom.simulation.sweep.pictures.importance import importances

LOST = "pruned, failed or target not reached"
_MAX_SETTINGS = 8
_COLUMNS = 4
_LINES = (figures.SKY, figures.GREEN, figures.AMBER, figures.PINK, BLUE, GREY)


def settings_figure(outcome: SweepResult) -> Figure | None:
    """The objective and the time over each setting that varies; None if none varies.

    One setting has its two panels side by side; of several the time is below the objective.
    """
    rows = frame.usable(outcome.ranking)
    names = [name for name in table.columns(rows) if frame.varies(rows, name)][:_MAX_SETTINGS]
    if not names:
        return None
    fields = ("value", "wall_s") if max(frame.values(rows, "wall_s")) > 0 else ("value",)
    title = f"{outcome.sweep.name}: {outcome.sweep.objective.title}"
    title += " and time by setting" if fields[1:] else " by setting"
    figure, grid = _panels(title, len(names), len(fields))
    shares = importances(outcome)
    short = table.short_names(table.columns(rows))
    for place, name in enumerate(names):
        share = f"\nimportance {shares[name]:.0%}" if name in shares else ""
        for field, axes in zip(fields, grid[place], strict=True):
            _draw_setting(axes, outcome, name, field)
            _y_axis(axes, outcome, rows, field, labelled=place % _COLUMNS == 0)
            axes.set_xlabel(f"{short[name]}{share if field == 'value' else ''}", color=INK)
    notes = [
        table.deviation_note(outcome.sweep.repeats),
        f"orange: best {outcome.sweep.objective.title}" if outcome.best is not None else "",
        "importance for the best 10% of the trials, by PED-ANOVA" if shares else "",
        f"×  {LOST}" if frame.lost(outcome.ranking) else "",
    ]
    if note := "     ".join(filter(None, notes)):
        figure.supxlabel(note, fontsize=10.5, color=figures.GREY)
    return figure


def _panels(title: str, num: int, num_fields: int) -> tuple[Figure, list[list[Axes]]]:
    """A figure, and the panels of each setting, one for each field."""
    if num == 1:
        width = 3.8 * num_fields + 0.4 if num_fields > 1 else 7.2
        figure, panels = figures.panels(title, width, 4.2, columns=num_fields, share=False)
        return figure, [panels]
    columns, blocks = min(num, _COLUMNS), math.ceil(num / _COLUMNS)
    rows = blocks * num_fields
    figure, panels = figures.panels(
        title, max(7.2, 3.1 * columns), 1.0 + 3.1 * rows, rows=rows, columns=columns, share="row"
    )
    found = [
        [panels[(n // columns * num_fields + f) * columns + n % columns] for f in range(num_fields)]
        for n in range(num)
    ]
    used = {id(axes) for some in found for axes in some}
    for spare in (axes for axes in panels if id(axes) not in used):
        spare.remove()
    return figure, found


def _y_axis(
    axes: Axes, outcome: SweepResult, rows: Sequence[TrialRow], field: str, *, labelled: bool
) -> None:
    ends = [e for row in rows for e in frame.ends(outcome, row, field)]
    if field == "value":
        frame.y_axis(axes, ends, frame.unit(outcome), label=None if labelled else "")
        return
    unit_s, unit = _time_unit(outcome, rows)
    scale = AxisScale.of([max(end, 0.0) / unit_s for end in ends], "time")
    figures.draw_scale(axes, scale, margin=0.02)
    if labelled:
        axes.set_ylabel(f"training time ({unit})", color=INK, fontsize=12.5)


def _time_unit(outcome: SweepResult, rows: Sequence[TrialRow]) -> tuple[float, str]:
    return time_unit(max(end for row in rows for end in frame.ends(outcome, row, "wall_s")))


def _draw_setting(axes: Axes, outcome: SweepResult, name: str, field: str) -> None:
    """Each row's mean over one setting; a row without a value is a cross at the edge."""
    rows = [row for row in frame.usable(outcome.ranking) if name in row.shown]
    lost = [row for row in frame.lost(outcome.ranking) if name in row.shown]
    size = 1.0 if field == "value" else _time_unit(outcome, frame.usable(outcome.ranking))[0]
    places = _places(axes, outcome, name, [*rows, *lost])
    _connect(axes, outcome, name, field, size)
    for place, row in zip(places, rows, strict=False):
        best = outcome.best is not None and row.point == outcome.best.point
        deviation = row.sample(field).deviation
        axes.errorbar(
            place,
            getattr(row, field) / size,
            None if deviation is None else deviation / size,
            fmt="o" if row.state == FINISHED else "x",
            color=ORANGE if best else BLUE if row.state == FINISHED else GREY,
            markersize=8 if best else 6,
            alpha=1.0 if best else 0.75,
            capsize=3,
            zorder=3 if best else 2,
        )
    if field == "value":
        mark_lost(axes, outcome, places[len(rows) :])


def _places(axes: Axes, outcome: SweepResult, name: str, rows: Sequence[TrialRow]) -> list[float]:
    """The place of each row's value of a setting on the axis, which is scaled for them."""
    values = [row.shown[name] for row in rows]
    parameter = next((p for p in outcome.sweep.parameters if p.name == name), None)
    ranged = parameter is not None and parameter.num_values is None
    numeric, kinds = frame.numeric(values), frame.kinds(rows, name)
    if not numeric or (
        len(kinds) <= frame.FEW and (not ranged or outcome.sweep.algorithm == "grid")
    ):
        most = max(6, 44 // len(kinds))
        texts = [words.shortened(text, most) for text in frame.labels(rows, name).values()]
        axes.set_xticks(range(len(kinds)), texts)
        if sum(map(len, texts)) > 26:
            for label in axes.get_xticklabels():
                label.set(rotation=30, horizontalalignment="right")
        axes.set_xlim(-0.5, len(kinds) - 0.5)
        return [float(kinds.index(words.setting(value))) for value in values]
    wide = min(values) > 0 and max(values) / min(values) > 100
    if wide or (parameter is not None and parameter.log):
        axes.set_xscale("log")
        decades = math.log10(max(values) / min(values))
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1,)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words.setting(value)))
        axes.minorticks_off()
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4))
    return [float(value) for value in values]


def _combinations(
    outcome: SweepResult, rows: Sequence[TrialRow]
) -> Iterator[tuple[dict[str, Any], int]]:
    """The values of a grid's combinations, or of the rows, with the number of their point."""
    if outcome.sweep.algorithm != "grid":
        yield from ((row.parameters, row.point) for row in rows)
        return
    for drawn, point in outcome.sweep.combinations():
        yield space.decode(outcome.sweep.parameters, drawn), point


def mark_lost(axes: Axes, outcome: SweepResult, places: Sequence[float], label: str = "") -> None:
    """Mark trials without a value at the axis' worse end."""
    edge = 0.03 if outcome.sweep.objective.direction == "maximize" else 0.97
    if places:
        axes.plot(places, [edge] * len(places), "x", color=GREY, markersize=6, label=label or None,
                  transform=axes.get_xaxis_transform())  # fmt: skip


def _connect(axes: Axes, outcome: SweepResult, name: str, field: str, size: float) -> None:
    """Join the rows that differ in one parameter alone; the legend names the other of a grid.

    A combination that repeats the settings of another has that one's value.
    """
    rows = {row.point: row for row in frame.usable(outcome.ranking)}
    seen = list(rows.values())
    varying = [p.name for p in outcome.sweep.parameters if frame.varies(seen, p.name)]
    varying.sort(key=lambda each: -len(frame.kinds(seen, each)))
    few = all(len(frame.kinds(seen, each)) <= frame.FEW for each in varying)
    listed = all(p.num_values for p in outcome.sweep.parameters if p.name in varying)
    joined = outcome.sweep.algorithm == "grid" or (len(varying) == 1 and listed)
    if not joined or len(varying) > 2 or not few or varying[:1] != [name]:
        return
    if len(varying) == 1 and not frame.numeric([row.shown[name] for row in seen]):
        return
    kinds = frame.kinds(outcome.ranking, name)
    lines: dict[str, list[tuple[int, float]]] = {}
    for values, point in _combinations(outcome, seen):
        if row := rows.get(point):
            label = ", ".join(words.setting(values[each]) for each in varying[1:])
            place = kinds.index(words.setting(values[name]))
            lines.setdefault(label, []).append((place, getattr(row, field) / size))
    short = table.short_names(varying)
    for color, (label, line) in zip(_LINES, lines.items(), strict=False):
        text = f"{short[varying[1]]} {words.shortened(label, 16)}" if label else None
        xs, ys = zip(*sorted(line), strict=True)
        axes.plot(xs, ys, color=color, linewidth=1.8, label=text, zorder=1.5)
    if len(lines) > 1 and field == "value":
        axes.legend(frameon=False, fontsize=10, labelcolor=INK, loc="best")
