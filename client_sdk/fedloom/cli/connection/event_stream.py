"""Changes on a server as server-sent events, with reconnects.

Source: WHATWG HTML, section 9.2, for the format; `/v1/events` for the topics. The server does not
replay events: after `hello`, which also follows a reconnect, the caller reads everything again.
"""

import http.client
import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from fedloom.cli.connection.api_client import Control
from fedloom.protocol.errors import DeniedError, FedloomError, UnavailableError

SILENCE_S = 30.0
"""A server sends a heartbeat every 10 s; after 30 s without one it counts as lost."""

FIRST_WAIT_S = 0.25
LAST_WAIT_S = 2.0
TICK_S = 1.0
STALE_S = 3.0


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the stream, or a change of its connection.

    Attributes:
        name: a topic of `/v1/events`, `hello`, `beat`, `lost` or `denied`; `denied` is the last.
        data: of the event; the reason for `lost`; the error for `denied`.
    """

    name: str
    data: Any = None


def parse(lines: Iterable[bytes]) -> Iterator[Event]:
    r"""Parse the lines of a stream.

    >>> list(parse([b"event: run\n", b'data: {"subject":"a"}\n', b"\n", b": beat\n", b"\n"]))
    [Event(name='run', data={'subject': 'a'})]
    """
    name, data = "", b""
    for line in lines:
        field, _, value = line.rstrip(b"\r\n").partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            name = value.decode("utf-8", "replace")
        elif field == b"data":
            data += value
        elif not line.strip() and name:
            yield Event(name, _loaded(data))
            name, data = "", b""


def _loaded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


class Feed:
    """Reads events in a thread until its context ends.

    Args:
        control: the server, with a timeout of `SILENCE_S`.
        topics: of `/v1/events`; empty for all but the log.
        put: called with each event, from the thread.
    """

    def __init__(
        self, control: Control, topics: Iterable[str], put: Callable[[Event], None]
    ) -> None:
        self._control = control
        self._query = {"topics": ",".join(topics)}
        self._put = put
        self._over = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, name="feed", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()  # the thread ends after its next event

    def _run(self) -> None:
        wait_s = FIRST_WAIT_S
        while not self._over.is_set():
            try:
                with self._control.stream("events", **self._query) as response:
                    for event in parse(iter(response.readline, b"")):
                        wait_s = FIRST_WAIT_S
                        self._put(event)
                        if self._over.is_set():
                            return
                why = "the server closed the stream"
            except DeniedError as error:
                self._put(Event("denied", error))
                return
            except (FedloomError, http.client.HTTPException, OSError) as error:
                why = str(error) or repr(error)
            self._put(Event("lost", why))
            self._over.wait(wait_s)
            wait_s = min(2 * wait_s, LAST_WAIT_S)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A document as it was last read.

    Attributes:
        document: as last read.
        news: it was read because something changed.
        lost_s: seconds since the server became unreachable; None while it answers.
    """

    document: Any
    news: bool
    lost_s: float | None = None


def follow(control: Control, look: Callable[[], Any], topics: Iterable[str]) -> Iterator[Snapshot]:
    """Read a document whenever it may have changed; yields at least every `TICK_S` seconds.

    Raises:
        FedloomError: the first read fails, or the server refuses.
    """
    seen = Snapshot(look(), news=True)
    yield seen
    heard: queue.SimpleQueue[Event] = queue.SimpleQueue()
    with Feed(control, topics, heard.put):
        yield from _followed(look, heard, seen)


def _followed(
    look: Callable[[], Any], heard: queue.SimpleQueue[Event], seen: Snapshot
) -> Iterator[Snapshot]:
    looked_at, lost_at = time.monotonic(), None
    while True:
        event = _next(heard)
        now = time.monotonic()
        if event is not None and event.name == "denied":
            raise event.data
        if event is not None and event.name == "lost":
            lost_at = lost_at or now
        elif event is not None and event.name != "beat":
            lost_at = None
        news = event is not None and event.name not in ("beat", "lost")
        if lost_at is None and (news or now - looked_at > STALE_S):
            try:
                seen, looked_at = Snapshot(look(), news=news), now
            except UnavailableError:
                lost_at = now  # the stream reports when it is back
        yield Snapshot(seen.document, news, None if lost_at is None else now - lost_at)


def _next(heard: queue.SimpleQueue[Event]) -> Event | None:
    """The latest waiting event; stops at `lost` and `denied`."""
    event = None
    try:
        event = heard.get(timeout=TICK_S)
        while event.name not in ("lost", "denied"):
            event = heard.get_nowait()
    except queue.Empty:
        pass
    return event
