"""A study's results as a picture: a panel for each column, a bar for each row, a dot for each run.

Bars are horizontal, so that names can be read at any width.
"""

from pathlib import Path

from matplotlib.axes import Axes

from fedloom.simulation.output import figures
from fedloom.simulation.output.figures import BLUE, GREY, INK, SKY
from fedloom.simulation.studies import table
from fedloom.simulation.studies.study import Column, Study, StudyResults

_PANEL_IN, _ROW_IN = 2.6, 0.34
_ROOM = 1.26
"""Width of a panel over its longest bar: numbers are to the right of the bars."""


def draw(study: Study, results: StudyResults, path: Path) -> None:
    """Draw the columns with `is_drawn` as a PNG at `path`."""
    rows = table.rows(study, results)
    columns = [column for column in table.columns(study, results) if column.is_drawn]
    figure, panels = figures.panels(
        study.title, 1.6 + _PANEL_IN * len(columns), 1.3 + _ROW_IN * len(rows),
        columns=len(columns), title_size=11, label_size=8, grid="x",
    )  # fmt: skip
    tops: dict[str, float] = {}
    for column in columns:
        entries = (column.entry(results, row) for row in rows)
        longest = max(value for entry in entries if entry for value in entry.values)
        tops[column.unit] = max(tops.get(column.unit, 1e-9), longest)
    for axes, column in zip(panels, columns, strict=True):
        is_share = (column.unit or study.metric) == "accuracy"
        _panel(axes, column, results, rows, 1.0 if is_share else tops[column.unit])
    panels[0].set_yticks(range(len(rows)), rows)
    panels[0].invert_yaxis()
    label = "dots are runs" if study.columns else f"{study.metric}; dots are runs"
    figure.supxlabel(label, fontsize=9, color=GREY)
    figures.save(figure, path)


def _panel(axes: Axes, column: Column, results: StudyResults, rows: list[str], top: float) -> None:
    for place, row in enumerate(rows):
        entry = column.entry(results, row)
        if entry is None:
            continue
        axes.barh(place, entry.mean, height=0.62, color=SKY)
        axes.plot(entry.values, [place] * len(entry.values), "o", color=BLUE, markersize=3)
        axes.text(
            0.99, place, column.text(entry).partition(" ±")[0],
            transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=8, color=INK,
        )  # fmt: skip
    axes.set_title(column.title, fontsize=9, color=INK)
    axes.set_xlim(0, _ROOM * top)
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= top * 1.001])
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)
