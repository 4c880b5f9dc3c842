"""A sweep's result as text: the table of trials, `trials.csv`, and the best settings as TOML."""

import csv
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fedloom.cli.common import output
from fedloom.protocol.settings import toml
from fedloom.simulation.output import words
from fedloom.simulation.sweep.outcome import FAILED, FINISHED, SweepResult, TrialRow
from fedloom.simulation.sweep.settings import Sweep

MOST = 40
"""Rows of the table; `trials.csv` has all."""
MOST_WIDE = 70
"""Characters of a state with its reason."""


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Dotted names by their last part, where that is unique.

    >>> short_names(["train.batch_size", "rounds"])
    {'train.batch_size': 'batch_size', 'rounds': 'rounds'}
    >>> short_names(["data.name", "model.name"])
    {'data.name': 'data.name', 'model.name': 'model.name'}
    """
    names = list(dict.fromkeys(names))
    last = [name.rpartition(".")[2] for name in names]
    return {n: s if last.count(s) == 1 else n for n, s in zip(names, last, strict=True)}


def settings_text(settings: Mapping[str, Any], without: Container[str] = ()) -> str:
    """Settings in one line.

    >>> settings_text({"train.batch_size": 8, "rounds": 20})
    'batch_size 8  rounds 20'
    """
    short = short_names(settings)
    return "  ".join(
        f"{short[name]} {words.setting(value)}"
        for name, value in settings.items()
        if name not in without
    )


def value_text(sweep: Sweep, row: TrialRow) -> str:
    """A row's objective; of repeats the mean and half their range."""
    value, target = row.value, sweep.objective.target
    if value is None:
        return words.ABSENT
    if math.isinf(value):
        return "never" if target is not None else "diverged"
    if target is None:
        name = sweep.objective.metric.rpartition(".")[2]
        text = words.metric(name, value)
        spread = "" if row.spread is None else f" ±{words.metric(name, row.spread / 2)}"
        return text + spread
    spread = "" if row.spread is None else f" ±{row.spread / 2:.1f}"
    return f"{value:.1f}{spread}"


def columns(rows: Sequence[TrialRow]) -> list[str]:
    """Names of the settings that vary, in the order of the rows."""
    return list(dict.fromkeys(name for row in rows for name in row.shown))


def trials_table(outcome: SweepResult) -> Table:
    """The trials, best first; settings that are equal in all of them are omitted."""
    ranking = outcome.ranking
    names = [name for name in columns(ranking) if name not in outcome.sweep.constants]
    short = short_names(names)
    numbers = {n for n in names if all(isinstance(r.shown.get(n, 0), int | float) for r in ranking)}
    titles = (
        *("", ">trial", f">{outcome.sweep.objective.title}"),
        *(f">{short[name]}" if name in numbers else short[name] for name in names),
        *(">trained", ">time", "~state"),
    )
    shown = ranking[:MOST]
    table = output.make_table(
        titles, [_cells(outcome, place, row, names) for place, row in enumerate(shown, 1)]
    )
    for line, row in zip(table.rows, shown, strict=True):
        line.style = _style(outcome, row)
    return table


def _cells(outcome: SweepResult, place: int, row: TrialRow, names: Sequence[str]) -> list[str]:
    mark = ": " if row.state == FAILED else ", "
    cells = (
        str(place) if row.state == FINISHED else "",
        str(row.trial),
        value_text(outcome.sweep, row),
        *(words.setting(row.shown[name]) if name in row.shown else "" for name in names),
        words.things(row.rounds, "round"),
        words.duration(row.seconds),
        words.shortened(row.state + (f"{mark}{row.reason}" if row.reason else ""), MOST_WIDE),
    )
    return [output.escape(cell) for cell in cells]


def _style(outcome: SweepResult, row: TrialRow) -> str:
    if row.state == FAILED:
        return "red"
    if outcome.best is not None and row.point == outcome.best.point:
        return "bold green"
    return "" if row.state == FINISHED else "dim"


def write_csv(outcome: SweepResult, path: Path) -> None:
    """Write every simulation, ordered by number, with all digits."""
    names = columns(outcome.rows)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        title = outcome.sweep.objective.title
        writer.writerow(["trial", "point", "state", title, *names, "rounds", "seconds", "reason"])
        for row in outcome.rows:
            value = "" if row.value is None else row.value
            shown = [plain_exact(row.shown.get(name, "")) for name in names]
            writer.writerow(
                [row.trial, row.point, row.state, value, *shown, row.rounds, row.seconds,
                 row.reason]
            )  # fmt: skip


def plain_exact(value: Any) -> Any:
    """A value as a spreadsheet reads it."""
    return str(value).lower() if isinstance(value, bool) else value


def best_toml(outcome: SweepResult) -> str:
    """The best row's settings, ready to paste into the experiment; empty without a best row."""
    best = outcome.best
    if best is None:
        return ""
    tables: dict[str, Any] = {}
    asked = {p.setting for p in outcome.sweep.parameters} | set(outcome.sweep.derived)
    for dotted in best.settings:
        if dotted == "engine.workers" and dotted not in asked:
            continue  # set by the sweep; it changes no result
        *path, last = dotted.split(".")
        table = tables
        for part in path:
            table = table.setdefault(part, {})
        table[last] = best.settings[dotted]
    return toml.dumps(tables)


def document(outcome: SweepResult) -> dict[str, Any]:
    """The outcome as a JSON document."""
    best = outcome.best
    return {
        "name": outcome.sweep.name,
        "folder": str(outcome.folder),
        "objective": outcome.sweep.objective.title,
        "direction": outcome.sweep.objective.direction,
        "num_trials": outcome.num_trials,
        "complete": len(outcome.rows) == outcome.num_trials,
        "best": None if best is None else best.as_dict(),
        "trials": [row.as_dict() for row in outcome.rows],
    }
