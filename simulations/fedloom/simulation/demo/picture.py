"""The demo's picture: the learning curve of the federated model above the clients' examples.

Each curve has its label beside it, in place of a legend.
"""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedloom.simulation.demo.report import DemoResult
from fedloom.simulation.output import figures, words
from fedloom.simulation.output.figures import BLUE, GREY, INK, LINE, ORANGE, style

_TOP = 1.02
_MIN_GAP = 0.055
"""Smallest distance between two labels, as a fraction of the axis."""


def draw(outcome: DemoResult, path: Path) -> None:
    """Draw an outcome as a PNG at `path`."""
    height = 5.2 + 0.6 + 0.36 * len(outcome.counts)
    figure = figures.canvas(9.5, height, layout=None)
    curves, shards = figure.subplots(
        2,
        1,
        gridspec_kw={
            "height_ratios": (3.6, 0.36 * len(outcome.counts)),
            "left": 0.085,
            "right": 0.76,
            "top": 1 - 0.85 / height,
            "bottom": 0.45 / height,
            "hspace": 0.42,
        },
    )
    _draw_curves(curves, outcome)
    _draw_shards(shards, outcome)
    figures.save(figure, path)


def _draw_curves(axes: Axes, outcome: DemoResult) -> None:
    settings = outcome.settings
    alone = sorted(outcome.baselines.alone.values())
    central, median = outcome.baselines.centralised[-1], float(np.median(alone))
    axes.axhspan(alone[0], alone[-1], color=GREY, alpha=0.15, linewidth=0)
    axes.axhline(median, color=GREY, linewidth=1.2, linestyle=(0, (1, 2)))
    _plot(axes, outcome)
    spread = f"{words.share(alone[0])} to {words.share(alone[-1])},\nmedian {words.share(median)}"
    _name(
        axes,
        [
            (central, f"centralised {words.share(central)}", ORANGE),
            (outcome.accuracy, f"federated {words.share(outcome.accuracy)}", BLUE),
            (median, f"each client alone\n{spread}", GREY),
        ],
    )
    _title(
        axes,
        f"{settings.num_clients} clients learn {settings.data}: {words.share(outcome.accuracy)}",
        f"federated averaging, labels skewed by Dirichlet({settings.alpha:g}); accuracy on "
        f"{outcome.num_held_out:,} held-out examples",
    )
    axes.set_ylim(0, _TOP)
    axes.set_xlabel("rounds", color=INK)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    style(axes, 9.5)
    _draw_detail(axes, outcome)


def _plot(axes: Axes, outcome: DemoResult) -> None:
    """Draw both curves; each round of the centralised one has as many passes over the data."""
    centralised = (outcome.federated[0], *outcome.baselines.centralised)
    axes.plot(centralised, color=ORANGE, linewidth=1.5, linestyle=(0, (4, 2)))
    axes.plot(outcome.federated, color=BLUE, linewidth=2.2, marker="o", markersize=3.5)
    axes.set_xlim(0, len(outcome.federated) - 0.8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(axis="y", color=LINE, linewidth=0.8)


def _draw_detail(axes: Axes, outcome: DemoResult) -> None:
    """Enlarge the ends of the curves, which a scale of 0 to 100% cannot show."""
    floor = np.floor(20 * min(outcome.accuracy, outcome.baselines.centralised[-1]) - 0.5) / 20
    ground = Rectangle(
        (0.32, 0.02), 0.68, 0.47, transform=axes.transAxes, color="white", zorder=1.9
    )
    axes.add_patch(ground)
    detail = axes.inset_axes((0.4, 0.1, 0.57, 0.33))
    _plot(detail, outcome)
    detail.set_ylim(floor, 1)
    detail.set_title("the same, enlarged", fontsize=9, color=GREY, loc="left")
    detail.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    detail.yaxis.set_major_locator(MaxNLocator(5))
    style(detail, 8.5)


def _draw_shards(axes: Axes, outcome: DemoResult) -> None:
    clients = list(outcome.counts)
    counts = np.array([outcome.counts[client] for client in clients])
    colors = colormaps["Set3" if counts.shape[1] <= 12 else "tab20"](range(counts.shape[1]))
    starts = np.cumsum(counts, axis=1) - counts
    widest = counts.sum(axis=1).max()
    for label in range(counts.shape[1]):
        axes.barh(
            clients,
            counts[:, label],
            left=starts[:, label],
            height=0.74,
            color=colors[label],
            edgecolor="white",
            linewidth=0.8,
        )
        for row, (start, count) in enumerate(zip(starts[:, label], counts[:, label], strict=True)):
            if count > 0.025 * widest:
                middle = start + count / 2
                axes.text(middle, row, str(label), ha="center", va="center", fontsize=8, color=INK)
    for row, client in enumerate(clients):
        total, alone = counts[row].sum(), outcome.baselines.alone[client]
        text = f"{total:,} examples, alone {words.share(alone)}"
        _beside(axes, row, text, fontsize=9, color=GREY)
    _title(axes, "Training examples of each client", "by label")
    axes.invert_yaxis()
    axes.set_xlim(0, widest)
    axes.tick_params(axis="y", length=0)
    style(axes, 9.5)
    axes.spines["left"].set_visible(False)


def _name(axes: Axes, labels: list[tuple[float, str, str]]) -> None:
    """Write labels at the right end of the curves, moved apart where they would touch."""
    ceiling = _TOP
    for height, text, color in sorted(labels, reverse=True):
        position = min(height, ceiling)
        _beside(axes, position, text, fontsize=10.5, color=color, fontweight="bold")
        ceiling = position - _MIN_GAP * (1 + text.count("\n"))


def _beside(axes: Axes, height: float, text: str, **look: Any) -> None:
    axes.annotate(text, (1.02, height), xycoords=("axes fraction", "data"), va="center", **look)


def _title(axes: Axes, title: str, subtitle: str) -> None:
    lines: tuple[tuple[str, int, dict[str, Any]], ...] = (
        (title, 22, {"fontsize": 13, "fontweight": "bold", "color": INK}),
        (subtitle, 7, {"fontsize": 9.5, "color": GREY}),
    )
    for text, height, look in lines:
        axes.annotate(
            text, (0, 1), xytext=(0, height), xycoords="axes fraction", textcoords="offset points",
            **look,
        )  # fmt: skip
