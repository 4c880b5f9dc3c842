"""Passes the streams of a gate's devices on: their messages to the driver, its messages to them.

Messages of a short time go in one transaction. When another server begins to drive, it is told of
every session again, as it knows none.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable

from sqlalchemy.exc import DBAPIError

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.background_tasks import BackgroundTasks
from fedloom.server.fleet.context import FleetContext
from fedloom.server.fleet.sessions import Session
from fedloom.server.ledger.replicas.doorbell import POLL_S, Doorbell
from fedloom.server.ledger.replicas.gate_queues import (
    Mail,
    Mailed,
    RefusedHere,
    Telling,
    Told,
    round_key,
)
from fedloom.server.ledger.store import unavailable

log = logging.getLogger(__name__)

DRIVER = "fedloom.driver"
"""The channel of the server that drives."""

BATCH_S = 0.01
"""Messages of this time go to the driver together."""

_ABOUT_SESSIONS = (Told.CAME, Told.CHECKED_IN, Told.SAID, Told.LEFT)


class Relay:
    """The desk of a gate; see `fedloom.server.fleet.attend`.

    Args:
        server: context of the gate's services.
        gate: its id.
        bell: its notifications.

    Attributes:
        epoch: of the driver; 0 before one is known.
        closed: called with the run and number of a round that the driver has closed.
    """

    def __init__(self, server: FleetContext, gate: str, bell: Doorbell) -> None:
        self._server = server
        self._gate = gate
        self._bell = bell
        self._ids: dict[Session, str] = {}
        self._sessions: dict[str, Session] = {}
        self._waiting: list[Telling] = []
        self._due = asyncio.Event()
        self._sending = BackgroundTasks()
        self.epoch = 0
        self.closed: Callable[[tuple[str, int]], None] = lambda _: None

    # ---- devices ----

    def came(self, session: Session) -> None:
        """A client's stream has begun."""
        self._server.fleet.attend(session)  # ends its older stream and uploads at this gate
        name = secrets.token_hex(8)
        self._ids[session], self._sessions[name] = name, session
        self._tell_of(session, name)

    def _tell_of(self, session: Session, name: str) -> None:
        kind = Told.CHECKED_IN if session.checks_in else Told.CAME
        self.tell(Telling(kind, name, session.client, session.nonce))

    def left(self, session: Session) -> None:
        """A client's stream has ended."""
        self._server.fleet.leave(session)
        name = self._ids.pop(session)
        del self._sessions[name]
        self.tell(Telling(Told.LEFT, name, session.client))

    async def said(self, session: Session, message: fleet_pb2.ClientMessage) -> None:
        """A client sent a message."""
        name = self._ids[session]
        self.tell(Telling(Told.SAID, name, session.client, message.SerializeToString()))

    # ---- the driver ----

    def tell(self, telling: Telling) -> None:
        """Tell the driver, soon."""
        self._waiting.append(telling)
        self._due.set()

    def follow(self, epoch: int) -> None:
        """Another server has begun to drive: tell it of every session."""
        self.epoch = epoch
        self._waiting = [each for each in self._waiting if each.kind not in _ABOUT_SESSIONS]
        for session, name in self._ids.items():
            self._tell_of(session, name)

    async def pass_on(self) -> None:
        """Tell the driver what waits, until cancelled."""
        server = self._server
        while True:
            await self._due.wait()
            await asyncio.sleep(BATCH_S)
            self._due.clear()
            batch, self._waiting = self._waiting, []
            while batch:
                try:
                    told, epoch = [*batch], self.epoch
                    await server.in_ledger(server.ledger.tell, self._gate, epoch, told)
                    break
                except DBAPIError as error:
                    log.warning("the driver is not told yet: %s", unavailable(error))
                    await asyncio.sleep(POLL_S)
            self._bell.ring(DRIVER)

    async def deliver(self) -> None:
        """Send the driver's messages to devices, until cancelled."""
        server = self._server
        while True:
            await self._bell.rung.wait()
            self._bell.rung.clear()
            try:
                letters = await server.in_ledger(server.ledger.take_mail, self._gate)
            except DBAPIError as error:
                log.warning("the driver's messages are not read yet: %s", unavailable(error))
                continue
            if letters:
                crossing("mail.taken")
            for letter in letters:
                self._deliver(letter)
            if letters:
                self._bell.rung.set()  # there may be more

    def _deliver(self, letter: Mail) -> None:
        if letter.kind is Mailed.CLOSED:
            self.closed(round_key(letter.content))
            return
        session = self._sessions.get(letter.session)
        if session is None:
            return  # it has left, which the driver learns
        if letter.kind is Mailed.END:
            session.call.end(RefusedHere.parse(letter.content).refusal)
        else:
            message = fleet_pb2.ServerMessage.FromString(letter.content)
            self._sending.start(session.send(message))
