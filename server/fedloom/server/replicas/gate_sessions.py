"""The sessions of devices at gates, as the driver has them, and what gates accept and refuse.

A session at a gate is a session of the fleet whose messages go by the ledger. Rounds and the engine
do not see the difference.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from sqlalchemy.exc import DBAPIError

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import Code, FedloomError, Refusal
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.background_tasks import BackgroundTasks
from fedloom.server.fleet.context import FleetContext
from fedloom.server.fleet.desk import Desk
from fedloom.server.fleet.sessions import Call, Session
from fedloom.server.ledger.replicas.doorbell import POLL_S, Doorbell
from fedloom.server.ledger.replicas.gate_queues import (
    AcceptedHere,
    Mail,
    Mailed,
    Received,
    RefusedHere,
    SeenHere,
    Telling,
    Told,
)
from fedloom.server.ledger.rows import AcceptedRow
from fedloom.server.ledger.store import unavailable
from fedloom.server.metrics.replica import GateState
from fedloom.server.replicas.lease import ReplicaTurn
from fedloom.server.rounds.manager import Runs

log = logging.getLogger(__name__)

BATCH_S = 0.005
"""Messages of this time go to gates together."""

SEAL_S = 2.0
"""Longest wait for a gate's sum of a closed round; later its bodies are folded here."""

LOOK_S = 0.2
"""Interval at which the ledger is read for such sums, beside the gates' notifications."""


class GateCall(Call):
    """The stream of a device at a gate; its end is a message."""

    __slots__ = ("_end",)

    def __init__(self, client: str, end: Callable[[Refusal], None]) -> None:
        handler: asyncio.Task[Any] | None = asyncio.current_task()
        assert handler is not None
        super().__init__(client, None, handler)
        self._end = end

    def end(self, refusal: Refusal) -> None:
        """Ask the gate to end the stream, with the reason."""
        if self.refusal is None:
            self.refusal = refusal
            self._end(refusal)


class GateSessions:
    """All sessions at gates.

    Args:
        server: context of the driver's services.
        desk: handles the messages of clients.
        runs: whose rounds count updates.
        turn: of this driver.
        bell: its notifications.
    """

    def __init__(
        self, server: FleetContext, desk: Desk, runs: Runs, turn: ReplicaTurn, bell: Doorbell
    ) -> None:
        self._server = server
        self._desk = desk
        self._runs = runs
        self._epoch = turn.epoch
        self._bell = bell
        self._sessions: dict[tuple[str, str], tuple[Session, ExitStack]] = {}
        self._replica = turn.state
        self._letters: list[Mail] = []
        self._masking = BackgroundTasks()
        self._due = asyncio.Event()
        self._news = asyncio.Event()  # gates have told something, or sealed a sum

    # ---- from gates ----

    async def read(self) -> None:
        """Handle what gates tell, until cancelled."""
        try:
            await self._read()
        finally:
            self._masking.cancel()

    async def _read(self) -> None:
        server, rung = self._server, self._bell.rung
        while True:
            await rung.wait()
            rung.clear()
            self._news.set()
            try:
                received = await server.in_ledger(server.ledger.take_inbox)
            except DBAPIError as error:
                log.warning("messages of gates are not read yet: %s", unavailable(error))
                continue
            if received:
                crossing("inbox.taken")
            for each in received:
                try:
                    await self._handle(each)
                except Exception:  # a message of one client must not stop the others
                    log.exception("a message of %s is dropped", each.telling.client)
            if received:
                rung.set()  # there may be more

    async def _handle(self, received: Received) -> None:
        telling, gate = received.telling, received.gate
        if telling.kind is Told.ACCEPTED:
            self._accepted(AcceptedHere.parse(telling.content))
        elif telling.kind is Told.REFUSED:
            self._refused(telling.client, RefusedHere.parse(telling.content))
        elif telling.kind is Told.SEEN:
            seen = SeenHere.parse(telling.content)
            self._server.records.add((seen.run, seen.round), telling.client, seen.columns)
        elif received.epoch != self._epoch:
            return  # for an earlier driver: the gate tells this one of its sessions
        elif telling.kind in (Told.CAME, Told.CHECKED_IN):
            self._came(gate, telling)
        elif telling.kind is Told.LEFT:
            self._left((gate, telling.session))
        elif known := self._sessions.get((gate, telling.session)):
            await self._said(known[0], telling.content)

    def _came(self, gate: str, telling: Telling) -> None:
        key = (gate, telling.session)
        if key in self._sessions:
            return

        def end(refusal: Refusal) -> None:
            here = RefusedHere(refusal.code.value, str(refusal))
            self._post(Mail(*key, Mailed.END, bytes(here)))

        async def send(message: fleet_pb2.ServerMessage) -> None:
            self._post(Mail(*key, Mailed.SEND, message.SerializeToString()))

        checks_in = telling.kind is Told.CHECKED_IN
        call, stack = GateCall(telling.client, end), ExitStack()
        session = Session(call, send, telling.content, checks_in=checks_in)
        try:
            stack.enter_context(self._server.fleet.calling(session.call))
        except Refusal as refusal:
            end(refusal)
            return
        self._sessions[key] = session, stack
        self._desk.came(session)

    def _left(self, key: tuple[str, str]) -> None:
        if known := self._sessions.pop(key, None):
            session, stack = known
            stack.close()
            self._desk.left(session)

    async def _said(self, session: Session, content: bytes) -> None:
        message = fleet_pb2.ClientMessage.FromString(content)
        if message.HasField("masking"):  # it is stored: messages of others do not wait for that
            self._masking.start(self._pass_on(session, message))
        else:
            await self._pass_on(session, message)

    async def _pass_on(self, session: Session, message: fleet_pb2.ClientMessage) -> None:
        try:
            await self._desk.said(session, message)
        except Refusal as refusal:
            session.call.end(refusal)
        except DBAPIError as error:  # the client connects again, and is asked again
            log.warning("a message of %s is not stored: %s", session.client, unavailable(error))
            text = "The server cannot store the message now: try again."
            session.call.end(Refusal(Code.BUSY, text))
        except Exception:  # a message of one client must not stop the others
            log.exception("a message of %s is dropped", session.client)

    def _accepted(self, update: AcceptedHere) -> None:
        try:
            self._runs.round((update.run, update.round)).accepted(update, update.counted)
        except FedloomError as error:  # the round is over: its commit has read the ledger
            log.info("an update of %s came with the end of its round: %s", update.client, error)

    def _refused(self, client: str, here: RefusedHere) -> None:
        try:
            round_ = self._runs.round((here.run, here.round))
        except FedloomError:
            return
        round_.refused(client, here.refusal, here.round)

    def _show(self, alive: Mapping[str, str]) -> None:
        """Let operators see the other gates."""
        streams = Counter(gate for gate, _ in self._sessions)
        own = self._replica.gate
        found = [GateState(name, streams[gate]) for gate, name in alive.items() if gate != own]
        if found != self._replica.gates:
            self._replica.gates = found
            self._server.live.changed("clients")

    # ---- sums of gates ----

    async def sealed(self, key: tuple[str, int]) -> list[AcceptedRow]:
        """Wait a while for the gates' sums of a round that has closed.

        Args:
            key: run and number of the round.

        Returns:
            Its accepted updates, as they are then.
        """
        server, until = self._server, time.monotonic() + SEAL_S
        for gate in await self._unsealed(key):
            self._post(Mail(gate, "", Mailed.CLOSED, json.dumps(key).encode()))
        while await self._unsealed(key) and time.monotonic() < until:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._news.wait()
            self._news.clear()
        return await server.in_ledger(server.ledger.accepted, *key)

    async def _unsealed(self, key: tuple[str, int]) -> set[str]:
        """Gates that live, and have updates in no sum."""
        return await self._server.in_ledger(self._server.ledger.unsealed, *key)

    # ---- to gates ----

    def _post(self, letter: Mail) -> None:
        self._letters.append(letter)
        self._due.set()

    async def post(self) -> None:
        """Send messages to gates, until cancelled."""
        server = self._server
        while True:
            await self._due.wait()
            await asyncio.sleep(BATCH_S)
            self._due.clear()
            letters, self._letters = self._letters, []
            while letters:
                try:
                    await server.in_ledger(server.ledger.post, letters)
                    break
                except DBAPIError as error:
                    log.warning("messages to gates are not sent yet: %s", unavailable(error))
                    await asyncio.sleep(POLL_S)
            for gate in {letter.gate for letter in letters}:
                self._bell.ring(gate)

    async def watch(self) -> None:
        """Strike out gates that are late, and end the sessions of gates that are gone."""
        server = self._server
        while True:
            known = list(self._sessions)  # not those of a gate that begins meanwhile
            try:
                alive = await server.in_ledger(server.ledger.strike_out)
            except DBAPIError as error:
                log.warning("gates are not watched: %s", unavailable(error))
            else:
                self._show(alive)
                for key in known:
                    if key[0] not in alive:
                        self._left(key)
            await asyncio.sleep(POLL_S)
