"""The last lines of this process's log, in memory, for operators who do not sit at its terminal.

Bounded in lines and in the length of each; what was before is in whatever keeps standard error.
Lines of every thread come here, and are told to watchers on the event loop's.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fedloom.server.live import Hub

KEPT = 2000
"""Lines."""

LONGEST = 2000
"""Characters of a message."""

Line = dict[str, Any]
"""`id`, `at` (seconds since the epoch), `level`, `logger` and `message`."""

LEVELS = ("debug", "info", "warning", "error")


class LogRing(logging.Handler):
    """A handler that keeps the last lines.

    Args:
        hub: whom to tell of each.
    """

    def __init__(self, hub: Hub) -> None:
        super().__init__()
        self._hub = hub
        self._lines: deque[Line] = deque(maxlen=KEPT)
        self._ids = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        try:
            message = record.getMessage()
            if record.exc_info and record.exc_info[0] is not None:
                message += f" ({record.exc_info[0].__name__}: {record.exc_info[1]})"
        except (TypeError, ValueError):  # whoever logs must never fail for it
            message = str(record.msg)
        line = {
            "id": next(self._ids),
            "at": record.created,
            "level": record.levelname.lower().replace("critical", "error"),
            "logger": record.name,
            "message": message[:LONGEST],
        }
        self._lines.append(line)
        if self._loop is not None and len(self._hub):
            with suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._hub.line, line)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keep what is logged anywhere in this process meanwhile; call it on the event loop."""
        self._loop = asyncio.get_running_loop()
        root = logging.getLogger()
        root.addHandler(self)
        try:
            yield
        finally:
            root.removeHandler(self)

    def lines(
        self, *, level: str = "", text: str = "", before: int = 0, limit: int = 200
    ) -> list[Line]:
        """The latest lines, newest first.

        Args:
            level: the least; "" for any.
            text: that the logger's name or the message holds, in any case.
            before: only lower ids; 0 for any.
            limit: most lines.
        """
        found = (line for line in reversed(list(self._lines)) if not before or line["id"] < before)
        return list(itertools.islice((x for x in found if wanted(x, level, text)), limit))


def wanted(line: Line, level: str, text: str) -> bool:
    """Is a line one of those asked for?

    >>> line = {"level": "warning", "logger": "fedloom.server", "message": "Refused oak"}
    >>> wanted(line, "info", "refused"), wanted(line, "error", ""), wanted(line, "", "elm")
    (True, False, False)
    """
    rank = LEVELS.index(line["level"]) if line["level"] in LEVELS else 0
    if level in LEVELS and rank < LEVELS.index(level):
        return False
    low = text.lower()
    return low in line["message"].lower() or low in line["logger"].lower()
