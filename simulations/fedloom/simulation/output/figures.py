"""Figures of all reports: one canvas, title, axes, legend and file for every kind of picture.

Colours are Okabe and Ito's, which people with any colour vision can tell apart. Figures use Agg
canvases, never pyplot: the figures of a notebook or a server stay as they are.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from fedloom.protocol.atomic_files import drafted
from fedloom.simulation.output.scales import (
    AxisScale,
    byte_ticks,
    byte_unit,
    time_ticks,
    time_unit,
    whole_ticks,
)
from fedloom.simulation.output.words import shortened

INK, GREY, LINE = "#222222", "#6E6E6E", "#E3E3E3"
BLUE, ORANGE, GREEN, SKY = "#0072B2", "#D55E00", "#009E73", "#56B4E9"
YELLOW, AMBER, PINK = "#F0E442", "#E69F00", "#CC79A7"
_TITLE_LETTERS = 8.1
"""Letters of a title of 15 points that fit into one inch."""


def canvas(width: float, height: float, layout: str | None = "constrained") -> Figure:
    """An empty figure of this size in inches."""
    size = (width, height)
    figure = Figure(figsize=size, dpi=150, facecolor="white", layout=layout)  # type: ignore[arg-type] # a literal in its stub
    FigureCanvasAgg(figure)
    return figure


def panels(
    title: str, width: float, height: float, *,
    rows: int = 1, columns: int = 1, title_size: float = 15, label_size: float = 12,
    grid: str = "y", share: bool | Literal["row"] = True,
) -> tuple[Figure, list[Axes]]:  # fmt: skip
    """A figure with a title over panels.

    Args:
        title: shortened where it is wider than the figure.
        width: in inches.
        height: in inches.
        rows: of panels.
        columns: of panels.
        title_size: in points.
        label_size: of the labels of ticks, in points.
        grid: the axis that has grid lines, `x` or `y`.
        share: whether the panels, or those of each `row`, share their vertical axis.
    """
    figure = canvas(width, height)
    most = int(_TITLE_LETTERS * width * 15 / title_size)
    figure.suptitle(
        as_text(shortened(title, most)), x=0.01, ha="left", fontsize=title_size,
        fontweight="bold", color=INK,
    )  # fmt: skip
    drawn: Any = figure.subplots(rows, columns, squeeze=False, sharey=share).flat
    for axes in (found := list(drawn)):
        style(axes, label_size)
        axes.xaxis.label.set_fontsize(label_size + 1)
        axes.grid(axis=grid, color=LINE, linewidth=0.9)
    return figure, found


def style(axes: Axes, label_size: float) -> None:
    """Draw the left and the lower spine alone, and grids below the data.

    Args:
        axes: of any picture.
        label_size: of the labels of ticks, in points.
    """
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#B0B0B0")
    axes.tick_params(colors=INK, labelsize=label_size)
    axes.set_axisbelow(True)


def draw_scale(axes: Axes, scale: AxisScale, margin: float = 0.0) -> None:
    """Draw the vertical axis.

    Args:
        axes: to change.
        scale: its range, ticks and labels.
        margin: room beyond both ends of a linear axis, as a share of its length.
    """
    if scale.log:
        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(NullLocator())
        margin = 0.0
    room = margin * (scale.high - scale.low)
    axes.set_ylim(scale.low - room, scale.high + room)
    axes.set_yticks(scale.ticks, [scale.label(tick) for tick in scale.ticks])


def draw_rounds(axes: Axes, low: float, high: float) -> None:
    """Draw ticks of rounds on the horizontal axis."""
    ticks = whole_ticks(low, high) if low < high else (low,)
    axes.set_xlabel("round", color=INK)
    axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])


def draw_seconds(axes: Axes, longest_s: float, name: str) -> None:
    """Draw ticks of time on the horizontal axis, in the unit that suits the longest time."""
    unit_s, unit = time_unit(longest_s)
    ticks = time_ticks(longest_s)
    axes.set_xticks(ticks, [f"{tick / unit_s:g}" for tick in ticks])
    axes.set_xlabel(f"{name} ({unit})", color=INK)


def draw_bytes(axes: Axes, most: float, name: str) -> None:
    """Draw ticks of bytes on the horizontal axis, in the binary unit that suits the most."""
    size, unit = byte_unit(most)
    ticks = byte_ticks(most)
    axes.set_xticks(ticks, [f"{tick / size:g}" for tick in ticks])
    axes.set_xlabel(f"{name} ({unit})" if unit != name else name, color=INK)


def draw_legend(axes: Axes, columns: int, title: str = "") -> None:
    """Draw the legend below the panel and its labels, its title above the entries."""
    assert axes.figure is not None
    drawn = axes.figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns,
        frameon=False, fontsize=11, handlelength=2.2, labelcolor=INK, title=as_text(title),
        title_fontsize=10.5,
    )  # fmt: skip
    drawn.get_title().set_color(GREY)


def as_text(text: str) -> str:
    """Text without formulas: a dollar sign in a name would begin one."""
    return text.replace("$", r"\$")


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG file atomically and return its path."""
    with drafted(path) as draft:
        figure.savefig(draft, format="png")
    return path


def save_all(folder: Path, figures: Sequence[tuple[str, Figure | None]]) -> list[Path]:
    """Write figures under their names and return their paths; None is left out."""
    return [save(figure, folder / f"{name}.png") for name, figure in figures if figure is not None]
