"""Sessions of connected clients, and the task that occupies each.

The fleet knows connections, not rounds: it notifies runs of clients that become available or
leave. A client works on one task at a time, whichever run the task belongs to.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from enum import StrEnum
from math import inf
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
"""Longest time for which a client can decline offers in advance."""

MAX_CALLS = 32
"""Calls in progress of one client; an honest one needs four, plus some that are half-open."""


class Hold(StrEnum):
    """An operator's order that excludes a client from offers."""

    QUARANTINE = "quarantine"
    """Its task is cancelled and its updates are refused until it is released."""
    DRAIN = "drain"
    """It finishes its task, which counts."""


NO_TASK: TaskId = ("", 0)
"""Of calls without a task."""


class Call:
    """One RPC in progress, which the server may end.

    Args:
        client: the caller.
        peer: its certificate; None on plaintext loopback.
        handler: the asyncio task that serves it.

    Attributes:
        task: the run and round that it concerns, once known.
        refused: called with the client and the refusal if it is refused.
        refusal: why the server ended it, if it did.
        ages_at: when it is to move to another server, monotonic seconds.
        moves: whether the server has ended it for that.
    """

    __slots__ = ("ages_at", "client", "handler", "moves", "peer", "refusal", "refused", "task")

    def __init__(self, client: str, peer: Peer | None, handler: "asyncio.Task[Any]") -> None:
        self.client = client
        self.peer = peer
        self.handler = handler
        self.task: TaskId = NO_TASK
        self.refused: Callable[[str, Refusal], None] = lambda _client, _refusal: None
        self.refusal: Refusal | None = None
        self.ages_at = inf
        self.moves = False

    def move(self) -> None:
        """End the call without a reason: its client calls again, perhaps another server."""
        if self.refusal is None and not self.moves:
            self.moves = True
            self.handler.cancel()

    def end(self, refusal: Refusal) -> None:
        """End the call and send the client the reason."""
        if self.refusal is None:
            self.refusal = refusal
            self.handler.cancel()


class Session:
    """One connected client.

    Args:
        call: its stream.
        send: sends it a message.
        nonce: of its hello.
        checks_in: whether it waits a while for a task and then leaves.

    Attributes:
        leaves: whether it has been told to leave: it gets no further task.
    """

    __slots__ = (
        "_lock", "_send", "call", "checks_in", "client", "leaves", "nonce", "progress", "task"
    )  # fmt: skip

    def __init__(
        self, call: Call, send: Send, nonce: bytes = b"", *, checks_in: bool = False
    ) -> None:
        self.call = call
        self.client = call.client
        self.nonce = nonce
        self.checks_in = checks_in
        self.leaves = False
        self.task: TaskId | None = None
        self.progress: ReportedProgress | None = None
        self._send = send
        self._lock = asyncio.Lock()

    async def send(self, message: fleet_pb2.ServerMessage) -> None:
        """Send one message; a failure is only logged."""
        async with self._lock:
            try:
                await self._send(message)
            except Exception as error:  # noqa: BLE001 - grpc raises many kinds for a dead stream
                log.debug("message to %s not sent: %r", self.client, error)


class Fleet:
    """All sessions and calls, and the runs that listen.

    Args:
        live: notified when a client connects, disconnects or begins a task.

    Attributes:
        revision: rises with every change of `reachable` or of a client's study.
        waiting: idle clients that check in.
        drawing: whether rounds may open because of these, as the wait of one ends.
        freed: called when a task of a client that checks in has ended.
    """

    def __init__(self, live: Hub | None = None) -> None:
        self.live = Hub() if live is None else live
        self._sessions: dict[str, Session] = {}
        self._held: dict[str, Hold] = {}
        self._calls: dict[str, set[Call]] = {}
        self._listeners: list[Listener] = []
        self._sending = BackgroundTasks()
        self._resting: dict[str, asyncio.TimerHandle] = {}
        self._studies: dict[str, str] = {}
        self._sites: dict[str, int] = {}
        self.revision = 0
        self.waiting: dict[str, None] = {}
        self.drawing = False
        self.freed: Callable[[Session], None] = lambda _session: None

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def get(self, client: str) -> Session | None:
        """A client's session, if it is connected."""
        return self._sessions.get(client)

    def listen(self, listener: Listener) -> None:
        """Notify a run of clients from now on, and of those that are available now."""
        self._listeners.append(listener)
        for session in self:
            if self._is_idle(session):
                self._announce_to(listener, session.client)

    def forget(self, listener: Listener) -> None:
        """Notify a run no longer."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def available(self) -> list[str]:
        """Connected clients without a task, by name."""
        return sorted(c for c, s in self._sessions.items() if self._is_idle(s))

    def connected(self, by: float = inf) -> list[str]:
        """Connected clients that may get offers by this time, by name, with a task or without.

        `by` is in seconds of the event loop's clock; later end the rests of the clients left out.
        """
        late = {client for client, rest in self._resting.items() if rest.when() > by}
        return sorted(c for c in self._offerable() if c not in late)

    def reachable(self) -> Iterator[str]:
        """Connected clients that may get offers and do not rest, with a task or without."""
        return (name for name in self._offerable() if name not in self._resting)

    def _offerable(self) -> Iterator[str]:
        """Connected clients that are neither on hold nor about to leave."""
        held = self._held
        return (n for n, s in self._sessions.items() if n not in held and not s.leaves)

    def rest(self, client: str, seconds: float) -> None:
        """Send a client no offers for some time, as it requested; then announce it again."""
        if not 0 < seconds < float("inf"):
            return
        if client in self._resting:
            self._resting[client].cancel()
        self.revision += 1
        after = min(seconds, LONGEST_REST_S)
        loop = asyncio.get_running_loop()
        self._resting[client] = loop.call_later(after, self._rested, client)

    def rest_left_s(self, client: str) -> float:
        """Seconds for which a client declines offers; 0 if it does not rest."""
        rest = self._resting.get(client)
        return 0.0 if rest is None else max(0.0, rest.when() - asyncio.get_running_loop().time())

    def _rested(self, client: str) -> None:
        del self._resting[client]
        self.revision += 1
        self.announce(client)

    def announce(self, client: str) -> None:
        """Notify runs again of a client, if it is connected and idle."""
        session = self._sessions.get(client)
        if session is not None and session.task is None:
            self._announce(client)

    def _is_idle(self, session: Session) -> bool:
        away = session.client in self._resting or session.client in self._held
        return session.task is None and not away and not session.leaves

    # ---- clients that check in ---------------------------------------------------------------

    def checks_in(self, client: str) -> bool:
        """Whether a client is connected for a check-in alone."""
        session = self._sessions.get(client)
        return session is not None and session.checks_in

    def undrawn(self, is_candidate: Callable[[str], bool]) -> int:
        """Number of candidates that check in and whose draw is not due."""
        return 0 if self.drawing else sum(map(is_candidate, self.waiting))

    def dismiss(self, session: Session) -> None:
        """Give a client no further task, as it is about to leave."""
        session.leaves = True
        self.waiting.pop(session.client, None)
        self._changed()
        self._withdraw(session.client)

    # ---- studies -----------------------------------------------------------------------------

    def study_of(self, client: str) -> str:
        """The study of a client; empty for none."""
        return self._studies.get(client, "")

    @property
    def studies(self) -> set[str]:
        """Studies that clients are in."""
        return set(self._studies.values())

    def assign(self, client: str, study: str) -> None:
        """Set the study of a client; an idle one leaves the runs of others. A task goes on."""
        if study == self.study_of(client):
            return
        self._studies.pop(client, None)
        if study:
            self._studies[client] = study
        self._changed()
        self._withdraw(client)
        self.announce(client)

    # ---- sites -------------------------------------------------------------------------------

    def devices_of(self, client: str) -> int:
        """Most devices in a sum of a site; 0 for a client that is a device."""
        return self._sites.get(client, 0)

    def sites(self) -> Collection[str]:
        """All clients that are sites, connected or not."""
        return self._sites.keys()

    def register_site(self, client: str, devices: int) -> None:
        """Set for how many devices a client may send a sum; 0 for one that is a device."""
        self._sites.pop(client, None)
        if devices:
            self._sites[client] = devices
        self._changed()

    # ---- holds -------------------------------------------------------------------------------

    def held(self, client: str) -> Hold | None:
        """A client's hold; None without one."""
        return self._held.get(client)

    def hold(self, client: str, why: Hold) -> None:
        """Exclude a client from offers; runs are notified that an idle one has left."""
        self._held[client] = why
        self._changed()
        self._withdraw(client)

    def _withdraw(self, client: str) -> None:
        """Notify runs that an idle client has left, except one that claims it."""
        session = self._sessions.get(client)
        if session is not None and session.task is None:
            for listener in list(self._listeners):
                if not listener.claims(client):
                    listener.client_left(client)

    def release(self, client: str) -> None:
        """End a client's hold."""
        if self._held.pop(client, None) is None:
            return
        self._changed()
        self.announce(client)

    def check(self, client: str) -> None:
        """Check that updates of this client are accepted.

        Raises:
            Refusal: QUARANTINED.
        """
        if self._held.get(client) is Hold.QUARANTINE:
            raise Refusal(
                Code.QUARANTINED,
                f"The operator has put the client {client!r} in quarantine: its updates are "
                "refused.",
            )

    @contextmanager
    def calling(self, call: Call) -> Iterator[None]:
        """Register a call while it lasts.

        Enter before the ledger is queried about the client: then a revocation either precedes the
        query, or finds the call here.

        Raises:
            Refusal: BUSY, the client has too many; each uses memory.
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
        """A client has connected; its older session and uploads end.

        After a lost connection, old uploads stay open until a timeout. Until then the client could
        not resume them.
        """
        older = self._sessions.pop(session.client, None)
        over = Refusal(
            Code.BUSY,
            "Another connection of this client has taken over. If it is of another device, this "
            "device's state was copied: enrol each device with a token of its own.",
        )
        if older is not None:
            older.call.end(over)
        for call in list(self._calls.get(session.client, ())):
            if call is not session.call and call.task != NO_TASK:
                call.end(over)
        self._sessions[session.client] = session
        self.waiting.pop(session.client, None)
        if session.checks_in:
            self.waiting[session.client] = None
        self._changed()
        self._announce(session.client)

    def leave(self, session: Session) -> None:
        """A client's stream has ended."""
        if self._sessions.get(session.client) is not session:
            return  # a newer one has taken over
        del self._sessions[session.client]
        self.waiting.pop(session.client, None)
        self._changed()
        for listener in list(self._listeners):
            listener.client_left(session.client)

    def occupy(self, client: str, task: TaskId, owner: Listener) -> bool:
        """Assign a task to a client; False if it is gone, quarantined or has another task."""
        session = self._sessions.get(client)
        held = self._held.get(client) is Hold.QUARANTINE
        if held or session is None or session.leaves or session.task not in (None, task):
            return False
        session.task = task
        self.waiting.pop(client, None)
        self.live.changed("work", look=self._counts)
        for listener in self._listeners:
            if listener is not owner:
                listener.client_left(client)
        return True

    def free(self, client: str, task: TaskId) -> None:
        """End a client's task."""
        session = self._sessions.get(client)
        if session is not None and session.task == task:
            session.task = None
            self.live.changed("work", look=self._counts)
            if session.checks_in and not any(each.claims(client) for each in self._listeners):
                self.freed(session)
            else:
                self._announce(client)

    def send(self, client: str, message: fleet_pb2.ServerMessage) -> None:
        """Send a message without waiting for it."""
        session = self._sessions.get(client)
        if session is not None:
            self._sending.start(session.send(message))

    def _changed(self) -> None:
        self.revision += 1
        self.live.changed("clients", look=self._counts)

    def _counts(self) -> dict[str, int]:
        idle = sum(session.task is None for session in self._sessions.values())
        return {"online": len(self._sessions), "available": idle}

    def _announce(self, client: str) -> None:
        """Announce an available client to the run that claims it, else to all."""
        if self._held.get(client) is Hold.QUARANTINE:
            return
        for listener in self._listeners:
            if listener.claims(client):
                listener.client_available(client)
                return
        for listener in list(self._listeners):
            session = self._sessions.get(client)
            if session is None or not self._is_idle(session):
                return  # another listener has just taken it, or it rests or is held
            listener.client_available(client)

    def _announce_to(self, listener: Listener, client: str) -> None:
        if not any(other.claims(client) for other in self._listeners if other is not listener):
            listener.client_available(client)
