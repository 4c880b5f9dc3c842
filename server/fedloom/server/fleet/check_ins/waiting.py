"""Holds the devices that check in: lets rounds draw from them, and tells them when to come next.

A device waits up to `hold_s`. When the wait of the longest-waiting one ends, rounds draw from all
that wait and from all idle clients with a stream; so those that came first have no advantage.
Whoever's wait ends without a task, or whose task ends, gets a goodbye.

Invariants: no round opens, and no free place of a round is filled, because a device has come, but
only because a wait ends or clients with a stream are enough. A device that leaves gets no offers.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from random import SystemRandom

import numpy as np
from sqlalchemy.exc import SQLAlchemyError

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.background_tasks import BackgroundTasks
from fedloom.server.check_in_pace import meetings, next_check_ins_s
from fedloom.server.fleet.context import FleetContext
from fedloom.server.fleet.last_seen import PACE_S
from fedloom.server.fleet.sessions import Session
from fedloom.server.ledger.directory import CheckInCounts

log = logging.getLogger(__name__)

LEAVE_S = 30.0
"""Time in which a device ends its stream after a goodbye: it may still finish a masking session."""

TOGETHER_S = 0.1
"""Waits that end within this time, but at most a twentieth of a wait, end together."""

SOON_S = 60.0
"""Devices that are due within this time come soon."""

_RANDOM = SystemRandom()


class CheckIns:
    """The devices that check in.

    Args:
        server: context of the fleet.
        draw: lets every run that waits for clients take them, in turn.
        wanted: returns how many clients the rounds of a study draw at once.
    """

    def __init__(
        self, server: FleetContext, draw: Callable[[], None], wanted: Callable[[str], int]
    ) -> None:
        self._server = server
        self._rules = server.config.check_in
        self._draw = draw
        self._wanted = wanted
        self._until: OrderedDict[Session, float] = OrderedDict()  # by the time of coming
        self._timer: asyncio.TimerHandle | None = None
        self._sending = BackgroundTasks()
        server.fleet.freed = self._goodbye

    # ---- sessions ----

    def came(self, session: Session) -> None:
        """A client's stream has begun."""
        if not session.checks_in:
            return
        self._server.meters.check_ins.inc()
        self._until[session] = asyncio.get_running_loop().time() + self._rules.hold_s
        self._set_timer()

    def left(self, session: Session) -> None:
        """A client's stream has ended."""
        self._until.pop(session, None)

    def _set_timer(self) -> None:
        if self._timer is None and self._until:
            first = next(iter(self._until.values()))
            self._timer = asyncio.get_running_loop().call_at(first, self._end_waits)

    def _end_waits(self) -> None:
        """Draw from all that wait; those that have waited long enough leave."""
        fleet, self._timer = self._server.fleet, None
        fleet.drawing = True
        try:
            self._draw()
        finally:
            fleet.drawing = False
        slack_s = min(TOGETHER_S, self._rules.hold_s / 20)
        until = asyncio.get_running_loop().time() + slack_s
        for session in [s for s, at in self._until.items() if at <= until]:
            del self._until[session]
            if session.task is None and fleet.get(session.client) is session:
                self._goodbye(session)
        self._set_timer()

    # ---- goodbyes ----

    def _goodbye(self, session: Session) -> None:
        fleet, client = self._server.fleet, session.client
        self._until.pop(session, None)
        next_s = max(self._next_s(fleet.study_of(client)), fleet.rest_left_s(client))
        fleet.dismiss(session)
        self._server.presence.told(client, time.time() + next_s)
        goodbye = fleet_pb2.Goodbye(next_check_in_s=next_s)
        self._sending.start(session.send(fleet_pb2.ServerMessage(goodbye=goodbye)))
        asyncio.get_running_loop().call_later(LEAVE_S, self._end, session)

    def _next_s(self, study: str) -> float:
        counts = self._server.check_in_counts.get(study, CheckInCounts())
        number = meetings(counts.expected, self._wanted(study), self._rules)
        draws = np.array([[_RANDOM.random()], [_RANDOM.random()]])
        now = self._server.ledger.wall()
        return float(next_check_ins_s(now, number, self._rules, *draws)[0])

    def _end(self, session: Session) -> None:
        if self._server.fleet.get(session.client) is session:
            why = f"Expected the end of the stream within {LEAVE_S:.0f} s of the goodbye."
            session.call.end(Refusal(Code.BUSY, why))

    # ---- numbers ----

    async def count(self) -> None:
        """Read from the ledger how many devices check in."""
        server, now = self._server, time.time()
        missing = now - self._rules.missing_after_s
        found = await server.in_reader(server.ledger.check_ins, missing, now + SOON_S)
        if found != server.check_in_counts:
            server.check_in_counts.clear()
            server.check_in_counts.update(found)
            server.live.changed("clients")

    async def keep_counting(self) -> None:
        """Count now and then until cancelled; a count of a million devices takes longer."""
        while True:
            begun = time.monotonic()
            try:
                await self.count()
            except SQLAlchemyError as error:
                log.warning("devices that check in are not counted: %s", type(error).__name__)
            await asyncio.sleep(max(PACE_S, 50 * (time.monotonic() - begun)))
