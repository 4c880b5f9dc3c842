"""A sweep's result in words: the table of trials, `trials.csv`, and the best settings as TOML."""

import csv
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from fedloom.protocol.settings import toml
from fedloom.simulation.output import words
from fedloom.simulation.sweep.outcome import FAILED, FINISHED, SweepResult, TrialRow
from fedloom.simulation.sweep.settings import Sweep

MOST = 40
"""Rows of a table; all are in `trials.csv`."""
MOST_WIDE = 70
"""Characters of a state with its reason, likewise."""


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Dotted names by their last part, where that tells them apart.

    >>> short_names(["train.batch_size", "rounds"])
    {'train.batch_size': 'batch_size', 'rounds': 'rounds'}
    >>> short_names(["data.name", "model.name"])
    {'data.name': 'data.name', 'model.name': 'model.name'}
    """
    names = list(dict.fromkeys(names))
    last = [name.rpartition(".")[2] for name in names]
    return {n: s if last.count(s) == 1 else n for n, s in zip(names, last, strict=True)}


def plain(value: Any) -> str:
    """A setting's value, numbers in at most four digits.

    >>> plain(0.30000000000000004), plain(512), plain(True), plain([2, 3])
    ('0.3', '512', 'true', '[2, 3]')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def settings_text(settings: Mapping[str, Any], without: Container[str] = ()) -> str:
    """Settings in a line.

    >>> settings_text({"train.batch_size": 8, "rounds": 20})
    'batch_size 8  rounds 20'
    """
    short = short_names(settings)
    return "  ".join(
        f"{short[name]} {plain(value)}" for name, value in settings.items() if name not in without
    )


def value_text(sweep: Sweep, row: TrialRow) -> str:
    """A row's objective, and with repeats how far they lie apart."""
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
    """Names of what varies, in the order of the rows' own."""
    return list(dict.fromkeys(name for row in rows for name in row.shown))


def trials_table(outcome: SweepResult) -> Table:
    """The trials, best first; what is the same in all of them is left out."""
    ranking = outcome.ranking
    names = [name for name in columns(ranking) if name not in outcome.sweep.constants]
    short = short_names(names)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("", justify="right")
    table.add_column("trial", justify="right")
    table.add_column(outcome.sweep.objective.title, justify="right")
    for name in names:
        numbers = all(isinstance(row.shown.get(name, 0), int | float) for row in ranking)
        table.add_column(short[name], justify="right" if numbers else "left")
    for title in ("trained", "time"):
        table.add_column(title, justify="right")
    table.add_column("state", overflow="fold")
    for place, row in enumerate(ranking[:MOST], 1):
        table.add_row(*_cells(outcome, place, row, names), style=_style(outcome, row))
    return table


def _cells(outcome: SweepResult, place: int, row: TrialRow, names: Sequence[str]) -> list[Text]:
    mark = ": " if row.state == FAILED else ", "
    state = row.state + (f"{mark}{row.reason}" if row.reason else "")
    if len(state) > MOST_WIDE:
        state = state[: MOST_WIDE - 1] + "…"
    return [
        Text(str(place) if row.state == FINISHED else ""),
        Text(str(row.trial)),
        Text(value_text(outcome.sweep, row)),
        *(Text(plain(row.shown[name]) if name in row.shown else "") for name in names),
        Text(words.things(row.rounds, "round")),
        Text(words.duration(row.seconds)),
        Text(state),
    ]


def _style(outcome: SweepResult, row: TrialRow) -> str:
    if row.state == FAILED:
        return "red"
    if outcome.best is not None and row.point == outcome.best.point:
        return "bold green"
    return "" if row.state == FINISHED else "dim"


def write_csv(outcome: SweepResult, path: Path) -> None:
    """Write every simulation in the order of the numbers, numbers in full."""
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
    """A value that a spreadsheet reads as what it is."""
    return str(value).lower() if isinstance(value, bool) else value


def best_toml(outcome: SweepResult) -> str:
    """The best row's settings, ready to paste into the experiment; empty where there is none."""
    best = outcome.best
    if best is None:
        return ""
    tables: dict[str, Any] = {}
    own = set(best.settings) - set(_by_itself(outcome, best))
    for dotted in best.settings:
        if dotted not in own:
            continue
        *path, last = dotted.split(".")
        table = tables
        for part in path:
            table = table.setdefault(part, {})
        table[last] = best.settings[dotted]
    return toml.dumps(tables)


def _by_itself(outcome: SweepResult, best: TrialRow) -> list[str]:
    """Settings that the sweep set by itself and that change no result."""
    asked = {p.setting for p in outcome.sweep.parameters} | set(outcome.sweep.derived)
    return [name for name in best.settings if name == "engine.workers" and name not in asked]


def document(outcome: SweepResult) -> dict[str, Any]:
    """The outcome for machines."""
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
