"""What changes on a server, told to whoever watches: pages, `fedloom top`, anything with a socket.

Parts of the server say that something has changed, and how to find out what; the hub asks them at
most `PACE_S` seconds later, once for everybody, and hands every watcher the same bytes in the
format of server-sent events (WHATWG HTML, section 9.2). What changes a thousand times in between
is told once, as it is then.

Invariants: while nobody watches, a change costs one comparison; a watcher that does not read is
let go of after `BACKLOG` messages, so it holds little memory and delays nobody. A watcher that
comes back has missed something, and looks at everything anew: there is nothing to replay.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import Any

log = logging.getLogger(__name__)

PACE_S = 0.5
"""Between two messages."""

BEAT_S = 10.0
"""Between two signs of life while nothing changes."""

BACKLOG = 32
"""Messages that a watcher may leave unread."""

MAX_WATCHERS = 256
"""Each holds a connection."""

MAX_OF_ONE = 64
"""Watchers of one name: nobody takes the stream from everybody else."""

Look = Callable[[], Any]
"""Says what there is to tell, as something that JSON holds; None for nothing."""


class Watcher:
    """One reader of the stream.

    Args:
        topics: what it wants to hear of; everything but what only some want, where it is empty.
        owner: whose it is; empty for the server's own.
    """

    __slots__ = ("_queue", "owner", "topics")

    def __init__(self, topics: frozenset[str], owner: str = "") -> None:
        self.topics = topics
        self.owner = owner
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(BACKLOG + 1)

    def offer(self, message: bytes | None) -> bool:
        """Hand over a message, None for the last; False if it does not read what it has."""
        if message is not None and self._queue.qsize() >= BACKLOG:
            return False
        self._queue.put_nowait(message)
        return True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self._queue.get()) is not None:
            yield message


class Hub:
    """Everybody who watches this server.

    Args:
        pace_s: between two messages, seconds.
        beat_s: between two signs of life, seconds.
    """

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
        """Something is not what it was.

        Args:
            topic: what kind of thing: round, run, clients (who comes and goes), work (who is at
                work), tokens, models, refusals, audit.
            subject: which one; a later change of the same one takes the place of an earlier.
            look: says more about it when the time has come.
        """
        self.version += 1
        self._last[topic, subject] = self._last[topic, ""] = self.version
        if self._watchers:
            self._changed[topic, subject] = look or _nothing
            self._hurry()

    def version_of(self, heard: Iterable[str]) -> int:
        """The version of the last change of what somebody hears.

        Args:
            heard: topics, each alone or as `topic:subject`, as pages name them.

        >>> hub = Hub()
        >>> hub.changed("run", "a"), hub.changed("run", "b"), hub.changed("work")
        (None, None, None)
        >>> hub.version_of(["run:a"]), hub.version_of(["run"]), hub.version_of(["run:b", "work"])
        (1, 2, 3)
        """
        last, found = self._last, 0
        for word in heard:
            topic, _, subject = word.partition(":")
            # Nothing was heard of it: it may be the beginning of an id, so all of them count.
            known = last.get((topic, subject), last.get((topic, ""), 0))
            found = max(found, known)
        return found

    def line(self, entry: Any) -> None:
        """A line of the log, for those who asked for `log`; none of them is left out."""
        if self._watchers and any("log" in watcher.topics for watcher in self._watchers):
            self._lines.append(entry)
            self._hurry()

    def watch(self, topics: Collection[str] = (), owner: str = "") -> Watcher | None:
        """Begin to watch; None where too many do, in all or of one owner. End it by `leave`."""
        of_one = sum(watcher.owner == owner for watcher in self._watchers) if owner else 0
        if len(self._watchers) >= MAX_WATCHERS or of_one >= MAX_OF_ONE:
            return None
        watcher = Watcher(frozenset(topics), owner)
        self._watchers.add(watcher)
        watcher.offer(_event("hello", {"version": self.version}))
        if self._beating is None:
            self._beat_later()
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """A reader has gone."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)
            watcher.offer(None)

    def close(self) -> None:
        """Let everybody go: the server stops."""
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
            (topic, _told(topic, subject, look)) for (topic, subject), look in changed.items()
        ]
        if lines:
            events.append(("log", _event("log", lines)))
        self._send(events)

    def _beat(self) -> None:
        self._beating = None
        if self._watchers:
            self._send([("", _event("beat", {}))])
            self._beat_later()

    def _beat_later(self) -> None:
        self._beating = asyncio.get_running_loop().call_later(self._beat_s, self._beat)

    def _send(self, events: Iterable[tuple[str, bytes]]) -> None:
        events = list(events)
        cut: dict[frozenset[str], bytes] = {}
        for watcher in list(self._watchers):
            topics = watcher.topics
            if topics not in cut:
                cut[topics] = b"".join(text for topic, text in events if _wanted(topic, topics))
            if cut[topics] and not watcher.offer(cut[topics]):
                log.info("a watcher of /v1/events does not read: it is let go of")
                self.leave(watcher)


def _nothing() -> None:
    return None


def _wanted(topic: str, topics: frozenset[str]) -> bool:
    return not topic or topic in topics or (not topics and topic != "log")


def _told(topic: str, subject: str, look: Look) -> bytes:
    return _event(topic, {"subject": subject, "now": look()})


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
