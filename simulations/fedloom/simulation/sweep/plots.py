"""A sweep's plots: every trial's curve, the objective by setting and by trial.

Optuna's matplotlib plots were rejected. They number trials from 0, where the table counts from 1.
They omit pruned and failed trials and derived settings, do not mark the best trial, cut off the
legend, and change pyplot's style for the whole process.
"""

import math
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import optuna
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from fedloom.simulation.output import figures, words
from fedloom.simulation.output.figures import BLUE, INK, ORANGE
from fedloom.simulation.output.scales import AxisScale
from fedloom.simulation.sweep import table
from fedloom.simulation.sweep.outcome import FAILED, FINISHED, SweepResult, TrialRow
from fedloom.simulation.sweep.rounds import curve

GREY = "#8A8A8A"
LOST = "pruned, failed or target not reached"
_MAX_PANELS = 8
_COLUMNS = 4
_FEW = 6
_LINES = (figures.SKY, figures.GREEN, figures.AMBER, figures.PINK, BLUE, GREY)
_MIN_FOR_IMPORTANCE = 10
"""Finished trials below which an importance would be noise."""


def draw_all(outcome: SweepResult) -> list[Path]:
    """Draw `curves.png`, `settings.png` and `history.png`, as far as the rows have values."""
    drawn = [
        ("curves", curves_figure(outcome)),
        ("settings", settings_figure(outcome)),
        ("history", history_figure(outcome)),
    ]
    return figures.save_all(outcome.folder, drawn)


def curves_figure(outcome: SweepResult) -> Figure | None:
    """The metric by round of every trial, the best one in colour; None without any round."""
    objective = outcome.sweep.objective
    folder = outcome.folder / "trials"
    lines = {r.trial: curve(folder / f"{r.trial:04d}.jsonl", objective) for r in outcome.rows}
    lines = {trial: points for trial, points in lines.items() if points}
    if not lines:
        return None
    figure, (axes,) = _figure(f"{outcome.sweep.name}: {objective.metric} by round")
    best = outcome.best
    for row in outcome.rows:
        if points := lines.get(row.trial):
            mine = best is not None and row.point == best.point
            _draw_curve(axes, points, row, mine)
    _y_axis(axes, [y for points in lines.values() for _, y in points], objective.metric)
    axes.set_xlabel("round", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True, steps=[1, 2, 5, 10]))
    if objective.target is not None:
        axes.axhline(objective.target, color=INK, linewidth=1, linestyle=(0, (2, 3)))
    if best is not None:
        axes.plot([], [], color=ORANGE, linewidth=2.6, label=_named(outcome, best))
        axes.plot([], [], color=BLUE, linewidth=1.2, label="other trials")
        if any(row.state != FINISHED and row.trial in lines for row in outcome.rows):
            axes.plot([], [], color=GREY, linewidth=1.2, linestyle="dashed", label="not finished")
        _legend(axes)
    return figure


def settings_figure(outcome: SweepResult) -> Figure | None:
    """The objective over each setting that varies, one panel each; None if none varies."""
    rows = _usable(outcome)
    names = [name for name in table.columns(rows) if _varies(rows, name)][:_MAX_PANELS]
    if not names:
        return None
    shares, lines = _importances(outcome), _lines(outcome, rows)
    short = table.short_names(table.columns(rows))
    figure, panels = _figure(
        f"{outcome.sweep.name}: {outcome.sweep.objective.title} by setting", num=len(names)
    )
    for place, (axes, name) in enumerate(zip(panels, names, strict=True)):
        if lines and name == lines[0]:
            _connect(axes, rows, *lines)
        _draw_setting(axes, outcome, name)
        share = f"\n{shares[name]:.0%} of the difference" if name in shares else ""
        axes.set_xlabel(f"{short[name]}{share}", color=INK)
        _y_axis(axes, _values(rows), _unit(outcome), label="" if place % _COLUMNS else None)
    if _lost(outcome):
        figure.text(0.99, 0.985, f"×  {LOST}", ha="right", va="top", color=GREY, fontsize=10.5)
    return figure


def history_figure(outcome: SweepResult) -> Figure | None:
    """The objective by trial, and the best so far; None for fewer than two trials."""
    rows = _usable(outcome)
    if len(rows) < 2:
        return None
    figure, (axes,) = _figure(f"{outcome.sweep.name}: objective by trial")
    finished = [row for row in rows if row.state == FINISHED]
    others = [row for row in rows if row.state != FINISHED]
    axes.plot([r.trial for r in finished], _values(finished), "o", color=BLUE,
              markersize=6, label="finished")  # fmt: skip
    if others:
        axes.plot([r.trial for r in others], _values(others), "x", color=GREY,
                  markersize=6, label="pruned, last value")  # fmt: skip
    _mark_lost(axes, outcome, [float(row.trial) for row in _lost(outcome)], LOST)
    if finished:
        better = max if outcome.sweep.objective.direction == "maximize" else min
        bests = [better(_values(finished[: i + 1])) for i in range(len(finished))]
        end = max(row.trial for row in outcome.rows)
        axes.step([*(r.trial for r in finished), end], [*bests, bests[-1]], where="post",
                  color=ORANGE, linewidth=2.2, label="best so far")  # fmt: skip
    _y_axis(axes, _values(rows), _unit(outcome))
    axes.set_xlabel("trial", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))
    _legend(axes)
    return figure


def _draw_curve(
    axes: Axes, points: Sequence[tuple[float, float]], row: TrialRow, best: bool
) -> None:
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=ORANGE if best else BLUE if row.state == FINISHED else GREY,
        linewidth=2.6 if best else 1.2,
        alpha=1.0 if best else 0.55,
        linestyle="solid" if row.state == FINISHED else "dashed",
        marker="o" if len(points) == 1 else None,
        zorder=3 if best else 2,
    )


def _draw_setting(axes: Axes, outcome: SweepResult, name: str) -> None:
    """Each trial's objective over one setting; a trial without a value is a cross at the edge."""
    rows, lost, best = _usable(outcome), _lost(outcome), outcome.best
    rows, lost = ([row for row in some if name in row.shown] for some in (rows, lost))
    places = _places(axes, outcome, name, [*rows, *lost])
    for place, value, row in zip(places, _values(rows), rows, strict=False):
        mine = best is not None and row.point == best.point
        axes.plot(
            place,
            value,
            "o" if row.state == FINISHED else "x",
            color=ORANGE if mine else BLUE if row.state == FINISHED else GREY,
            markersize=9 if mine else 6,
            alpha=1.0 if mine else 0.7,
            zorder=3 if mine else 2,
        )
    _mark_lost(axes, outcome, places[len(rows) :])


def _places(axes: Axes, outcome: SweepResult, name: str, rows: Sequence[TrialRow]) -> list[float]:
    """The place of each row's value of a setting on the axis, which is scaled for them."""
    values = [row.shown[name] for row in rows]
    parameter = next((p for p in outcome.sweep.parameters if p.name == name), None)
    ranged = parameter is not None and parameter.num_values is None
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    kinds = _kinds(rows, name)
    # A few values, such as batch sizes 8 to 512, are evenly spaced.
    if not numeric or (len(kinds) <= _FEW and (not ranged or outcome.sweep.algorithm == "grid")):
        axes.set_xticks(range(len(kinds)), [words.shortened(kind, 16) for kind in kinds])
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


def _mark_lost(axes: Axes, outcome: SweepResult, places: Sequence[float], label: str = "") -> None:
    edge = 0.03 if outcome.sweep.objective.direction == "maximize" else 0.97
    if places:
        axes.plot(places, [edge] * len(places), "x", color=GREY, markersize=6, label=label or None,
                  transform=axes.get_xaxis_transform())  # fmt: skip


def _lines(outcome: SweepResult, rows: Sequence[TrialRow]) -> list[str]:
    """Both parameters of a grid over two with few values each, the longer first; else none."""
    names = [p.name for p in outcome.sweep.parameters if _varies(rows, p.name)]
    few = all(len(_kinds(rows, name)) <= _FEW for name in names)
    if outcome.sweep.algorithm != "grid" or len(names) != 2 or not few:
        return []
    return sorted(names, key=lambda name: -len(_kinds(rows, name)))


def _connect(axes: Axes, rows: Sequence[TrialRow], name: str, other: str) -> None:
    """Join the rows of a grid that differ only in one parameter; the legend names the other."""
    places = {kind: float(i) for i, kind in enumerate(_kinds(rows, name))}
    for color, kind in zip(_LINES, _kinds(rows, other), strict=False):
        line = sorted(
            (places[words.setting(row.shown[name])], row.value or 0.0)
            for row in rows
            if words.setting(row.shown[other]) == kind
        )
        label = f"{table.short_names([other])[other]} {words.shortened(kind, 16)}"
        axes.plot(*zip(*line, strict=True), color=color, linewidth=1.8, label=label, zorder=1.5)
    axes.legend(frameon=False, fontsize=10, labelcolor=INK, loc="best")


def _kinds(rows: Sequence[TrialRow], name: str) -> list[str]:
    """The values of a setting as text, numbers in ascending order."""
    values = [row.shown[name] for row in rows if name in row.shown]
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    return list(dict.fromkeys(map(words.setting, sorted(values) if numeric else values)))


def _lost(outcome: SweepResult) -> list[TrialRow]:
    """Rows without a value that can be drawn."""
    drawn = {row.trial for row in _usable(outcome)}
    return [row for row in outcome.rows if row.trial not in drawn]


def _usable(outcome: SweepResult) -> list[TrialRow]:
    return [
        row
        for row in outcome.rows
        if row.state != FAILED and row.value is not None and math.isfinite(row.value)
    ]


def _values(rows: Sequence[TrialRow]) -> list[float]:
    return [row.value for row in rows if row.value is not None]


def _varies(rows: Sequence[TrialRow], name: str) -> bool:
    return len({words.setting(row.shown[name]) for row in rows if name in row.shown}) > 1


def _importances(outcome: SweepResult) -> dict[str, float]:
    """Each parameter's importance for the best trials; empty for too few trials.

    Source: Watanabe et al. (2023), "PED-ANOVA: efficiently quantifying hyperparameter importance
    in arbitrary subspaces", IJCAI.
    """
    rows = [row for row in _usable(outcome) if row.state == FINISHED]
    varying = [p for p in outcome.sweep.parameters if _varies(rows, p.name)]
    if len(rows) < _MIN_FOR_IMPORTANCE or len(varying) < 2:
        return {}
    study = optuna.create_study(direction=outcome.sweep.objective.direction)
    for row in rows:
        study.add_trial(
            optuna.trial.create_trial(
                params={p.name: p.encode(row.parameters[p.name]) for p in varying},
                distributions={p.name: p.distribution for p in varying},
                value=row.value,
            )
        )
    with warnings.catch_warnings(), suppress(ValueError, RuntimeError):
        warnings.simplefilter("ignore")
        return dict(get_param_importances(study, evaluator=PedAnovaImportanceEvaluator()))
    return {}


def _unit(outcome: SweepResult) -> str:
    objective = outcome.sweep.objective
    return objective.metric if objective.target is None else objective.title


def _named(outcome: SweepResult, row: TrialRow) -> str:
    text = table.settings_text(row.shown, outcome.sweep.constants)
    return f"trial {row.trial}: {words.shortened(text, 70)}"


def _figure(title: str, num: int = 1) -> tuple[Figure, list[Axes]]:
    columns = min(num, _COLUMNS)
    rows = math.ceil(num / columns)
    width = 7.2 if num == 1 else max(7.2, 3.1 * columns)
    height = 4.6 if num == 1 else 0.7 + 3.5 * rows
    figure, panels = figures.panels(title, width, height, rows=rows, columns=columns)
    for spare in panels[num:]:
        spare.remove()
    return figure, panels[:num]


def _y_axis(axes: Axes, values: Sequence[float], metric: str, label: str | None = None) -> None:
    name = metric.rpartition(".")[2]
    scale = AxisScale.of(values, name)
    figures.draw_scale(axes, scale, margin=0.02)
    axes.set_ylabel(metric if label is None else label, color=INK, fontsize=12.5)


def _legend(axes: Axes) -> None:
    longest = max((len(str(text)) for text in axes.get_legend_handles_labels()[1]), default=0)
    figures.draw_legend(axes, 3 if longest < 40 else 1)
