"""One round in the world: the engine's events come from clients and clocks, its effects are done.

The engine decides (fedloom.server.engine.round); this shell tells it what happened, carries out
what it asks for in that order, and keeps the order in which things become durable:

    cohort stored → offers sent → updates accepted → round closing → model stored → round committed

What can be told apart from that order is apart: a round's end (`round_end`), its trace, its view,
the door for headers. The rest shares the engine, the row in the ledger and the sum, step by step.

Invariants: an offer is sent only to a member that the ledger holds; the sum that is committed is
of exactly the updates that the ledger held when the round left `reporting`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import FedloomError, Refusal, printable
from fedloom.protocol.updates.header import PlannedPart
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.context import World
from fedloom.server.engine import (
    Abandon,
    Abort,
    Attended,
    ClientFailed,
    Close,
    CommitFailed,
    Committed,
    Left,
    Offer,
    OfferAccepted,
    OfferDeclined,
    Opened,
    Phase,
    Recruited,
    Round,
    RoundEffect,
    RoundEngine,
    RoundEvent,
    RoundState,
    Select,
    UpdateAccepted,
    UpdateRefused,
    Wake,
    Withdraw,
)
from fedloom.server.engine.steps import NO_QUORUM
from fedloom.server.fleet.sessions import Listener, Session
from fedloom.server.ledger import AcceptedUpdate, Row
from fedloom.server.metrics.log_buffer import about
from fedloom.server.metrics.meters import (
    ABANDONED,
    COMMITTED,
    EARLY,
    FAULT,
    GOAL,
    QUORUM,
    STOPPED,
    TOO_FEW,
    timed,
)
from fedloom.server.planning.admission import check_update
from fedloom.server.planning.round_plan import RoundPlan, for_client, names, task_key, task_of
from fedloom.server.rounds import progress
from fedloom.server.rounds import status as round_view
from fedloom.server.rounds.background_tasks import Pending
from fedloom.server.rounds.commit import Outcome, commit
from fedloom.server.rounds.effect_queue import Performer
from fedloom.server.rounds.member_records import LATE, LOST, Record
from fedloom.server.rounds.round_sum import RoundSum
from fedloom.server.rounds.storage_retry import or_log
from fedloom.server.rounds.trace import RoundTrace
from fedloom.strategies import TooFewUpdatesError

log = logging.getLogger(__name__)


class RoundShell:
    """Drives one round.

    Args:
        plan: what the round is.
        world: shared parts.
        owner: the run, as the fleet knows it.
        select: draws the cohort and its replacements.
        ended: called once, when the round is over.
    """

    def __init__(
        self,
        plan: RoundPlan,
        world: World,
        owner: Listener,
        select: Select,
        ended: Callable[[Outcome], None],
    ) -> None:
        self.plan = plan
        self.trace = RoundTrace(world.tracer)
        self._world = world
        self._owner = owner
        self._select = select
        self._ended = ended
        self._key = plan.key
        self._watchers = round_view.Watchers(world.live, plan.run)
        self._task = task_of(plan)
        self._remembers = plan.spec.remembers
        self._sum = RoundSum(plan, world)
        self._timer: asyncio.TimerHandle | None = None
        self._performer = Performer(self._perform, self._fail, self._finish, self._whose)
        self._storing = Pending()
        self._stored = False  # the ledger has a row of this round
        self._kept = False  # records of the members were stored
        self._opened_at: float | None = None  # monotonic; None where another process opened it
        self.engine: RoundEngine

    # ---- life --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Select from whoever is available."""
        self.engine = Round(
            self.plan.config,
            select=self._select,
            now=self._now(),
            available=self._idle(),
        )
        self._start()

    async def restore(self, row: Row, *, paused: bool) -> None:
        """Go on with a round that was open when the server stopped."""
        world = self._world
        members = await world.in_ledger(world.ledger.cohort, *self._key)
        accepted = await world.in_ledger(world.ledger.accepted, *self._key)
        config = self.plan.config
        # Time that the server was down is not the clients' fault: they get their patience anew.
        left_s = max(row["deadline_at"] - time.time(), config.patience_s)
        self.engine = Round.restore(
            config,
            select=self._select,
            state=RoundState(row["state"]),
            cohort={m["client"]: Phase(m["phase"]) for m in members},
            accepted={a["client"] for a in accepted},
            deadline_left_s=left_s,
            now=self._now(),
            available=self._idle(),
            paused=paused,
        )
        self._stored = True
        await self._sum.restore(accepted)
        self._start()

    def _start(self) -> None:
        self.trace.begin(self.plan)
        self._performer.start()
        self.feed(Wake())

    async def stop(self) -> None:
        """Leave the round as it is; a later start goes on with it."""
        if self._timer is not None:
            self._timer.cancel()
        await self._performer.stop()
        await self._storing.settled()
        await self._sum.stop()
        self.trace.end("the server stops")

    def _about(self, client: str = "") -> dict[str, Any]:
        return about(client, *self.plan.key)

    # ---- events ------------------------------------------------------------------------------

    def feed(self, event: RoundEvent) -> None:
        """Tell the engine what happened and queue what it asks for.

        Raises:
            OperatorRefused: the operator's command does not fit.
        """
        effects = self.engine.handle(event, self._now())
        for effect in effects:
            if isinstance(effect, Withdraw):
                self._withdraw(effect)
            elif isinstance(effect, Offer) and not self._occupy(effect):
                asyncio.get_running_loop().call_soon(self.feed, Left(effect.client))
            else:
                self._performer.put(effect)
        self._set_timer()
        self._watchers.tell(self.engine, self._brief)

    def _occupy(self, offer: Offer) -> bool:
        key = self.plan_of(offer.origin).key
        return self._world.fleet.occupy(offer.client, key, self._owner)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at = self.engine.wake_at
        loop = asyncio.get_running_loop()
        self._timer = None if at is None else loop.call_at(at, self.feed, Wake())

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def plan_of(self, number: int | None) -> RoundPlan:  # noqa: ARG002 - buffers know several
        """The plan of a round that somebody may work on; None for the round that is open."""
        return self.plan

    def key_of(self, client: str) -> tuple[str, int]:  # noqa: ARG002 - buffers know several
        """The task that a member works on: run and round."""
        return self._key

    def speaks_of(self, number: int) -> bool:
        """May a message about this round be meant for this shell?"""
        return number == self.plan.number

    def claims(self, client: str) -> bool:
        """Does the round wait for this client?"""
        open_for = (Phase.OFFERED, Phase.TRAINING, Phase.LOST)
        reporting = self.engine.state is RoundState.REPORTING
        return reporting and self.engine.cohort.phases.get(client) in open_for

    def client_replied(self, client: str, reply: fleet_pb2.OfferReply) -> None:
        """A client took or declined its offer."""
        records, key = self._world.records, self.key_of(client)
        self.trace.answered(client, "" if reply.accepted else printable(reply.reason))
        if reply.accepted:
            records.took(key, client)
            self.feed(OfferAccepted(client))
        else:
            records.ended(key, client, reply.reason)
            self._note(client, Phase.DECLINED, reply.reason)
            self._world.fleet.rest(client, reply.again_s)
            self._world.meters.declined.inc()
            self.feed(OfferDeclined(client, reply.reason))
            self._world.fleet.free(client, self.key_of(client))

    def client_failed(self, client: str, reason: str) -> None:
        """A client gave up."""
        if self.claims(client):  # said once, however often the client does
            number, about = self.plan.number, self._about(client)
            log.warning("%s gave up on round %d: %s", client, number, reason, extra=about)
            self._world.meters.failed.inc()
        self._note(client, Phase.FAILED, reason)
        self._world.records.ended(self.key_of(client), client, reason)
        self.feed(ClientFailed(client, reason))
        self._world.fleet.free(client, self.key_of(client))

    def client_progressed(self, session: Session, message: fleet_pb2.Progress) -> None:
        """A member says how far it is."""
        private = self.plan.spec.build_privacy() is not None
        if told := progress.read(message, private=private):
            session.progress = told
            self._world.records.training(self.key_of(session.client), session.client)
            self._world.live.changed("round", self.plan.run, self._brief)

    def let_go(self, client: str, reason: str) -> None:
        """Wait no more for a member, and tell it so."""
        run, number = self.key_of(client)
        task = fleet_pb2.TaskKey(run=run, round=number)
        message = fleet_pb2.ServerMessage(withdraw=fleet_pb2.Withdraw(task=task, reason=reason))
        self._world.fleet.send(client, message)
        self.client_failed(client, reason)

    def client_available(self, client: str) -> None:
        """A client is connected and idle."""
        if client not in self.plan.barred:
            self.feed(Attended(client))

    def _idle(self) -> list[str]:
        barred = self.plan.barred
        return [client for client in self._world.fleet.available() if client not in barred]

    def client_left(self, client: str) -> None:
        """A client's stream ended, or another run took it."""
        self.feed(Left(client))

    def _note(self, client: str, phase: Phase, reason: str) -> None:
        """Store how a member ended, behind what is queued already."""
        if self.claims(client):
            key = self.key_of(client)
            world, why = self._world, reason[:500]
            noting = world.in_ledger(world.ledger.set_phase, *key, client, phase.value, why)
            self._storing.start(noting)

    # ---- uploads -----------------------------------------------------------------------------

    def admit(self, header: fleet_pb2.UpdateHeader) -> list[PlannedPart]:
        """May this client upload this update now?

        Raises:
            Refusal: not in the cohort, closed, another model, or a bad header.
        """
        self.check_open(header.client, header.task.round)
        return check_update(header, self.plan_of(header.task.round))

    def sends(self, digest: str) -> bool:
        """Do clients get this, as a model, beside one or on the way to one?"""
        return names(self._task, digest)

    def check_open(self, client: str, number: int) -> None:  # noqa: ARG002 - buffers know several
        """Would an update of this client for this round be accepted now?

        Raises:
            Refusal: NOT_IN_COHORT or ROUND_CLOSED.
        """
        code = self.engine.refusal_for(client, self.plan.number)
        if code is not None:
            raise Refusal(
                code,
                f"Expected a member of the cohort of round {self.plan.number} while it is open, "
                f"got {client!r} while it is {self.engine.state.value}.",
            )

    def refused(self, client: str, refusal: Refusal, number: int) -> None:
        """A client's update for a round was turned away."""
        mine = self.claims(client) and self.key_of(client) == (self.plan.run, number)
        if refusal.code.blames_update and mine:
            self._note(client, Phase.REFUSED, f"{refusal.code}: {refusal}")
            self._world.records.ended((self.plan.run, number), client)
            self.feed(UpdateRefused(client, refusal.code))
            self._world.fleet.free(client, self.key_of(client))

    async def accept(self, update: AcceptedUpdate) -> bool:
        """Make an update count; its bytes are synced. True unless it was accepted before.

        Raises:
            Refusal: the round has closed, or another update was accepted.
        """
        crossing("accept.before")
        world = self._world
        first = await world.in_ledger(world.ledger.accept, update, self.plan.spec.capacity)
        crossing("accept.after")
        if first:
            self._world.meters.accepted.inc()
            self._world.records.accepted(self._key, update.client)
            self._sum.add(update.client, update.file)
            self.feed(UpdateAccepted(update.client))
            world.fleet.free(update.client, self._key)
        return first

    # ---- effects -----------------------------------------------------------------------------

    def _whose(self) -> tuple[str, dict[str, Any]]:
        return f"round {self.plan.number} of {self.plan.run}", self._about()

    async def _perform(self, effect: RoundEffect) -> Outcome | None:
        world = self._world
        match effect:
            case Opened(cohort):
                now = time.time()
                row = self.plan.row(now, self.deadline_at() or now)
                await world.in_ledger(world.ledger.open_round, row, cohort)
                self._stored = True
                self._opened_at = time.monotonic()
                crossing("round.opened")
                log.info(
                    "round %d of %s opened for %d", self.plan.number, self.plan.run, len(cohort),
                    extra=self._about(),
                )  # fmt: skip
            case Recruited(client):
                await world.in_ledger(world.ledger.recruit, *self._key, client)
            case Offer():
                if self.wants(effect):
                    offer = await self._offer(effect)
                    key = self.key_of(effect.client)
                    world.records.offered(key, effect.client, again=effect.again)
                    self.trace.offered(effect.client, offer)
                    world.fleet.send(effect.client, offer)
                    world.meters.offers.inc()
                    crossing("offer.sent")
            case Close():
                with timed(world.meters.commit_s), self.trace.commit():
                    return await self._close()
            case Abandon(reason):
                cause = QUORUM if reason.startswith(NO_QUORUM) else STOPPED
                return await self._abandon(reason, fault=False, cause=cause)
        return None

    @property
    def goes_on(self) -> bool:
        """Is there work in this shell after its round?"""
        return False

    def wants(self, offer: Offer) -> bool:  # noqa: ARG002 - buffers look at it
        """Is an offer that was queued still to be sent?"""
        return self.engine.state is RoundState.REPORTING

    def _withdraw(self, effect: Withdraw) -> None:
        plan = self.plan_of(effect.origin)
        if not self._kept:
            lost = self.engine.cohort.phases.get(effect.client) is Phase.LOST
            self._world.records.withdrawn(plan.key, effect.client, LOST if lost else LATE)
        message = fleet_pb2.ServerMessage(
            withdraw=fleet_pb2.Withdraw(task=task_key(plan), reason=effect.reason)
        )
        self._world.fleet.send(effect.client, message)
        self._world.fleet.free(effect.client, plan.key)

    async def _close(self) -> Outcome:
        done = await commit(self.plan, self._sum, self._world)
        self.feed(Committed())
        self._keep_records()
        self._clean(done.updates)
        num_updates = len(done.updates)
        log.info(
            "round %d of %s committed %s from %d updates",
            self.plan.number, self.plan.run, done.model[:12], num_updates,
            extra=self._about(),
        )  # fmt: skip
        cause = GOAL if num_updates >= self.engine.config.goal else EARLY
        model, state = done.model, done.strategy_state
        return Outcome(model, state, observed=done.observed, excluded=done.excluded, cause=cause)

    async def _fail(self, error: Exception) -> Outcome:
        known = isinstance(error, FedloomError | TooFewUpdatesError)
        reason = f"{error}" if known else f"{type(error).__name__}: {error}"
        self.feed(Abort(reason) if self.engine.state.is_open else CommitFailed(reason))
        # Other clients may come to the next round; everything else would fail again.
        fault = not isinstance(error, TooFewUpdatesError)
        return await self._abandon(reason, fault=fault, cause=FAULT if fault else TOO_FEW)

    async def _abandon(self, reason: str, *, fault: bool, cause: str) -> Outcome:
        world = self._world
        if self._stored:
            await world.in_ledger(world.ledger.abandon_round, *self._key, reason, cause)
        self._keep_records()
        self._clean()
        about, run = self._about(), self.plan.run
        log.warning("round %d of %s abandoned: %s", self.plan.number, run, reason, extra=about)
        return Outcome(None, None, reason, fault, cause=cause)

    def _keep_records(self) -> None:
        """Store what the members did; the round is over, and waits for nothing of it."""
        number = self.plan.number
        self._kept = True
        records = self._world.records.take(self._key)
        if self._stored:
            self._store_records({number: records}, over=True)

    def _store_records(self, records: Mapping[int, Mapping[str, Record]], *, over: bool) -> None:
        ledger, run = self._world.ledger, self.plan.run
        storing = self._world.in_ledger(ledger.keep_records, run, records, over=over)
        self._storing.start(or_log(storing, "what members of a round did"))

    def _clean(self, updates: Iterable[Row] = ()) -> None:  # noqa: ARG002 - buffers look at them
        """Forget what is on disk of a round that is over and of the updates in it."""
        self._sum.clean()

    def _finish(self, outcome: Outcome) -> bool:
        """The round is over; returns whether there is work after it."""
        if self._timer is not None:
            self._timer.cancel()
        self._count(outcome)
        self._ended(outcome)
        return self.goes_on

    def _count(self, outcome: Outcome) -> None:
        meters, ended = self._world.meters, ABANDONED if outcome.model is None else COMMITTED
        meters.rounds.labels(self.plan.kind.value, ended, outcome.cause).inc()
        self.trace.end(outcome.reason, outcome=ended, cause=outcome.cause)
        if self._opened_at is not None:
            meters.round_s.observe(time.monotonic() - self._opened_at)
            self._opened_at = None

    # ---- views -------------------------------------------------------------------------------

    def deadline_at(self) -> float | None:
        """Seconds since the epoch of the deadline, once the round is open."""
        left_s = self.engine.clock.deadline_left_s(self._now())
        return None if left_s is None else time.time() + left_s

    def status(self) -> dict[str, Any]:
        """Where the round stands right now."""
        told = round_view.said(self.engine, self._world.fleet, self.key_of)
        return round_view.status(self.plan, self.engine, told, self._now())

    def _brief(self) -> dict[str, Any]:
        return round_view.brief(self.status())

    # ---- messages ----------------------------------------------------------------------------

    async def _offer(self, offer: Offer) -> fleet_pb2.ServerMessage:
        task = await self._task_for(offer.client, self._task)
        task.deadline_s = self.engine.clock.deadline_left_s(self._now()) or 0.0
        return self._world.offer(offer.client, task)

    async def _task_for(self, client: str, common: fleet_pb2.Task) -> fleet_pb2.Task:
        """A round's task with what differs between its clients."""
        spec, world, memory = self.plan.spec, self._world, None
        if self._remembers:
            memory = await world.in_ledger(world.ledger.last_counted, self.plan.run, client)
        return for_client(common, client, spec.seed, memory)
