"""A result in a program or a notebook: a table of its rounds, plots, and what a cell shows.

Nothing here shows examples or the model's values.
"""

import base64
import io
from collections.abc import Sequence
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import lookup
from fedloom.simulation.output import curves, metrics, plots, words
from fedloom.simulation.output.history import Result, RoundRecord

if TYPE_CHECKING:
    from pandas import DataFrame


def frame(records: Sequence[RoundRecord]) -> "DataFrame":
    """The rounds as a table; columns that no round has a value for are left out.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        pandas = import_module("pandas")  # optional, and slow to import
    except ImportError as error:
        raise UsageError(
            "frame() needs pandas, which is not installed. Install it with: pip install pandas. "
            "Without it, result.records has every round, and out=… writes metrics.csv."
        ) from error
    rows = [metrics.values(record) for record in records]
    names = metrics.columns(name for row in rows for name in row)
    found = [name for name in names if any(name in row for row in rows)] if rows else names
    table: DataFrame = pandas.DataFrame(rows, columns=found)
    return table


def plot(records: Sequence[RoundRecord], metric: str | None = None) -> Figure:
    """A metric by round; see `Result.plot`.

    Raises:
        UsageError: the metric was never measured.
    """
    known = {m: m for source in curves.SOURCES for m in curves.metric_names(records, source)}
    if metric is None:
        main = curves.main_metric(records)
        if main is None:
            raise UsageError("Expected a round with metrics to plot, got none.")
        metric = main[1]
    figure = plots.metric_figure(records, lookup("a metric", metric, known))
    assert figure is not None
    figure.__class__ = _Shown
    return figure


class _Shown(Figure):
    """A figure that a notebook shows, also without `%matplotlib inline`."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=100)
        return file.getvalue()


def one_line(result: Result) -> str:
    """A result in one line."""
    return f"Result({', '.join(f'{name}: {value}' for name, value in _facts(result).items())})"


def html(result: Result) -> str:
    """A result as a table and the plot of its main metric."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(value)}</td></tr>"
        for name, value in {**_facts(result), "engine": result.engine}.items()
    )
    table = f"<table>{rows}</table>"
    if curves.main_metric(result.records) is None:
        return table
    drawn: Any = plot(result.records)
    picture = base64.b64encode(drawn._repr_png_()).decode()
    label = f"{curves.main_metric(result.records)[1]} by round"  # type: ignore[index] # not None
    return f"{table}<img alt='{escape(label)}' width='620' src='data:image/png;base64,{picture}'>"


def _facts(result: Result) -> dict[str, str]:
    records = result.records
    trained = max((record.trained for record in records), default=0)
    found = {"rounds": f"{trained:,}"}
    if main := curves.main_metric(records):
        source, metric = main
        last = curves.series(records, source, metric)[-1][1]
        found[metric] = f"{words.metric(metric, last)} on {curves.SOURCES[source]}"
    if records and records[-1].virtual_s is not None:
        found["virtual time"] = words.duration(records[-1].virtual_s)
    found["time"] = words.duration(sum(record.round_wall_s for record in records))
    if result.stopped or result.enough:
        found["stopped"] = result.stopped or result.enough
    if result.folder is not None:
        found["folder"] = str(result.folder)
    return found
