"""What a slow command is doing, on standard error: a line on a terminal, else one now and then."""

import sys
import threading
import time
from types import TracebackType
from typing import Self

import click

from fedloom.cli.common import output

SHOW_AFTER_S, EVERY_S = 1.0, 0.5
"""On a terminal: how long a step is not worth a line, and how often the line is redrawn."""
SAY_AFTER_S = 10.0
"""Elsewhere: a line for a step that takes this long, and then after twice the time each."""


class Activity:
    """Shows the current step, its progress and its time, while the command is in this context."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._step = ""
        self._done: float | None = None
        self._begun, self._say_after_s = time.monotonic(), SAY_AFTER_S
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="activity", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._clear()

    def __call__(self, step: str, done: float | None = None) -> None:
        """Set the step and, if it is known, the share of it that is done."""
        if done is None:
            self._begun, self._say_after_s = time.monotonic(), SAY_AFTER_S
        self._step, self._done = step, done

    def _watch(self) -> None:
        while not self._ended.wait(EVERY_S):
            for_s = time.monotonic() - self._begun
            if self._terminal and for_s >= SHOW_AFTER_S:
                click.echo(f"\r\x1b[K… {self._line(for_s)}", err=True, nl=False)
            elif not self._terminal and for_s >= self._say_after_s:
                click.echo(f"… {self._line(for_s)}", err=True)
                self._say_after_s *= 2

    def _line(self, for_s: float) -> str:
        share = "" if self._done is None else f", {self._done:.0%}"
        return f"{self._step}: {output.duration(for_s)}{share}"

    def _clear(self) -> None:
        if self._terminal:
            click.echo("\r\x1b[K", err=True, nl=False)
