"""Display of a search in the terminal: the cell, its rate and the round."""

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fedloom.simulation.output import words
from fedloom.simulation.output.history import RoundRecord
from fedloom.simulation.studies.mcmahan2017.search import Attempt, RateSearch


class SearchDisplay:
    """A progress bar for the running rate, and a line for each finished one.

    Without a terminal only the lines are printed.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._cell: RateSearch | None = None
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("round {task.completed:.0f}"),
            TextColumn("{task.fields[accuracy]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._progress.add_task("", accuracy="", visible=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, cell: RateSearch, place: str) -> None:
        """Show that a cell begins.

        Args:
            cell: its search.
            place: its number of all, such as `2/13`.
        """
        self._cell = cell
        self._progress.reset(self._task, description=cell.name, total=cell.cap, visible=True)
        if not self._quiet:
            self._progress.print(f"[dim]{place}[/]  [bold]{cell.name}[/]", highlight=False)

    def on_event(self, rate: str, what: Attempt | RoundRecord) -> None:
        """Show a round or a rate that has ended."""
        assert self._cell is not None
        if isinstance(what, Attempt):
            if not self._quiet:
                self._progress.print(f"       {_line(rate, what)}", highlight=False)
            return
        accuracy = what.test.get("accuracy")
        self._progress.update(
            self._task,
            completed=what.trained,
            description=f"{self._cell.name}  η = {rate}",
            accuracy=""
            if accuracy is None
            else f"{words.share(accuracy)} of {words.share(self._cell.target)}",
        )


def _line(rate: str, attempt: Attempt) -> str:
    best = words.metric("accuracy", attempt.accuracy)
    end = {
        "reached": f"[green]{attempt.rounds} rounds[/]",
        "behind": f"behind the best after {attempt.last_round} rounds, {best}",
        "capped": f"not reached in {attempt.last_round} rounds, {best}",
        "diverged": f"[red]diverged in round {attempt.last_round}[/], {best}",
    }[attempt.ended]
    time, speed = words.duration(attempt.wall_s), f"{attempt.clients_per_s:g} clients/s"
    return f"η = {rate:<7} {end}  [dim]{time}, {speed}[/]"
