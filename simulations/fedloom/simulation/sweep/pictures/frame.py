"""What a sweep's pictures share: which rows have a value, the settings that vary, axes, legends."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedloom.simulation.output import figures, words
from fedloom.simulation.output.figures import INK
from fedloom.simulation.output.scales import AxisScale
from fedloom.simulation.sweep import table
from fedloom.simulation.sweep.outcome import FAILED, SweepResult, TrialRow

FEW = 8
"""Values of a setting that are evenly spaced, such as batch sizes 8 to 512."""
_LEGEND_LETTERS = 76


def usable(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Rows with a value that can be drawn."""
    return [r for r in rows if r.state != FAILED and r.value is not None and math.isfinite(r.value)]


def lost(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """The other rows."""
    drawn = {row.trial for row in usable(rows)}
    return [row for row in rows if row.trial not in drawn]


def values(rows: Sequence[TrialRow], name: str = "value") -> list[float]:
    """A field of each row, where it has one."""
    return [value for row in rows if (value := getattr(row, name)) is not None]


def varies(rows: Sequence[TrialRow], name: str) -> bool:
    """Whether a setting has several values."""
    return len(kinds(rows, name)) > 1


def kinds(rows: Sequence[TrialRow], name: str) -> list[str]:
    """The values of a setting as text: numbers in ascending order, others as first tried."""
    found = [row.shown[name] for row in sorted(rows, key=_trial) if name in row.shown]
    return list(dict.fromkeys(map(words.setting, sorted(found) if numeric(found) else found)))


def labels(rows: Sequence[TrialRow], name: str) -> dict[str, str]:
    """The label of each of the kinds: of tables the name alone, where names tell them apart."""
    texts = kinds(rows, name)
    tables = all(isinstance(row.shown[name], Mapping) for row in rows if name in row.shown)
    brief = [text.partition(",")[0] for text in texts]
    return dict(
        zip(texts, brief if tables and len(set(brief)) == len(brief) else texts, strict=True)
    )


def _trial(row: TrialRow) -> int:
    return row.trial


def numeric(found: Sequence[Any]) -> bool:
    """Whether all values are numbers."""
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in found)


def unit(outcome: SweepResult) -> str:
    """The name of the objective's axis."""
    objective = outcome.sweep.objective
    return objective.metric if objective.target is None else objective.title


def named(outcome: SweepResult, row: TrialRow, most: int = 70) -> str:
    """A row's settings in one line, without those that never vary."""
    text = table.settings_text(row.shown, outcome.sweep.constants)
    return words.shortened(text or f"trial {row.trial}", most)


def ends(outcome: SweepResult, row: TrialRow, name: str = "value") -> tuple[float, ...]:
    """A field's mean, between mean ± deviation where it has one; no share is below 0 or above 1."""
    mean, deviation = getattr(row, name), row.sample(name).deviation
    if deviation is None:
        return (mean,)
    low, high = mean - deviation, mean + deviation
    if name == "value" and 0 <= mean <= 1 and words.is_share(unit(outcome).rpartition(".")[2]):
        low, high = max(low, 0.0), min(high, 1.0)
    return low, mean, high


def figure(title: str) -> tuple[Figure, Axes]:
    """A figure with one panel."""
    drawn, (axes,) = figures.panels(title, 7.2, 4.6)
    return drawn, axes


def y_axis(axes: Axes, found: Sequence[float], metric: str, label: str | None = None) -> None:
    """Draw the axis of a metric; a share in percent."""
    scale = AxisScale.of(found, metric.rpartition(".")[2])
    figures.draw_scale(axes, scale, margin=0.02)
    axes.set_ylabel(metric if label is None else label, color=INK, fontsize=12.5)


def legend(axes: Axes, title: str = "") -> None:
    """Draw the legend below the panel, in as many columns as its texts leave room for."""
    texts = [str(text) for text in axes.get_legend_handles_labels()[1]]
    longest = max(map(len, texts), default=0)
    columns = max(1, min(4, len(texts), _LEGEND_LETTERS // (longest + 6)))
    figures.draw_legend(axes, columns, title)
