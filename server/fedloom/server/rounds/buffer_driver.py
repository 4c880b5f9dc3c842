"""The buffers of a run in the world: one shell for all of them, since clients work across them.

What it adds to a round's shell is time: a client's task is of the round that it was asked in, its
update counts in the buffer that is open when it is accepted, and an update that comes while a
buffer is being committed waits for the next one. Models need no care: every committed one stays
in the store, so whoever still works on it, or begins anew after a crash, finds it.

A subclass, as the engine's `Buffer` is a `Round` (docs/adr/0012): of some twenty-five doors it does
a dozen otherwise, and around a shell that it held it would have to hand on all the others.

Invariants: those of a round's shell, and: the ledger's row of an update says which buffer it is in
and how stale it was, in the transaction that accepts it, so a buffer that is rebuilt after a crash
has the same bits. A task keeps the plan of the round that it was offered in.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.context import World
from fedloom.server.engine import (
    Buffer,
    BufferConfig,
    BufferEvent,
    Close,
    Disband,
    MemberSnapshot,
    NextBuffer,
    Offer,
    Opened,
    Phase,
    RoundEffect,
    RoundEvent,
    RoundState,
    Select,
    UpdateAccepted,
)
from fedloom.server.fleet.sessions import Listener
from fedloom.server.ledger import AcceptedUpdate, Row
from fedloom.server.planning.round_plan import RoundPlan, task_of
from fedloom.server.rounds.commit import Outcome
from fedloom.server.rounds.round_driver import RoundShell
from fedloom.server.rounds.round_sum import RoundSum

HOLD_S = 10.0
"""Longest that an upload waits for the next buffer before it is told to try again."""


class BufferShell(RoundShell):
    """Drives the buffers of a run, one after another.

    Args:
        plan: of the buffer that is opened or restored, or was committed last.
        world: shared parts.
        owner: the run, as the fleet knows it.
        select: draws who is asked.
        ended: called whenever a buffer is over.
        config: the knobs.
        earlier: plans of earlier rounds that somebody may still work on.
    """

    engine: Buffer

    def __init__(  # noqa: PLR0917 - a round's, and two more
        self,
        plan: RoundPlan,
        world: World,
        owner: Listener,
        select: Select,
        ended: Callable[[Outcome], None],
        config: BufferConfig,
        earlier: Iterable[RoundPlan] = (),
    ) -> None:
        super().__init__(plan, world, owner, select, ended)
        self._config = config
        self._plans = {p.number: p for p in (*earlier, plan)}
        self._open = asyncio.Event()  # the ledger holds the row of the buffer that is open
        self._stopping = False

    # ---- life --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Select from whoever is available."""
        self.engine = Buffer(
            self._config,
            number=self.plan.number,
            select=self._select,
            now=self._now(),
            available=self._world.fleet.available(),
            last=_is_last(self.plan),
        )
        self._start()

    async def restore(self, row: Row, *, paused: bool) -> None:
        """Go on with a buffer that was open when the server stopped."""
        ledger = self._world.ledger
        accepted = await self._world.in_ledger(ledger.accepted, *self._key)
        cohort = await self._world.in_ledger(ledger.cohort, *self._key)
        members = await self._at_work()
        members |= {m["client"]: self._member(m) for m in cohort}
        members |= {u["client"]: MemberSnapshot(u["round"], Phase.REPORTED) for u in accepted}
        left_s = max(row["deadline_at"] - time.time(), self._config.patience_s)
        self._rebuild(RoundState(row["state"]), members, left_s, paused=paused)
        self._stored = True
        if self.engine.state is RoundState.REPORTING:
            self._open.set()
        await self._sum.restore(accepted)
        self._start()

    async def wait_for_next(self) -> None:
        """Go on between two buffers: clients are at work, and the run opens the next one."""
        self._rebuild(RoundState.COMMITTED, await self._at_work())
        self._start()

    def _rebuild(
        self,
        state: RoundState,
        members: Mapping[str, MemberSnapshot],
        deadline_left_s: float = 0.0,
        *,
        paused: bool = False,
    ) -> None:
        self.engine = Buffer.rebuild(
            self._config,
            number=self.plan.number,
            select=self._select,
            state=state,
            members=members,
            now=self._now(),
            deadline_left_s=deadline_left_s,
            available=self._world.fleet.available(),
            paused=paused,
            last=_is_last(self.plan),
        )

    async def _at_work(self) -> dict[str, MemberSnapshot]:
        """Who may still be at work, by the ledger; a later task of a client ends its earlier."""
        rows = await self._world.in_ledger(
            self._world.ledger.at_work, self.plan.run, min(self._plans)
        )
        return {row["client"]: self._member(row) for row in rows}

    def _member(self, row: Row) -> MemberSnapshot:
        phase = Phase(row["phase"])
        waits = phase is Phase.OFFERED
        return MemberSnapshot(row["round"], phase, self._config.patience_s if waits else None)

    def next(self, plan: RoundPlan, select: Select) -> None:
        """Open the next buffer."""
        self.plan, self._key, self._select = plan, plan.key, select
        self._sum = RoundSum(plan, self._world)
        self._stored = False
        self.trace.begin(plan)
        self._plans[plan.number] = plan
        self.feed(NextBuffer(plan.number, select, last=_is_last(plan)))
        for number in [n for n in self._plans if plan.number - n > self._config.max_staleness]:
            self._world.spool.release_round(*self._plans.pop(number).key)

    def disband(self, reason: str) -> None:
        """The run opens no other buffer: nobody's work is wanted any more."""
        self.feed(Disband(reason))
        self._let_go()
        self._performer.cancel()

    async def stop(self) -> None:
        """Leave the buffer as it is; a later start goes on with it."""
        self._stopping = True
        self._open.set()
        await super().stop()

    @property
    def goes_on(self) -> bool:
        """Whether a buffer is open in this shell, or another may follow."""
        engine = self.engine
        return not (engine.state.is_over and (engine.last or engine.state is RoundState.ABANDONED))

    def feed(self, event: BufferEvent) -> None:
        """Tell the engine what happened and queue what it asks for.

        Raises:
            OperatorRefused: the operator's command does not fit.
        """
        super().feed(cast(RoundEvent, event))

    # ---- clients ---------------------------------------------------------------------------------

    def plan_of(self, number: int | None) -> RoundPlan:
        """The plan of a round that somebody may work on; None for the round that is open."""
        return self.plan if number is None else self._plans.get(number, self.plan)

    def key_of(self, client: str) -> tuple[str, int]:
        """The task that a member works on: run and round."""
        origin = self.engine.origin(client)
        return self._key if origin is None else (self.plan.run, origin)

    def speaks_of(self, number: int) -> bool:
        """May a message about this round be meant for this shell?"""
        return number in self._plans

    def claims(self, client: str) -> bool:
        """Is this client at work, on whichever model?"""
        phase = self.engine.cohort.phases.get(client)
        unfinished = phase in (Phase.OFFERED, Phase.TRAINING, Phase.LOST)
        ending = self.engine.last and not self.engine.state.is_open
        return unfinished and self.goes_on and not ending

    def wants(self, offer: Offer) -> bool:
        """Is an offer that was queued still to be sent?"""
        return self.claims(offer.client) and self.engine.origin(offer.client) == offer.origin

    async def _offer(self, offer: Offer) -> fleet_pb2.ServerMessage:
        task = await self._task_for(offer.client, task_of(self.plan_of(offer.origin)))
        task.deadline_s = math.inf  # the buffer's is not the client's, whose update may be stale
        return self._world.offer(offer.client, task)

    def status(self) -> dict[str, Any]:
        """Where the buffer stands right now."""
        return {**super().status(), "concurrency": self._config.concurrency}

    # ---- uploads ---------------------------------------------------------------------------------

    def check_open(self, client: str, number: int) -> None:
        """Would an update of this client for this round be accepted, now or in the next buffer?

        Raises:
            Refusal: STALE_ROUND, NOT_IN_COHORT or ROUND_CLOSED.
        """
        code = self.engine.refusal_for(client, number)
        if code is not None:
            raise Refusal(
                code,
                f"Expected an update of a client at work, at most {self._config.max_staleness} "
                f"models behind round {self.plan.number}, got {client!r} for round {number} while "
                f"the buffer is {self.engine.state.value}.",
            )

    async def accept(self, update: AcceptedUpdate) -> bool:
        """Make an update count in the buffer that is open; its bytes are synced.

        Returns:
            True unless it was accepted before.

        Raises:
            Refusal: it is too stale, nobody wants it, another one was accepted, or no buffer
                opened in time.
        """
        crossing("accept.before")
        ledger, number = self._world.ledger, 0
        while True:
            await self._opened()
            self.check_open(update.client, update.round)
            number = self.plan.number
            update = replace(update, counts_in=number, staleness=number - update.round)
            try:
                first = await self._world.in_ledger(ledger.accept, update, self.plan.spec.capacity)
                break
            except Refusal as refusal:
                if refusal.code is not Code.ROUND_CLOSED:
                    raise
                if self._open.is_set():  # not closing: a pause keeps a full buffer open
                    raise _later() from None
        crossing("accept.after")
        if first:
            self._world.meters.accepted.inc()
            self._world.records.accepted((update.run, update.round), update.client)
            if number == self.plan.number:
                self._sum.add(update.client, update.file, update.staleness)
            self.feed(UpdateAccepted(update.client))
            self._world.fleet.free(update.client, (update.run, update.round))
        return first

    async def _opened(self) -> None:
        """Wait while a buffer is being committed, for a while."""
        try:
            async with asyncio.timeout(HOLD_S):
                await self._open.wait()
        except TimeoutError:
            raise _later() from None
        if self._stopping:
            raise _later()

    # ---- effects ---------------------------------------------------------------------------------

    async def _perform(self, effect: RoundEffect) -> Outcome | None:
        if isinstance(effect, Close):
            self._open.clear()
        outcome = await super()._perform(effect)
        if isinstance(effect, Opened):
            self._open.set()
        return outcome

    def _keep_records(self) -> None:
        """Store what those did whose part is over; the others' rounds are not over for them."""
        records = {self.plan.number: {}, **self._world.records.take_ended(self.plan.run)}
        if self._stored:
            self._store_records(records, over=False)

    def _clean(self, updates: Iterable[Row] = ()) -> None:
        self._sum.clean([update["file"] for update in updates])
        if not self.goes_on:
            self._let_go()

    def _let_go(self) -> None:
        """Nobody works on anything any more: what came of it is of no use."""
        if records := self._world.records.take_ended(self.plan.run):
            self._store_records(records, over=True)
        self._open.set()  # whoever waits to be accepted is told
        for plan in self._plans.values():
            self._world.spool.release_round(*plan.key)
        if self._timer is not None:
            self._timer.cancel()


def _is_last(plan: RoundPlan) -> bool:
    return plan.trained + 1 >= plan.spec.rounds


def _later() -> Refusal:
    return Refusal(Code.BUSY, "Expected an open buffer, got none or a full one: try again.")
