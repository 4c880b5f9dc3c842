"""A heat map of the labels of each client.

Up to 40 clients are drawn as the rows of a table, with counts in its cells and sizes beside it.
More are drawn as columns, ordered by their labels, with sizes above: a thousand columns in the
order of their names would look like noise.

Colour is the share of a client's examples, so that small clients can be read as well as large ones.
One hue that darkens evenly can be read with any colour vision.
"""

from io import BytesIO
from pathlib import Path
from typing import TypeAlias

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from fedloom.simulation.data.feature_skew import distances
from fedloom.simulation.data.population import Population
from fedloom.simulation.data.statistics import label_counts, total_variations
from fedloom.simulation.output.figures import GREY, INK, canvas
from fedloom.simulation.output.words import shortened

_Inputs: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]] | None
"""Distances of the clients' inputs, and those of a random split."""
_BAR = "#9A9A9A"
_MAX_ROWS = 40
"""Clients that are drawn as rows with names; more are drawn as columns without."""
_MAX_NUMBERED_CLASSES = 20
"""Classes beyond which counts do not fit into cells."""
_COLOURS = ListedColormap(colormaps["Blues"](np.linspace(0.02, 1.0, 256)))


def heat_map(population: Population, path: Path | str | None = None, *, title: str = "") -> bytes:
    """Draw how many examples of each class each client trains on.

    Without class numbers as targets only the sizes are drawn.

    Args:
        population: whose shards to draw.
        path: of the PNG file; by default none is written.
        title: above the picture; by default the number of clients.

    Returns:
        The PNG.
    """
    if population.num_classes is None:
        return _written(_sizes(population, title or f"{len(population):,} clients by size"), path)
    counts, inputs = label_counts(population), distances(population)
    title = title or f"{len(counts):,} clients by label"
    few = len(counts) <= _MAX_ROWS
    # If each place of an example has a target, such as the next character, places are counted.
    unit = "examples" if population.examples.y.ndim == 1 else "targets"
    names = list(population.names)
    figure = _few(counts, names, title, unit, inputs) if few else _many(counts, title, unit, inputs)
    return _written(figure, path)


def _written(figure: Figure, path: Path | str | None) -> bytes:
    buffer = BytesIO()
    # No version of matplotlib in the file: the same population gives the same bytes.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    png = buffer.getvalue()
    if path is not None:
        Path(path).write_bytes(png)
    return png


def _few(
    counts: NDArray[np.int64], names: list[str], title: str, unit: str, inputs: _Inputs
) -> Figure:
    num_clients, num_classes = counts.shape
    map_height = max(0.34 * num_clients, 1.2)
    label_width = 0.35 + 0.085 * min(max(map(len, names)), 30)
    map_width = float(np.clip(0.6 * num_classes, 4.0, 10.0))
    more = 0.0 if inputs is None else 1.9
    width, height = label_width + map_width + 3.35 + more, map_height + 1.62
    figure = canvas(width, height, layout=None)
    bottom = 0.55 / height
    map_box = (label_width / width, bottom, map_width / width, map_height / height)
    axes = figure.add_axes(map_box)
    shares = counts / counts.sum(axis=1, keepdims=True)
    image = axes.imshow(shares, cmap=_COLOURS, vmin=0, vmax=_top(shares), aspect="auto")
    if num_classes <= _MAX_NUMBERED_CLASSES:
        _number(axes, counts, shares / _top(shares))
    axes.set_yticks(range(num_clients), [shortened(name, 30) for name in names])
    axes.set_xlabel("class", color=INK)
    _class_ticks(axes, num_classes)
    _lines_between(axes, num_clients, num_classes)

    left = (label_width + map_width + 0.12) / width
    sizes = figure.add_axes((left, bottom, 1.35 / width, map_height / height), sharey=axes)
    totals = counts.sum(axis=1)
    sizes.barh(range(num_clients), totals, color=_BAR, height=0.72)
    for row, total in enumerate(totals):
        sizes.annotate(
            f"{total:,}",
            (total, row),
            (3, 0),
            textcoords="offset points",
            va="center",
            size=8,
            color=INK,
        )
    sizes.set_xlim(0, totals.max() * 1.02)
    sizes.set_title(unit, size=9, color=INK, loc="left")
    sizes.tick_params(left=False, labelleft=False, bottom=False, labelbottom=False)
    sizes.tick_params(which="minor", left=False)
    _strip(sizes)

    if inputs is not None:
        box = (left + 2.05 / width, bottom, 1.35 / width, map_height / height)
        _input_bars(figure.add_axes(box, sharey=axes), *inputs)
    bar = (left + (2.3 + more) / width, bottom, 0.13 / width, map_height / height)
    _colour_bar(figure, image, bar, unit)
    _title(figure, label_width / width, title, _subtitle(counts, unit))
    return figure


def _input_bars(axes: Axes, own: NDArray[np.float64], at_random: NDArray[np.float64]) -> None:
    """Distances of the clients' inputs from all inputs, and a line for a random split."""
    axes.barh(range(len(own)), own, color=_BAR, height=0.72)
    for row, distance in enumerate(own):
        axes.annotate(
            f"{distance:.2f}",
            (distance, row),
            (3, 0),
            textcoords="offset points",
            va="center",
            size=8,
            color=INK,
        )
    axes.axvline(at_random.mean(), color=INK, linestyle=(0, (2, 2)), linewidth=1)
    axes.set_xlim(0, max(float(own.max()), float(at_random.mean()), 1e-9) * 1.02)
    axes.set_title("distance of inputs\n(line: random split)", size=9, color=INK, loc="left")
    axes.tick_params(left=False, labelleft=False, bottom=False, labelbottom=False)
    axes.tick_params(which="minor", left=False)
    _strip(axes)


def _many(counts: NDArray[np.int64], title: str, unit: str, inputs: _Inputs) -> Figure:
    num_clients, num_classes = counts.shape
    subtitle = _subtitle(counts, unit)
    if inputs is not None:
        own, at_random = (found.mean() for found in inputs)
        subtitle += f"; inputs {own:.2f} from all inputs (random split: {at_random:.2f})"
    counts = counts[_by_likeness(counts)]
    map_height = float(np.clip(0.3 * num_classes, 2.0, 6.5))
    width, height = 11.5, map_height + 2.2
    figure = canvas(width, height, layout=None)
    left, right = 0.75 / width, 1.05 / width
    bottom = 0.5 / height
    axes = figure.add_axes((left, bottom, 1 - left - right, map_height / height))
    shares = (counts / counts.sum(axis=1, keepdims=True)).T
    image = axes.imshow(
        shares, cmap=_COLOURS, vmin=0, vmax=_top(shares), aspect="auto", interpolation="nearest"
    )
    axes.set_ylabel("class", color=INK)
    _class_ticks(axes, num_classes, rows=True)
    axes.set_xticks([])
    axes.set_xlabel(f"{num_clients:,} clients, ordered by their labels", color=INK, labelpad=8)
    _strip(axes)

    above = bottom + (map_height + 0.12) / height
    sizes = figure.add_axes((left, above, 1 - left - right, 0.75 / height), sharex=axes)
    totals = counts.sum(axis=1)
    sizes.fill_between(
        np.repeat(np.arange(num_clients + 1) - 0.5, 2)[1:-1],
        np.repeat(totals, 2),
        color=_BAR,
        linewidth=0,
    )
    sizes.set_xlim(-0.5, num_clients - 0.5)
    sizes.set_ylim(0, totals.max() * 1.05)
    sizes.set_ylabel(unit, color=INK, size=9)
    sizes.set_yticks([0, int(totals.max())])
    sizes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    sizes.tick_params(bottom=False, labelbottom=False, labelsize=8, colors=GREY)
    _strip(sizes)

    bar = (1 - right + 0.15 / width, bottom, 0.13 / width, map_height / height)
    _colour_bar(figure, image, bar, unit)
    _title(figure, left, title, subtitle)
    return figure


def _sizes(population: Population, title: str) -> Figure:
    sizes = np.sort(population.sizes)[::-1]
    width, height = 9.0, 3.4
    figure = canvas(width, height, layout=None)
    axes = figure.add_axes((0.09, 0.17, 0.88, 0.58))
    edges = np.arange(len(sizes) + 1) - 0.5
    axes.fill_between(
        np.repeat(edges, 2)[1:-1], np.repeat(sizes, 2), color=_COLOURS(0.7), linewidth=0
    )
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_ylim(0, sizes[0] * 1.05)
    axes.set_xticks([])
    axes.set_xlabel(f"{len(sizes):,} clients, the largest first", color=INK)
    axes.set_ylabel("examples", color=INK)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.tick_params(length=0, labelsize=9, colors=INK)
    _strip(axes)
    subtitle = f"{sizes[-1]:,} to {sizes[0]:,} examples each, {sizes.sum():,} in all"
    _title(figure, 0.09, title, subtitle)
    return figure


def _by_likeness(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The order of clients by most frequent class, its share, and second most frequent class."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    commonest = np.argsort(-shares, axis=1, kind="stable")
    most = np.rint(shares.max(axis=1) * 50)
    return np.lexsort((commonest[:, min(1, shares.shape[1] - 1)], -most, commonest[:, 0]))


def _subtitle(counts: NDArray[np.int64], unit: str) -> str:
    sizes = counts.sum(axis=1)
    each = (
        f"{sizes.min():,} {unit.removesuffix('s') if sizes.min() == 1 else unit} each"
        if sizes.min() == sizes.max()
        else f"{sizes.min():,} to {sizes.max():,} {unit} each"
    )
    return (
        f"{each}; mean total variation from all labels {total_variations(counts).mean():.2f} "
        "(0: equal, 1: disjoint)"
    )


def _top(shares: NDArray[np.float64]) -> float:
    """The end of the colour scale: the largest share, rounded up to a tenth."""
    return float(min(1.0, max(0.1, np.ceil(shares.max() * 10 - 1e-9) / 10)))


def _number(axes: Axes, counts: NDArray[np.int64], depth: NDArray[np.float64]) -> None:
    for (row, column), count in np.ndenumerate(counts):
        axes.annotate(
            f"{count:,}" if count else "·",
            (column, row),
            ha="center",
            va="center",
            size=8,
            color="white" if depth[row, column] > 0.55 else INK if count else GREY,
        )


def _class_ticks(axes: Axes, num_classes: int, *, rows: bool = False) -> None:
    room = 26 if rows else 20
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 1000) if num_classes / step <= room)
    ticks = range(0, num_classes, step)
    (axes.set_yticks if rows else axes.set_xticks)(ticks)
    axes.tick_params(length=0, labelsize=9, colors=INK)


def _lines_between(axes: Axes, num_rows: int, num_columns: int) -> None:
    if num_columns <= 2 * _MAX_NUMBERED_CLASSES:
        axes.set_xticks(np.arange(num_columns - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(num_rows - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)
    _strip(axes)


def _colour_bar(
    figure: Figure, image: object, box: tuple[float, float, float, float], unit: str
) -> None:
    bar = figure.colorbar(image, cax=figure.add_axes(box))  # type: ignore[arg-type]
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_locator(MaxNLocator(5))
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    bar.ax.tick_params(length=0, labelsize=8, colors=INK)
    bar.ax.set_title(f"of a client's\n{unit}", size=8, color=INK, loc="left", pad=6)


def _title(figure: Figure, left: float, title: str, subtitle: str) -> None:
    height = figure.get_size_inches()[1]
    figure.text(left, 1 - 0.28 / height, title, size=13, weight="bold", color=INK, va="center")
    figure.text(left, 1 - 0.55 / height, subtitle, size=9, color=GREY, va="center")


def _strip(axes: Axes) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
