"""A sweep's result as text: the table of trials, `trials.csv`, and the best settings as TOML."""

import csv
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fedloom.cli.common import output
from fedloom.protocol.settings import toml
from fedloom.simulation.output import words
from fedloom.simulation.sweep.objective import TRAINED
from fedloom.simulation.sweep.outcome import FAILED, FINISHED, Sample, SweepResult, TrialRow
from fedloom.simulation.sweep.settings import Sweep

MOST = 40
"""Rows of the table; `trials.csv` has all."""
COSTS = ("rounds", "seconds", "wall_s", "virtual_s", "bytes_down", "bytes_up")
"""Columns of what a simulation took; `seconds` has its start, `wall_s` its rounds alone."""
_KINDS = ("mean", "deviation")
MOST_WIDE = 70
"""Characters of a state with its reason."""


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Dotted names by their last part, or the one before `name`, where that is unique.

    >>> short_names(["train.batch_size", "rounds"])
    {'train.batch_size': 'batch_size', 'rounds': 'rounds'}
    >>> short_names(["model.name", "a.rate", "b.rate"])
    {'model.name': 'model', 'a.rate': 'a.rate', 'b.rate': 'b.rate'}
    """
    names = list(dict.fromkeys(names))
    last = [name.removesuffix(".name").rpartition(".")[2] for name in names]
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
    """A row's objective; of repeats the mean ± the sample standard deviation."""
    value, target = row.value, sweep.objective.target
    if value is None:
        return words.ABSENT
    if math.isinf(value):
        lost, of = sum(map(math.isinf, row.sample().values)), len(row.sample().values)
        some = f" in {lost} of {of}" if lost < of else ""
        return ("never" if target is not None else "diverged") + some
    if sweep.objective.metric == TRAINED:
        return words.things(round(value), "round")
    name = sweep.objective.metric.rpartition(".")[2]
    form = (lambda x: words.metric(name, x)) if target is None else "{:.1f}".format
    return with_deviation(form, row.sample())


def with_deviation(form: Callable[[float], str], sample: Sample) -> str:
    """A mean ± its sample standard deviation; of one value the value.

    >>> with_deviation("{:.1f}".format, Sample((1.0, 2.0, 3.0)))
    '2.0 ±1.0'
    """
    text = words.ABSENT if sample.mean is None else form(sample.mean)
    return text if sample.deviation is None else f"{text} ±{form(sample.deviation)}"


def deviation_note(num: int) -> str:
    """What means, ±, bars and bands over so many seeds are; empty for one."""
    return words.over_seeds(num) if num > 1 else ""


def columns(rows: Sequence[TrialRow]) -> list[str]:
    """Names of the settings that vary, in the order of the rows."""
    return list(dict.fromkeys(name for row in rows for name in row.shown))


def trials_table(outcome: SweepResult) -> Table:
    """The trials, best first; settings that are equal in all of them are omitted.

    Repeats are one row: means ± deviations.
    """
    ranking = outcome.ranking
    names = [name for name in columns(ranking) if name not in outcome.sweep.constants]
    short = short_names(names)
    numbers = {n for n in names if all(isinstance(r.shown.get(n, 0), int | float) for r in ranking)}
    titles = (
        *("", ">trial", f">{outcome.sweep.objective.title}"),
        *(f">{short[name]}" if name in numbers else short[name] for name in names),
        *(">trained", ">time"),
        *((">bytes",) if _has_bytes(outcome.rows) else ()),
        "~state",
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
        with_deviation(words.duration, row.sample("seconds")),
        *((output.size(row.bytes_down + row.bytes_up),) if _has_bytes(outcome.rows) else ()),
        words.shortened(_state(row) + (f"{mark}{row.reason}" if row.reason else ""), MOST_WIDE),
    )
    return [output.escape(cell) for cell in cells]


def _state(row: TrialRow) -> str:
    """Such as `finished`, or `finished 4 of 5`."""
    same = len(row.each) or 1
    return row.state if same == row.repeats else f"{row.state} {same} of {row.repeats}"


def _has_bytes(rows: Sequence[TrialRow]) -> bool:
    return any(row.bytes_down + row.bytes_up for row in rows)


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
        seed = ["seed"] if outcome.sweep.repeats > 1 else []
        writer.writerow(["trial", "point", *seed, "state", title, *names, *COSTS, "reason"])
        for row in outcome.rows:
            shown = [plain_exact(row.shown.get(name, "")) for name in names]
            costs = [_exact(getattr(row, name)) for name in COSTS]
            own = [row.settings.get(name, "") for name in seed]
            head = [row.trial, row.point, *own, row.state, _exact(row.value)]
            writer.writerow([*head, *shown, *costs, row.reason])


def write_means(outcome: SweepResult, path: Path) -> None:
    """Write the different settings, best first: means and sample standard deviations (n - 1)."""
    ranking, title = outcome.ranking, outcome.sweep.objective.title
    names, measured = columns(ranking), {"value": title, **dict.fromkeys(COSTS)}
    heads = [f"{head or name} {kind}" for name, head in measured.items() for kind in _KINDS]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["point", "state", "seeds", "of", *heads, *names, "reason"])
        for row in ranking:
            samples = [row.sample(name) for name in measured]
            figures = [_exact(x) for s in samples for x in (s.mean, s.deviation)]
            shown = [plain_exact(row.shown.get(name, "")) for name in names]
            num = len(row.each) or 1
            writer.writerow([row.point, row.state, num, row.repeats, *figures, *shown, row.reason])


def _exact(value: float | None) -> float | str:
    return "" if value is None else value


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
        repeated = dotted == "seed" and outcome.sweep.repeats > 1
        if (dotted == "engine.workers" and dotted not in asked) or repeated:
            continue  # set by the sweep; no result depends on the workers
        *path, last = dotted.split(".")
        table = tables
        for part in path:
            table = table.setdefault(part, {})
        table[last] = best.settings[dotted]
    return toml.dumps(tables)


def _with_deviation(row: TrialRow) -> dict[str, Any]:
    return {**row.as_dict(), "deviation": row.deviation, "seeds": len(row.each) or 1}


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
        "best": None if best is None else _with_deviation(best),
        "deviation": "sample standard deviation, n - 1, over the seeds",
        "ranking": [_with_deviation(row) for row in outcome.ranking],
        "trials": [row.as_dict() for row in outcome.rows],
    }
