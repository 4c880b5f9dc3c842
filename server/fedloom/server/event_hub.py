"""Publishes changes of a server to watchers: console pages, `fedloom top`, other HTTP clients.

Parts of the server report that a subject changed, with a function that describes it. At most
`PACE_S` seconds later, the hub calls the function once and sends every watcher the same bytes, as
server-sent events (WHATWG HTML, section 9.2). Several changes in between give one event.

Invariants: without watchers, a change costs one comparison; a watcher with `BACKLOG` unread
messages is disconnected, so it uses little memory and delays no other. Events are not replayed: a
watcher that reconnects must read everything again.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import Any

log = logging.getLogger(__name__)

PACE_S = 0.5
"""Interval of messages."""

BEAT_S = 10.0
"""Interval of `beat` events."""

BACKLOG = 32
"""Most unread messages of a watcher."""

MAX_WATCHERS = 256
"""Watchers in total; each holds a connection."""

MAX_OF_ONE = 64
"""Watchers of one owner, so that no owner takes all places."""

Look = Callable[[], Any]
"""Describes a changed subject as a JSON value; None for no description."""


Sees = Callable[[str, str], bool]
"""Whether a watcher may see a topic and a subject."""


class Watcher:
    """One reader of the stream.

    Args:
        topics: that it receives; empty for all but `log`.
        owner: name of the principal; empty for the server.
        sees: whether it may see a change of a topic and a subject; None for all.
    """

    __slots__ = ("_queue", "owner", "sees", "topics")

    def __init__(self, topics: frozenset[str], owner: str = "", sees: Sees | None = None) -> None:
        self.topics = topics
        self.sees = sees
        self.owner = owner
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(BACKLOG + 1)

    def offer(self, message: bytes | None) -> bool:
        """Queue a message, None for the last; False if too many are unread."""
        if message is not None and self._queue.qsize() >= BACKLOG:
            return False
        self._queue.put_nowait(message)
        return True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self._queue.get()) is not None:
            yield message


class Hub:
    """The watchers of a server; intervals are in seconds."""

    def __init__(self, pace_s: float = PACE_S, beat_s: float = BEAT_S) -> None:
        self._pace_s = pace_s
        self._beat_s = beat_s
        self._watchers: set[Watcher] = set()
        self._changed: dict[tuple[str, str], Look] = {}
        self._lines: list[Any] = []
        self._timer: asyncio.TimerHandle | None = None
        self._beating: asyncio.TimerHandle | None = None
        self.version = 0
        self._last: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._watchers)

    def changed(self, topic: str, subject: str = "", look: Look | None = None) -> None:
        """Report a change.

        Args:
            topic: round, run, clients (connects, disconnects, and what operators set), work (tasks
                of clients), tokens, models, refusals or audit.
            subject: what changed; a later change of the same subject replaces an earlier one.
            look: describes the subject when the event is sent.
        """
        self.version += 1
        self._last[topic, subject] = self._last[topic, ""] = self.version
        if self._watchers:
            self._changed[topic, subject] = look or (lambda: None)
            self._hurry()

    def version_of(self, heard: Iterable[str]) -> int:
        """The version of the last change of some topics, each as `topic` or `topic:subject`.

        >>> hub = Hub()
        >>> hub.changed("run", "a"), hub.changed("run", "b"), hub.changed("work")
        (None, None, None)
        >>> hub.version_of(["run:a"]), hub.version_of(["run"]), hub.version_of(["run:b", "work"])
        (1, 2, 3)
        """
        last, found = self._last, 0
        for word in heard:
            topic, _, subject = word.partition(":")
            # An unknown subject may be the beginning of an id, so any change of the topic counts.
            known = last.get((topic, subject), last.get((topic, ""), 0))
            found = max(found, known)
        return found

    def line(self, entry: Any) -> None:
        """Send a line of the log to the watchers of `log`; no line is dropped."""
        if self._watchers and any("log" in watcher.topics for watcher in self._watchers):
            self._lines.append(entry)
            self._hurry()

    def watch(
        self, topics: Collection[str] = (), owner: str = "", sees: Sees | None = None
    ) -> Watcher | None:
        """Add a watcher, to be ended by `leave`; None at the limit in total or of the owner."""
        of_one = sum(watcher.owner == owner for watcher in self._watchers) if owner else 0
        if len(self._watchers) >= MAX_WATCHERS or of_one >= MAX_OF_ONE:
            return None
        watcher = Watcher(frozenset(topics), owner, sees)
        self._watchers.add(watcher)
        # The number of changes of others is not for a watcher that does not see them.
        watcher.offer(_event("hello", {"version": 0 if sees else self.version}))
        if self._beating is None:
            self._beat_later()
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Remove a watcher."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)
            watcher.offer(None)

    def close(self) -> None:
        """Disconnect all watchers."""
        for timer in (self._timer, self._beating):
            if timer is not None:
                timer.cancel()
        for watcher in list(self._watchers):
            self.leave(watcher)

    def _hurry(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._pace_s, self._flush)

    def _flush(self) -> None:
        self._timer = None
        changed, self._changed = self._changed, {}
        lines, self._lines = self._lines, []
        events = [
            (topic, subject, _event(topic, {"subject": subject, "now": look()}))
            for (topic, subject), look in changed.items()
        ]
        if lines:
            events.append(("log", "", _event("log", lines)))
        self._send(events)

    def _beat(self) -> None:
        self._beating = None
        if self._watchers:
            self._send([("", "", _event("beat", {}))])
            self._beat_later()

    def _beat_later(self) -> None:
        self._beating = asyncio.get_running_loop().call_later(self._beat_s, self._beat)

    def _send(self, events: Iterable[tuple[str, str, bytes]]) -> None:
        events = list(events)
        cut: dict[frozenset[str], bytes] = {}
        for watcher in list(self._watchers):
            topics, sees = watcher.topics, watcher.sees
            if sees is not None:
                seen = (e for e in events if not e[0] or sees(e[0], e[1]))
                message = b"".join(text for topic, _, text in seen if _wanted(topic, topics))
            else:
                if topics not in cut:
                    wanted = (text for topic, _, text in events if _wanted(topic, topics))
                    cut[topics] = b"".join(wanted)
                message = cut[topics]
            if message and not watcher.offer(message):
                log.info("a watcher of /v1/events does not read: disconnected")
                self.leave(watcher)


def _wanted(topic: str, topics: frozenset[str]) -> bool:
    return not topic or topic in topics or (not topics and topic != "log")


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
