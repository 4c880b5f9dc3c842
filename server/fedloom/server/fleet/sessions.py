"""Who is attending: one session per connected client, and which task occupies it.

The fleet knows connections, not rounds: runs listen to it, and it tells them who has become
available and who has gone. A client works on one task at a time, whichever run it is of.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.trust.identity import Peer
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.background_tasks import BackgroundTasks
from fedloom.server.event_hub import Hub
from fedloom.server.rounds.clients import Listener, Send, TaskId
from fedloom.server.rounds.progress import ReportedProgress

log = logging.getLogger(__name__)

LONGEST_REST_S = 24 * 3600.0
"""However long a client asks not to be asked: its word must not outlive its conditions for ever."""

MAX_CALLS = 32
"""Calls that one client may have in progress; an honest one needs four, some of them half-open."""


class Hold(StrEnum):
    """Why a client that is here is not asked."""

    QUARANTINE = "quarantine"
    """Nothing of it counts until it is released: its work is given up, its updates are refused."""
    DRAIN = "drain"
    """It ends what it does, which counts, and then rests."""


NO_TASK: TaskId = ("", 0)
"""Of calls that are about none."""


class Call:
    """One RPC in progress, which the server may end.

    Args:
        client: whose it is.
        peer: its certificate; None on plaintext loopback.
        handler: the task that serves it.

    Attributes:
        task: the run and round that it turned out to be about.
        refused: whom else to tell if it is refused.
        refusal: why the server ended it, if it did.
    """

    __slots__ = ("client", "handler", "peer", "refusal", "refused", "task")

    def __init__(self, client: str, peer: Peer | None, handler: "asyncio.Task[Any]") -> None:
        self.client = client
        self.peer = peer
        self.handler = handler
        self.task: TaskId = NO_TASK
        self.refused: Callable[[str, Refusal], None] = lambda _client, _refusal: None
        self.refusal: Refusal | None = None

    def end(self, refusal: Refusal) -> None:
        """End the call; the client is told why."""
        if self.refusal is None:
            self.refusal = refusal
            self.handler.cancel()


class Session:
    """One connected client.

    Attributes:
        call: its stream.
        client: its name.
        task: what occupies it.
        progress: how far it says its training is.
    """

    __slots__ = ("_lock", "_send", "call", "client", "progress", "task")

    def __init__(self, call: Call, send: Send) -> None:
        self.call = call
        self.client = call.client
        self.task: TaskId | None = None
        self.progress: ReportedProgress | None = None
        self._send = send
        self._lock = asyncio.Lock()

    async def send(self, message: fleet_pb2.ServerMessage) -> None:
        """Send one message; a stream that is gone is not an error here."""
        async with self._lock:
            try:
                await self._send(message)
            except Exception as error:  # noqa: BLE001 - grpc raises many kinds for a dead stream
                log.debug("message to %s not sent: %r", self.client, error)


class Fleet:
    """All sessions and other calls, and the runs that listen.

    Args:
        live: notified when a client connects, disconnects or begins to work.
    """

    def __init__(self, live: Hub | None = None) -> None:
        self.live = live or Hub()
        self._sessions: dict[str, Session] = {}
        self._held: dict[str, Hold] = {}
        self._calls: dict[str, set[Call]] = {}
        self._listeners: list[Listener] = []
        self._sending = BackgroundTasks()
        self._resting: dict[str, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def get(self, client: str) -> Session | None:
        """A client's session, if it is connected."""
        return self._sessions.get(client)

    def listen(self, listener: Listener) -> None:
        """Tell a run about clients from now on, and about those that are available now."""
        self._listeners.append(listener)
        for session in self:
            if self._is_idle(session):
                self._announce_to(listener, session.client)

    def forget(self, listener: Listener) -> None:
        """A run has ended."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def available(self) -> list[str]:
        """Connected clients without a task, by name."""
        return sorted(c for c, s in self._sessions.items() if self._is_idle(s))

    def rest(self, client: str, seconds: float) -> None:
        """Offer a client nothing new for a while, as it asked for; it is announced again after."""
        if not 0 < seconds < float("inf"):
            return
        if client in self._resting:
            self._resting[client].cancel()
        after = min(seconds, LONGEST_REST_S)
        loop = asyncio.get_running_loop()
        self._resting[client] = loop.call_later(after, self._rested, client)

    def _rested(self, client: str) -> None:
        del self._resting[client]
        session = self._sessions.get(client)
        if session is not None and session.task is None:
            self._announce(client)

    def _is_idle(self, session: Session) -> bool:
        away = session.client in self._resting or session.client in self._held
        return session.task is None and not away

    # ---- holds -------------------------------------------------------------------------------

    def held(self, client: str) -> Hold | None:
        """Why a client is not asked; None where it may be."""
        return self._held.get(client)

    def hold(self, client: str, why: Hold) -> None:
        """Ask a client no more; whoever counts on an idle one hears that it has gone."""
        self._held[client] = why
        self._changed()
        session = self._sessions.get(client)
        if session is not None and session.task is None:
            for listener in list(self._listeners):
                if not listener.claims(client):
                    listener.client_left(client)

    def release(self, client: str) -> None:
        """Ask a client again."""
        if self._held.pop(client, None) is None:
            return
        self._changed()
        session = self._sessions.get(client)
        if session is not None and session.task is None:
            self._announce(client)

    def check(self, client: str) -> None:
        """May what this client sends count?

        Raises:
            Refusal: QUARANTINED.
        """
        if self._held.get(client) is Hold.QUARANTINE:
            raise Refusal(
                Code.QUARANTINED,
                f"Expected a client whose updates count, got {client!r}, which the operator has "
                "put in quarantine.",
            )

    @contextmanager
    def calling(self, call: Call) -> Iterator[None]:
        """Know about a call while it lasts.

        Enter before the ledger is asked about the client: then a revocation either precedes the
        answer, or finds the call here.

        Raises:
            Refusal: BUSY when the client has too many; each holds memory while it lasts.
        """
        if len(self._calls.get(call.client, ())) >= MAX_CALLS:
            raise Refusal(Code.BUSY, f"Expected at most {MAX_CALLS} calls of a client at once.")
        self._calls.setdefault(call.client, set()).add(call)
        try:
            yield
        finally:
            self._calls[call.client].discard(call)
            if not self._calls[call.client]:
                del self._calls[call.client]

    def calls(self) -> list[Call]:
        """Every call in progress."""
        return [call for calls in self._calls.values() for call in calls]

    def expel(self, client: str, refusal: Refusal) -> None:
        """End every call of a client."""
        for call in list(self._calls.get(client, ())):
            call.end(refusal)

    def attend(self, session: Session) -> None:
        """A client has connected; an older session of the same client ends, with its uploads.

        A network that died without a word leaves uploads that nobody goes on with; for a minute
        they would keep the client from going on itself.
        """
        older = self._sessions.pop(session.client, None)
        over = Refusal(Code.BUSY, "Another connection of this client has taken over.")
        if older is not None:
            older.call.end(over)
        for call in list(self._calls.get(session.client, ())):
            if call is not session.call and call.task != NO_TASK:
                call.end(over)
        self._sessions[session.client] = session
        self._changed()
        self._announce(session.client)

    def leave(self, session: Session) -> None:
        """A client's stream has ended."""
        if self._sessions.get(session.client) is not session:
            return  # a newer one has taken over
        del self._sessions[session.client]
        self._changed()
        for listener in list(self._listeners):
            listener.client_left(session.client)

    def occupy(self, client: str, task: TaskId, owner: Listener) -> bool:
        """Give a client's time to a run; False if it is gone or works for another."""
        session = self._sessions.get(client)
        held = self._held.get(client) is Hold.QUARANTINE
        if held or session is None or session.task not in (None, task):
            return False
        session.task = task
        self.live.changed("work", look=self._counts)
        for listener in self._listeners:
            if listener is not owner:
                listener.client_left(client)
        return True

    def free(self, client: str, task: TaskId) -> None:
        """A client no longer works on a task."""
        session = self._sessions.get(client)
        if session is not None and session.task == task:
            session.task = None
            self.live.changed("work", look=self._counts)
            self._announce(client)

    def send(self, client: str, message: fleet_pb2.ServerMessage) -> None:
        """Send without waiting: a slow client delays nobody."""
        session = self._sessions.get(client)
        if session is not None:
            self._sending.start(session.send(message))

    def _changed(self) -> None:
        self.live.changed("clients", look=self._counts)

    def _counts(self) -> dict[str, int]:
        idle = sum(session.task is None for session in self._sessions.values())
        return {"online": len(self._sessions), "available": idle}

    def _announce(self, client: str) -> None:
        """Offer a client's time to the run that waits for it, else to all."""
        if self._held.get(client) is Hold.QUARANTINE:
            return
        for listener in self._listeners:
            if listener.claims(client):
                listener.client_available(client)
                return
        for listener in list(self._listeners):
            session = self._sessions.get(client)
            if session is None or not self._is_idle(session):
                return  # an earlier run has just taken it, or it wants to be left alone
            listener.client_available(client)

    def _announce_to(self, listener: Listener, client: str) -> None:
        if not any(other.claims(client) for other in self._listeners if other is not listener):
            listener.client_available(client)
