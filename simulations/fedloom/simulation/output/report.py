"""The report of a simulation: one HTML file that loads no other file.

It contains its styles, charts (inline SVG) and pictures; its Content-Security-Policy forbids the
browser to fetch anything. It follows the reader's light or dark setting, prints in black on white,
and fits a phone. Its script only shows values under the pointer.

Invariant: text from users, such as names and settings, is escaped (jinja2's autoescape; no value is
marked safe).
"""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.version import __version__
from fedloom.simulation.output import curves, drawing, words
from fedloom.simulation.output.history import Result, RoundRecord
from fedloom.simulation.output.summary import load_code

MAX_ROWS = 200
"""Rounds in the table; of longer simulations the first, the last and every n-th between."""
_MAX_WORKERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The content of a report besides the rounds.

    Attributes:
        name: of the experiment.
        settings: every setting with its value, in plain values.
        environment: as of `environment.describe`.
        command: that repeats the simulation; may be empty.
        partition: statistics of the partition by name.
        heat_map: a picture of the partition as PNG; None for none.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    partition: Mapping[str, Any] = field(default_factory=dict)
    heat_map: bytes | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """A large number with its name and a remark."""

    name: str
    value: str
    remark: str = ""
    is_metric: bool = False


def render(result: Result, subject: Subject) -> str:
    """The report as HTML.

    Args:
        result: of the simulation, which may have no rounds.
        subject: the other content.
    """
    records = result.records
    template = _templates().get_template("report.html.jinja")
    return template.render(
        subject=subject,
        result=result,
        version=__version__,
        cards=cards(result),
        charts=drawing.metric_charts(records) if records else [],
        clients=drawing.clients_chart(records) if records else None,
        main=(curves.main_metric(records) or ("", ""))[1],
        milestones=_milestones(records),
        totals=curves.totals(records),
        workers=_workers(records),
        balance=curves.mean_balance(records),
        rows=chosen(records, MAX_ROWS),
        metric_columns=_metric_columns(records),
        virtual=curves.has_virtual_time(records),
        # Without a column of metrics, reasons have a separate column.
        reasons=not _metric_columns(records) and any(r.state == "abandoned" for r in records),
        settings=words.flat(subject.settings),
        environment=words.flat(subject.environment),
        partition=[(name, _counted(value)) for name, value in words.flat(subject.partition)],
        heat_map=_data_url(subject.heat_map),
        load="\n".join(load_code(result)),
        values_of=curves.values_of,
        words=words,
        sources=curves.SOURCES,
    )


def write(path: Path, result: Result, subject: Subject) -> None:
    """Write the report atomically; see `render`."""
    write_whole(path, render(result, subject))


def cards(result: Result) -> list[Card]:
    """The most important numbers."""
    records, sums = result.records, curves.totals(result.records)
    shown = []
    if main := curves.main_metric(records):
        shown += _metric_cards(records, *main)
    if (best := result.best_model) is not None and best["round"] is not None:
        value = f"{best['metric']} {words.metric(best['metric'], best['value'])} on clients"
        shown.append(Card("best model", f"round {best['round']:,}", value))
    remark = f"{sums.abandoned:,} abandoned" if sums.abandoned else ""
    shown.append(Card("rounds", words.count(sums.trained), remark))
    shown.append(
        Card("updates accepted", words.count(sums.clients), words.things(sums.examples, "example"))
    )
    if result.privacy:
        epsilon = next((r.epsilon for r in reversed(records) if r.epsilon is not None), 0.0)
        shown.append(Card("epsilon", words.number(epsilon), "see Privacy below"))
    if sums.virtual_s is not None:
        shown.append(Card("virtual time", words.duration(sums.virtual_s), "on the devices' clock"))
    if moved := sums.bytes_down + sums.bytes_up:
        up, down = words.size(sums.bytes_up), words.size(sums.bytes_down)
        shown.append(Card("traffic", words.size(moved), f"{up} up, {down} down"))
    shown.append(Card("wall time", words.duration(sums.wall_s), "on this machine"))
    shown.append(Card("clients/s", words.rate(sums.clients_per_s), _balance_words(records)))
    return shown


def chosen(records: Sequence[RoundRecord], most: int) -> list[RoundRecord]:
    """At most so many rounds: the first ones, the last ones, and every n-th between."""
    if len(records) <= most:
        return list(records)
    ends = most // 5
    middle = records[ends:-ends]
    step = math.ceil(len(middle) / (most - 2 * ends))
    return [*records[:ends], *middle[step - 1 :: step], *records[-ends:]]


def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("fedloom.simulation.output", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _metric_cards(records: Sequence[RoundRecord], source: str, metric: str) -> list[Card]:
    points = curves.series(records, source, metric)
    last, top = points[-1], curves.best(points, metric)
    shown = [
        Card(
            f"last {metric}",
            words.metric(metric, last[1]),
            f"{curves.SOURCES[source]}, round {last[0]:,.0f}",
            is_metric=True,
        )
    ]
    if top is not None and top != last:
        shown.append(
            Card(f"best {metric}", words.metric(metric, top[1]), f"in round {top[0]:,.0f}")
        )
    return shown


def _milestones(records: Sequence[RoundRecord]) -> list[curves.Milestone]:
    main = curves.main_metric(records)
    return curves.milestones(records, *main) if main else []


def _workers(records: Sequence[RoundRecord]) -> list[curves.WorkerLoad]:
    return curves.workers(records)[:_MAX_WORKERS]


def _balance_words(records: Sequence[RoundRecord]) -> str:
    value = curves.mean_balance(records)
    workers = len(curves.workers(records))
    if value is None:
        return words.things(workers, "worker") if workers else ""
    return f"{words.things(workers, 'worker')}, {words.share(value)} balanced"


def _metric_columns(records: Sequence[RoundRecord]) -> list[tuple[str, str]]:
    """Source and name of each metric with a column in the table."""
    pairs = [(s, name) for s in curves.SOURCES for name in curves.metric_names(records, s)]
    return sorted(pairs, key=lambda pair: list(curves.SOURCES).index(pair[0]))[:8]


def _counted(text: str) -> str:
    return words.count(int(text)) if text.isascii() and text.isdigit() else text


def _data_url(png: bytes | None) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}" if png else ""
