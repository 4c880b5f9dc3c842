"""The display of a running sweep: on a terminal a bar and a line per trial, else plain lines."""

import time
from dataclasses import dataclass, field
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from fedloom.simulation.output import words
from fedloom.simulation.sweep.outcome import FAILED, FINISHED, TrialRow
from fedloom.simulation.sweep.settings import Sweep
from fedloom.simulation.sweep.table import settings_text, value_text

_COLOURS = {FINISHED: "green", FAILED: "red"}


@dataclass(slots=True)
class _Line:
    parameters: dict[str, Any]
    started_s: float
    rounds: int = 0
    value: float | None = None


@dataclass(slots=True)
class SweepDisplay:
    """Shows a sweep; a `runner.Watcher`.

    Attributes:
        sweep: the search.
        console: output; a permanent line is written when a trial ends.
    """

    sweep: Sweep
    console: Console
    _lines: dict[int, _Line] = field(default_factory=dict)
    _best: TrialRow | None = None
    _num_ended: int = 0
    _num_trials: int = 0
    _num_before: int = 0
    _began_s: float = field(default_factory=time.monotonic)
    _progress: Progress = field(init=False)
    _live: Live = field(init=False)

    def __post_init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[more]}"),
            console=self.console,
        )
        self._progress.add_task(self.sweep.name, total=None, more="")
        self._live = Live(
            get_renderable=self._render, console=self.console, transient=True, refresh_per_second=4
        )

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def began(self, rows: tuple[TrialRow, ...], num_trials: int) -> None:
        """Show the number of trials."""
        self._num_trials, self._num_ended, self._num_before = num_trials, len(rows), len(rows)
        for row in rows:
            self._rank(row)
        self._update()
        if rows and len(rows) < num_trials:
            self.console.print(
                f"continuing with {words.things(num_trials - len(rows), 'trial')} of {num_trials}",
                style="dim",
            )

    def started(self, number: int, parameters: dict[str, Any]) -> None:
        """Show a trial that starts."""
        self._lines[number] = _Line(parameters, time.monotonic())

    def advanced(self, number: int, rounds: int, value: float | None) -> None:
        """Show a trial's progress."""
        line = self._lines[number]
        line.rounds = rounds
        line.value = line.value if value is None else value

    def ended(self, row: TrialRow) -> None:
        """Print a trial that ended."""
        self._lines.pop(row.trial, None)
        self._num_ended += 1
        self._rank(row)
        text = Text.assemble(
            (f"trial {row.trial:>{len(str(self._num_trials))}}  ", "dim"),
            (f"{row.state:<8}  ", _COLOURS.get(row.state, "yellow")),
            (f"{value_text(self.sweep, row):>8}  ", "bold" if row is self._best else ""),
            settings_text(row.shown, self.sweep.constants),
            (f"  {words.things(row.rounds, 'round')}, {words.duration(row.seconds)}", "dim"),
            (f"  {row.reason}" if row.reason else "", "red" if row.state == FAILED else "dim"),
        )
        self.console.print(text, soft_wrap=not self.console.is_terminal)
        self._update()

    def _rank(self, row: TrialRow) -> None:
        if row.state != FINISHED or row.value is None:
            return
        rising = self.sweep.objective.direction == "maximize"
        known = None if self._best is None else self._best.value
        if known is None or (row.value > known if rising else row.value < known):
            self._best = row

    def _update(self) -> None:
        more = ""
        if self._best is not None:
            best = value_text(self.sweep, self._best)
            more = f"best {best} in trial {self._best.trial}"
        if left := self._left_s():
            more += f"{', ' if more else ''}about {words.duration(left)} left"
        self._progress.update(
            self._progress.task_ids[0], total=self._num_trials, completed=self._num_ended, more=more
        )

    def _left_s(self) -> float | None:
        done = self._num_ended - self._num_before
        if not done or self._num_ended == self._num_trials:
            return None
        elapsed_s = time.monotonic() - self._began_s
        return elapsed_s / done * (self._num_trials - self._num_ended)

    def _render(self) -> Group:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for number, line in sorted(self._lines.items()):
            value = "" if line.value is None else words.metric(_metric(self.sweep), line.value)
            table.add_row(
                Text(f"trial {number}", "cyan"),
                Text(settings_text(line.parameters, self.sweep.constants)),
                Text(words.things(line.rounds, "round") if line.rounds else "starting", "dim"),
                Text(value),
                Text(words.duration(time.monotonic() - line.started_s), "dim"),
            )
        return Group(table, self._progress)


def _metric(sweep: Sweep) -> str:
    return sweep.objective.metric.rpartition(".")[2]
