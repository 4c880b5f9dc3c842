"""Keeps the latest lines of this process's log in memory, for the console and the API.

The number of lines and their length are bounded; standard error has all lines. A line about a
client, a run or a round has them as fields, as in JSON logs. Lines come from any thread; watchers
are notified in the event loop's thread.
"""

import asyncio
import itertools
import logging
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fedloom.server.event_hub import Hub

KEPT = 2000
"""Lines."""

LONGEST = 2000
"""Characters of a message."""

Line = dict[str, Any]
"""`id`, `at` (seconds since the epoch), `level`, `logger`, `message`, and its subject: `client`,
`run` (empty for none) and `round` (None for none)."""

LEVELS = ("debug", "info", "warning", "error")


_SECRETS = (
    (re.compile(r"\b(fla?1\.[0-9a-f]{8})\.[\w-]+(?:\.[\w-]+)?"), r"\1.***"),  # tokens
    (re.compile(r"(?i)\b(bearer|basic) [\w.~+/=-]+"), r"\1 ***"),
    (re.compile(r"([?&](?:code|token|secret|password)=)[^&\s\"']+"), r"\1***"),
    (re.compile(r"(://[^/\s:@]*:)[^/\s@]+@"), r"\1***@"),  # a database's password
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END|$)", re.DOTALL), "(a key)"),
)


def about(client: str = "", run: str = "", number: int = 0) -> dict[str, Any]:
    """The subject of a line, as `extra` of a logging call."""
    found: dict[str, Any] = {"client": client, "run": run, "round": number or None}
    return {name: value for name, value in found.items() if value}


def redacted(text: str) -> str:
    """A message without secrets; a safeguard, as no line should contain any.

    >>> redacted("GET /login/link?code=abc from postgresql://fl:hunter2@db/fl")
    'GET /login/link?code=*** from postgresql://fl:***@db/fl'
    """
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


class LogRing(logging.Handler):
    """A handler that keeps the latest lines, and notifies the hub of each."""

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
        except Exception:  # noqa: BLE001 - logging must never fail its caller
            message = str(record.msg)
        line = {
            "id": next(self._ids),
            "at": record.created,
            "level": record.levelname.lower().replace("critical", "error"),
            "logger": record.name,
            "message": redacted(message[:LONGEST]),
            "client": _text(record, "client"),
            "run": _text(record, "run"),
            "round": getattr(record, "round", None),
        }
        self._lines.append(line)
        if self._loop is not None and len(self._hub):
            with suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._hub.line, line)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keep all lines logged in this process meanwhile; call it on the event loop."""
        self._loop = asyncio.get_running_loop()
        root = logging.getLogger()
        root.addHandler(self)
        try:
            yield
        finally:
            root.removeHandler(self)

    def lines(
        self,
        *,
        level: str = "",
        text: str = "",
        client: str = "",
        run: str = "",
        since: float = 0.0,
        before: int = 0,
        limit: int = 200,
    ) -> list[Line]:
        """The latest lines, newest first.

        Args:
            level: minimum level; "" for any.
            text: contained in the logger's name or the message, ignoring case.
            client: its client; "" for any.
            run: its run's id or the beginning of it; "" for any.
            since: seconds since the epoch, inclusive; 0 for any.
            before: only lower ids; 0 for any.
            limit: most lines.
        """
        found = (line for line in reversed(list(self._lines)) if not before or line["id"] < before)
        found = (
            line
            for line in found
            if line["at"] >= since
            and (not client or line["client"] == client)
            and line["run"].startswith(run)
            and wanted(line, level, text)
        )
        return list(itertools.islice(found, limit))


def _text(record: logging.LogRecord, name: str) -> str:
    return str(getattr(record, name, ""))[:200]


def wanted(line: Line, level: str, text: str) -> bool:
    """Whether a line has at least this level and contains this text.

    >>> line = {"level": "warning", "logger": "fedloom.server", "message": "Refused oak"}
    >>> wanted(line, "info", "refused"), wanted(line, "error", ""), wanted(line, "", "elm")
    (True, False, False)
    """
    rank = LEVELS.index(line["level"]) if line["level"] in LEVELS else 0
    if level in LEVELS and rank < LEVELS.index(level):
        return False
    low = text.lower()
    return low in line["message"].lower() or low in line["logger"].lower()
