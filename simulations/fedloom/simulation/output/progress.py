"""The live display of a simulation.

A terminal shows one panel, a notebook one cell; elsewhere (a log, a pipe) every round is a line.

Invariant: leaving the context, also by Ctrl-C, restores the terminal, with the last state above the
prompt.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from importlib import import_module
from statistics import median
from typing import Any, Protocol, Self

from rich.console import Console, RenderableType
from rich.live import Live

from fedloom.simulation.output import panel
from fedloom.simulation.output.history import RoundRecord

_RECENT = 15
"""Recent rounds whose median length estimates the time left."""
_REFRESH_S = 0.25


class Progress:
    """Shows a running simulation; a context manager.

    Committed rounds count towards the total; abandoned ones are shown beside it.
    """

    def __init__(
        self,
        total_rounds: int,
        console: Console | None = None,
        *,
        name: str = "",
        engine: str = "",
        before: Iterable[RoundRecord] = (),
        show: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Show nothing before the context is entered.

        Args:
            total_rounds: training rounds to commit.
            console: to draw on; by default standard output.
            name: of the experiment.
            engine: kernel and workers.
            before: rounds of earlier processes of a resumed simulation.
            show: False shows nothing.
            clock: a monotonic clock in seconds.
        """
        self._total, self._name, self.engine = total_rounds, name, engine
        self._console = console or Console()
        self._show, self._clock = show, clock
        self._tally = panel.Tally()
        for record in before:
            self._tally.add(record)
        self._begun_s = self._round_begun_s = clock()
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._working = (0, 0)
        self._ended = False
        self._surface: _Surface = _Nothing()

    def __enter__(self) -> Self:
        self._begun_s = self._round_begun_s = self._clock()
        if self._show:
            self._surface = _surface(self._console, self)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended, self._working = True, (0, 0)
        self._surface.close()

    def update(self, record: RoundRecord) -> None:
        """Show a round that has ended."""
        now = self._clock()
        self._recent.append(now - self._round_begun_s)
        self._round_begun_s, self._working = now, (0, 0)
        self._tally.add(record)
        self._surface.round(record)

    def working(self, done: int, of: int) -> None:
        """Set how many of the open round's clients are trained."""
        self._working = (done, of)

    def state(self) -> panel.PanelState:
        """The current state."""
        return panel.PanelState(
            name=self._name,
            engine=self.engine,
            total=self._total,
            tally=self._tally,
            working=self._working,
            elapsed_s=self._clock() - self._begun_s,
            left_s=self._left_s(),
            ended=self._ended,
        )

    def line(self, record: RoundRecord) -> str:
        """The last round as a line of a log."""
        return panel.line(record, self._total, self._left_s())

    def __rich__(self) -> RenderableType:
        # Two columns stay free: a terminal echoes ^C at the end of the last line.
        return panel.render(self.state(), self._console.width - 2)

    def _left_s(self) -> float | None:
        if not self._recent:
            return None
        trained = self._tally.last.trained if self._tally.last else 0
        # Each remaining round takes as long as recent ones; the open one has already begun.
        spent_s = self._clock() - self._round_begun_s
        return max(median(self._recent) * max(self._total - trained, 0) - spent_s, 0.0)


class _Surface(Protocol):
    def round(self, record: RoundRecord, /) -> None:
        """A round has ended."""

    def close(self) -> None:
        """Show the last state and leave."""


class _Nothing:
    def round(self, _: RoundRecord) -> None:
        pass

    def close(self) -> None:
        pass


class _Terminal:
    """One panel, redrawn by a separate thread, also within a round."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._live = Live(
            progress,
            console=console,
            refresh_per_second=1 / _REFRESH_S,
            redirect_stdout=True,
            redirect_stderr=True,
        )
        self._live.start()

    def round(self, _: RoundRecord) -> None:
        pass  # the thread redraws it

    def close(self) -> None:
        self._live.stop()


class _Lines:
    def __init__(self, console: Console, progress: Progress) -> None:
        self._console, self._progress = console, progress

    def round(self, record: RoundRecord) -> None:
        self._console.print(
            self._progress.line(record), markup=False, highlight=False, emoji=False, soft_wrap=True
        )

    def close(self) -> None:
        pass


class _Notebook:
    """One cell's output, replaced a few times a second; rich's own display needs widgets."""

    def __init__(self, progress: Progress, display: Callable[..., Any]) -> None:
        self._progress = progress
        self._shown_s = time.monotonic()
        self._handle = display(self._drawn(), display_id=True)

    def round(self, _: RoundRecord) -> None:
        now = time.monotonic()
        if now - self._shown_s >= _REFRESH_S:
            self._shown_s = now
            self._handle.update(self._drawn())

    def close(self) -> None:
        self._handle.update(self._drawn())

    def _drawn(self) -> RenderableType:
        return panel.render(self._progress.state(), 88)


def _surface(console: Console, progress: Progress) -> _Surface:
    if console.is_jupyter:
        # IPython is installed wherever a notebook runs.
        return _Notebook(progress, import_module("IPython.display").display)
    return _Terminal(console, progress) if console.is_terminal else _Lines(console, progress)
