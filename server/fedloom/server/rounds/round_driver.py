"""Drives the engine of a round in the server: feeds it events and performs its effects.

The engine decides (`fedloom.server.engine`). The driver passes it the events of clients, operators
and the clock, performs its effects in order, and keeps this order of durable steps:

    cohort stored → offers sent → updates accepted → round closing → model stored → round committed

Each synchronous round has its own driver. With buffers one driver serves all training rounds of a
run, since clients work across them: its table of tasks holds the plan of each round that a client
may still work on. An update counts in the buffer that is open when it is stored; an update that
arrives during a commit waits for the next buffer.

Invariants: an offer is sent only to a member that the ledger holds. The committed sum is of exactly
the updates that the ledger held when the round left `reporting`. The ledger's row of an update has
the round in which it counts and its staleness, so a restart gives the same bits.
"""

import asyncio
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

from sqlalchemy.exc import DBAPIError

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import Code, FedloomError, Refusal, printable
from fedloom.protocol.task_message import for_client
from fedloom.protocol.updates.body import BodyChecker, Checker
from fedloom.protocol.updates.header import PlannedPart
from fedloom.protocol.updates.site_body import SiteSumChecker
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.background_tasks import BackgroundTasks
from fedloom.server.engine import (
    Buffer,
    Phase,
    RoundEngine,
    RoundKind,
    RoundState,
    Select,
    effects,
    events,
)
from fedloom.server.engine.session_events import MaskedEvent
from fedloom.server.engine.steps import NO_QUORUM, OUT_OF_REACH
from fedloom.server.ledger import AcceptedUpdate
from fedloom.server.ledger.member_summary import LATE, LOST
from fedloom.server.ledger.replicas.gate_queues import AcceptedHere
from fedloom.server.ledger.rows import AcceptedRow, RoundRow, UpdateRow
from fedloom.server.metrics import meters
from fedloom.server.metrics.log_buffer import about
from fedloom.server.planning import limits
from fedloom.server.planning.admission import check_update
from fedloom.server.planning.fair_share import Demand
from fedloom.server.planning.privacy_budget import Bar
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.planning.sites.door import check_sum, sum_bounds
from fedloom.server.rounds import engines, progress
from fedloom.server.rounds import status as round_status
from fedloom.server.rounds.clients import ConnectedClient, Listener
from fedloom.server.rounds.commit import Outcome, commit
from fedloom.server.rounds.context import RoundsContext
from fedloom.server.rounds.effect_queue import EffectQueue
from fedloom.server.rounds.member_records import Record
from fedloom.server.rounds.messages.replies import Replies
from fedloom.server.rounds.round_sum import RoundSum
from fedloom.server.rounds.storage_retry import retry_storage, store_or_log
from fedloom.server.rounds.task_table import TaskTable
from fedloom.server.rounds.trace import RoundTrace
from fedloom.server.rounds.update_gate import UpdateGate, try_again
from fedloom.strategies import TooFewUpdatesError

log = logging.getLogger(__name__)


class RoundDriver:
    """Drives one round, or the buffers of a run one after another.

    Args:
        tasks: the plan of the round, and of earlier rounds that clients may still work on.
        context: storage, connected clients, and what observes rounds.
        owner: the run, registered with the fleet.
        select: draws the cohort and its replacements.
        ended: called whenever a round is over.
        results: collects the updates of a round.

    Attributes:
        engine: the state machine.
        tasks: that clients may work on.
        trace: the spans of the round.
    """

    engine: RoundEngine

    def __init__(
        self,
        tasks: TaskTable,
        context: RoundsContext,
        owner: Listener,
        *,
        select: Select,
        ended: Callable[[Outcome], None],
        results: Callable[[RoundPlan], RoundSum | Replies],
    ) -> None:
        self.tasks = tasks
        self.trace = RoundTrace(context.tracer)
        self._context = context
        self._owner = owner
        self._select = self._watched(select)
        self._drawn_from: set[str] = set()
        self._ended = ended
        self._buffered = engines.buffer_settings(self.plan) is not None
        self._status = round_status.StatusPublisher(context.live, self.plan.run)
        self._results = results
        self._sum = results(self.plan)
        self._timer: asyncio.TimerHandle | None = None
        self._effects = EffectQueue(self._perform, self._fail, self._finish, self._log_name)
        self._gate = UpdateGate()
        # Of each client: accepts whose updates may be in the ledger while the engine lacks them.
        self._accepting: Counter[str] = Counter()
        self._storing = BackgroundTasks()
        self._asking = BackgroundTasks()
        self._stored = False  # the ledger has a row of the open round
        self._kept = False  # records of the members were stored
        self._opened_at: float | None = None  # monotonic; None if an earlier process opened it
        self._reach: tuple[Any, dict[tuple[int, bool], bool]] = (None, {})
        self._looking_at = self._looked_at = math.nan  # deadlines: see `_time`

    @property
    def plan(self) -> RoundPlan:
        """The plan of the open round, or of the last committed one."""
        return self.tasks.plan

    # ---- life --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin to select from the available clients."""
        named = bool(self.plan.messages)
        self.engine = engines.begin(
            self.plan, select=self._select, now=self._now(), available=self._idle(),
            connected=self._context.fleet.connected() if named else (),
            devices_of=self._context.fleet.devices_of,
        )  # fmt: skip
        self._start()

    async def restore(self, row: RoundRow | None, *, paused: bool = False) -> None:
        """Continue a round that was open when the server stopped.

        Args:
            row: of the round; None between two buffers, when the run opens the next one.
            paused: whether the run is paused.
        """
        stored = await engines.read(self.plan, row, self.tasks.first, self._context)
        self.engine = engines.restore(
            self.plan, stored, select=self._select, now=self._now(),
            wall=self._context.ledger.wall(), available=self._idle(),
            devices_of=self._context.fleet.devices_of, paused=paused,
        )  # fmt: skip
        self._stored = row is not None
        if self.engine.state is RoundState.REPORTING:
            self._gate.open()
        if row is not None:
            await self._sum.restore(stored.accepted)
        self._start()

    def _start(self) -> None:
        self.engine.set_aside = self._set_aside
        self.engine.elsewhere = self._elsewhere
        self.trace.begin(self.plan)
        self._effects.start()
        self.feed(events.Wake())

    def next(self, plan: RoundPlan, select: Select) -> None:
        """Open the next buffer."""
        config = cast(Buffer, self.engine).config
        self._select, self._stored = self._watched(select), False
        self._sum = self._results(plan)
        self.trace.begin(plan)
        self.tasks.open(plan)
        self.feed(events.NextBuffer(plan.number, select, last=engines.is_last(plan)))
        for stale in self.tasks.drop_before(plan.number - config.max_staleness):
            self._context.spool.release_round(*stale.key)

    def disband(self, reason: str) -> None:
        """End all work between two buffers: the run opens no further one."""
        self.feed(events.Disband(reason))
        if records := self._context.records.take_ended(self.plan.run):
            self._store_records(records, over=True)
        self._release()
        self._effects.cancel()

    async def stop(self) -> None:
        """Stop driving the round; the next start continues it."""
        self._gate.stop()
        if self._timer is not None:
            self._timer.cancel()
        self._asking.cancel()
        await self._effects.stop()
        await self._storing.settled()
        await self._sum.stop()
        self.trace.end("the server stops")

    @property
    def _evaluating(self) -> bool:
        return self.plan.kind is RoundKind.EVALUATE

    def _about(self, client: str = "") -> dict[str, Any]:
        return about(client, *self.plan.key)

    # ---- events ------------------------------------------------------------------------------

    def feed(self, event: events.BufferEvent | MaskedEvent) -> None:
        """Pass an event to the engine, and queue its effects.

        Raises:
            OperatorRefused: the operator's command does not fit the state.
        """
        given = 0
        for effect in self.engine.handle(cast(events.RoundEvent, event), self._time()):
            if isinstance(effect, effects.Withdraw):
                self._withdraw(effect)
            elif isinstance(effect, effects.Offer) and not self._occupy(effect):
                asyncio.get_running_loop().call_soon(self.feed, events.Left(effect.client))
            else:
                given += isinstance(effect, effects.Offer) and not effect.again
                self._effects.put(effect)
        if given:
            self._context.turns.take(self.plan.run, given)
        self._context.turns.changed()
        self._set_timer()
        self._status.publish(self.engine, self._brief)

    def _occupy(self, offer: effects.Offer) -> bool:
        key = self.plan_of(offer.origin).key
        return self._context.fleet.occupy(offer.client, key, self._owner)

    def wake(self) -> None:
        """Take clients if the round waits for them and may."""
        if self._wants_more() or self.engine.state is RoundState.SELECTING:
            self.feed(events.Wake())

    def _set_aside(self) -> int:
        """Candidates that the round leaves to runs whose turn comes first, or to a later draw."""
        context, engine = self._context, self.engine
        candidates = engine.candidates
        aside = context.turns.set_aside(self.plan.run, len(candidates))
        undrawn = context.fleet.undrawn(candidates.__contains__)
        selects = engine.state is RoundState.SELECTING
        if selects and len(candidates) - undrawn - aside >= engine.needed:
            return aside  # the others are enough, so this is the moment to draw from all
        return undrawn + aside

    def demand(self) -> Demand:
        """What the round wants of the idle clients."""
        engine, wanted = self.engine, self._wants_more()
        if wanted and self._are_reachable(wanted, beside=True):
            return Demand(waiting=True, clients=wanted)
        if engine.clock.paused or engine.state is RoundState.SELECTING:
            return Demand()
        if engines.is_last(self.plan) or not self._are_reachable(engine.needed):
            return Demand()
        # The next round opens once this one is stored: until then the run waits already.
        ends = engine.state is not RoundState.REPORTING
        if not ends and not engine.cohort.at_work:  # it waits for its deadline, not for updates
            return Demand()
        return Demand(waiting=ends, clients=engine.needed_next)

    def _wants_more(self) -> int:
        """Idle clients without which the round does not open, or does not fill a free place."""
        engine = self.engine
        if engine.clock.paused:
            return 0
        if engine.state is RoundState.SELECTING:
            return engine.needed
        return int(engine.state is RoundState.REPORTING and engine.free > 0)

    def _are_reachable(self, count: int, *, beside: bool = False) -> bool:
        """Whether clients that it may draw are connected, with a task or without, for so many.

        With `beside`, clients that it has asked already are left out. All runs ask this after each
        event, and each count takes 1 µs a client: it is kept until something that it is made of
        changes.
        """
        context, asked = self._context, self.engine.could_ask
        revisions = (context.fleet.revision, context.cool_offs.revision, self._bar)
        key = (*revisions, self.plan.number, beside and len(self.engine.cohort))
        if self._reach[0] != key:
            self._reach = key, {}
        known = self._reach[1]
        if (count, beside) not in known:
            reachable = context.fleet.reachable()
            found = (c for c in reachable if self._may_draw(c) and (not beside or asked(c)))
            if self.plan.spec.sites:
                known[count, beside] = sum(map(context.fleet.devices_of, found)) >= count
            else:
                enough = count <= len(context.fleet)
                known[count, beside] = enough and sum(1 for _ in islice(found, count)) == count
        return known[count, beside]

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self.engine.wake_at
        if at is not None and not self._looks_at(at):
            self._timer = asyncio.get_running_loop().call_at(at, self.feed, events.Wake())

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _time(self) -> float:
        """The engine's time: with gates it stops before a deadline until their accepts are counted.

        What a gate accepted before the deadline may be told after it.
        """
        now, clock = self._now(), self.engine.clock
        deadline, waits = clock.deadline, self.engine.state is RoundState.REPORTING
        if now < deadline or not waits or clock.paused or self._looked_at == deadline:
            return now
        if self._context.sealed is None:  # there are no gates
            return now
        if not self._looks_at(deadline):
            self._looking_at = deadline
            self._asking.start(self._look_at_rows(self.plan.key, deadline))
        return math.nextafter(deadline, -math.inf)

    def _looks_at(self, at: float) -> bool:
        return self._looking_at == self.engine.clock.deadline <= at

    async def _look_at_rows(self, key: tuple[str, int], deadline: float) -> None:
        """Count what gates accepted before the deadline; then it has passed."""
        who, extra = self._log_name()
        look = partial(self._context.in_ledger, self._context.ledger.accepted, *key)
        try:
            for row in await retry_storage(look, who, extra):
                self.accepted(row, key[1])
        except FedloomError:  # of a server that has lost its turn
            return
        except Exception:  # the round must end all the same
            log.exception("%s: what gates have accepted cannot be read", who, extra=extra)
        self._looked_at, self._looking_at = deadline, math.nan
        self.feed(events.Wake())

    def plan_of(self, number: int | None) -> RoundPlan:
        """The plan of a round that clients may work on; None for the open round."""
        return self.tasks.plan_of(number)

    def key_of(self, client: str) -> tuple[str, int]:
        """Run and round of the task that a member works on."""
        origin = self.engine.origin(client)
        return self.plan.key if origin is None else (self.plan.run, origin)

    def speaks_of(self, number: int) -> bool:
        """Whether a message about this round is for this driver."""
        return number in self.tasks

    def claims(self, client: str) -> bool:
        """Whether an update of this client is expected."""
        return self.engine.waits_for(client)

    def lacks(self, client: str, number: int) -> bool:
        """Whether it is certain that the ledger has no update of a member for its task."""
        elsewhere = self._context.sealed is not None  # gates accept, too
        if elsewhere or client in self._accepting or not self.claims(client):
            return False
        return self.key_of(client) == (self.plan.run, number)

    def client_replied(self, client: str, reply: fleet_pb2.OfferReply) -> None:
        """A client accepted or declined its offer."""
        records, key = self._context.records, self.key_of(client)
        reason = printable(reply.reason)
        self.trace.answered(client, "" if reply.accepted else reason)
        if reply.accepted:
            records.took(key, client)
            self.feed(events.OfferAccepted(client))
        else:
            records.ended(key, client, reason)
            self._note(client, Phase.DECLINED, reason)
            self._context.fleet.rest(client, reply.again_s)
            self._context.meters.declined.inc()
            self.feed(events.OfferDeclined(client, reason))
            self._context.fleet.free(client, self.key_of(client))

    def client_failed(self, client: str, reason: str, *, by_operator: bool = False) -> None:
        """A client failed, or an operator has taken its task."""
        if self.claims(client):  # logged once, however often the client reports it
            number, about = self.plan.number, self._about(client)
            log.warning("%s gave up on round %d: %s", client, number, reason, extra=about)
            self._context.meters.failed.inc()
        self._note(client, Phase.FAILED, reason, fails=not by_operator)
        self._context.records.ended(self.key_of(client), client, reason)
        self.feed(events.ClientFailed(client, reason))
        self._context.fleet.free(client, self.key_of(client))

    def client_progressed(self, session: ConnectedClient, message: fleet_pb2.Progress) -> None:
        """A member reports progress."""
        spec = self.plan.spec
        private = spec.build_privacy() is not None or spec.masking is not None
        if reported := progress.read(message, private=private):
            session.progress = reported
            self._context.records.training(self.key_of(session.client), session.client)
            self._context.live.changed("round", self.plan.run, self._brief)

    def let_go(self, client: str, reason: str) -> None:
        """Stop waiting for a member and withdraw its task."""
        self._send_withdrawal(client, self.key_of(client), reason)
        self.client_failed(client, reason, by_operator=True)

    def client_available(self, client: str) -> None:
        """A client is connected and idle."""
        if self._may_draw(client) or self.claims(client):  # a member stays one
            self.feed(events.Attended(client))

    def _may_draw(self, client: str) -> bool:
        if self._context.fleet.study_of(client) != self.plan.spec.study:
            return False
        devices, spec = self._context.fleet.devices_of(client), self.plan.spec
        if bool(devices) != spec.sites or (spec.sites and devices < spec.least_devices):
            return False
        if client in self.plan.participations.excluded or client in self._bar:
            return False
        if self._context.fleet.checks_in(client) and not self.plan.spec.draws_check_ins:
            return False
        return not self._context.cools_off(client, private=bool(self.plan.spec.privacy))

    @property
    def _bar(self) -> Bar:
        return self._context.bars.get(self.plan.run, Bar())

    def _idle(self) -> list[str]:
        return [client for client in self._context.fleet.available() if self._may_draw(client)]

    def rebar(self, before: Bar) -> None:
        """Follow a change of the clients that the run may not draw.

        Members of the open round stay in it.
        """
        for client in [each for each in self.engine.candidates if each in self._bar]:
            self.feed(events.Left(client))
        for client in self._context.fleet.available():
            if client in before:
                self.client_available(client)

    def _elsewhere(self) -> int:
        """Updates of clients that are neither members nor idle, but may be before the deadline."""
        engine = self.engine
        connected = self._context.fleet.connected(by=engine.clock.deadline)
        outside = (c for c in connected if c not in engine.cohort and c not in engine.candidates)
        drawn = filter(self._may_draw, outside)
        return sum(self._context.fleet.devices_of(client) or 1 for client in drawn)

    def _watched(self, select: Select) -> Select:
        """Note the candidates of a secret draw: all of them are the run's population."""
        settings = self.plan.spec.build_privacy()
        if settings is None or settings.sampling == "none":
            return select

        def watched(candidates: Sequence[str], count: int) -> Sequence[str]:
            self._drawn_from.update(candidates)
            return select(candidates, count)

        return watched

    def client_left(self, client: str) -> None:
        """A client's stream ended, or another run took it."""
        self.feed(events.Left(client))

    def _note(self, client: str, phase: Phase, reason: str, *, fails: bool = False) -> None:
        """Store a member's final phase, after the effects that are queued already."""
        if self.claims(client):
            key = self.key_of(client)
            context, why = self._context, reason[:500]
            failures = (
                context.cool_offs.failed(client, self._about(client), evaluating=self._evaluating)
                if fails
                else None
            )
            note = partial(context.ledger.set_phase, *key, client, phase.value, why)
            self._storing.start(context.in_ledger(note, failures=failures))

    # ---- uploads -----------------------------------------------------------------------------

    def admit(self, header: fleet_pb2.UpdateHeader) -> list[PlannedPart]:
        """Admit an upload by its header.

        Raises:
            Refusal: not in the cohort, closed, another model, or a bad header.
        """
        self.check_open(header.client, header.task.round)
        plan = self.plan_of(header.task.round)
        if plan.spec.sites:
            registered = self._context.fleet.devices_of(header.client)  # possibly fewer by now
            places = self.engine.cohort.places_of(header.client)
            return check_sum(header, plan, min(places, registered))
        return check_update(header, plan)

    def checker(self, header: fleet_pb2.UpdateHeader, planned: list[PlannedPart]) -> Checker:
        """The checker of an admitted body, at its start."""
        plan = self.plan_of(header.task.round)
        if plan.spec.sites:
            bounds, slack = sum_bounds(plan)
            empty = limits.empty_sum(plan.spec, plan.manifest)
            return SiteSumChecker(header, planned, bounds, plan.manifest, empty, slack=slack)
        return BodyChecker(header, planned, plan.limits, plan.manifest)

    async def masking_message(self, client: str, message: fleet_pb2.MaskingMessage) -> None:  # noqa: ARG002 - masked rounds take them
        """A member sent a message of its masking session.

        Raises:
            Refusal: MALFORMED, the round is not masked.
        """
        raise Refusal(Code.MALFORMED, f"Expected no masking in {self.plan.run}, got a message.")

    def file_for(self, client: str, digest: str) -> Path | None:  # noqa: ARG002 - masked rounds have some
        """A file other than a model that this member may download; None if there is none."""
        return None

    def sends(self, digest: str) -> bool:
        """Whether a task offers the file of this digest: a model or a difference."""
        return self.tasks.names(digest)

    def record_of(self, client: str, digest: str) -> tuple[Record, bool] | None:
        """The record of a member that is sent a file of its task; None if it is not one of them.

        Returns:
            The record that counts the bytes, and whether the member has not been sent its task's
            files twice already.
        """
        if not self.claims(client):
            return None
        key = self.key_of(client)
        files = self.tasks.files(self.plan_of(key[1]), client)
        if digest not in files:
            return None
        record = self._context.records.find(key, client) or Record()
        return record, record.bytes_down < 2 * sum(files.values())

    def check_open(self, client: str, number: int) -> None:
        """Check that an update of this client for this round would be accepted, now or soon.

        Raises:
            Refusal: NOT_IN_COHORT, ROUND_CLOSED or STALE_ROUND.
        """
        code = self.engine.refusal_for(client, number)
        if code is not None:
            raise Refusal(
                code,
                f"Expected a member that works on round {number}, got {client!r}; "
                f"round {self.plan.number} is {self.engine.state.value}.",
            )

    def refused(self, client: str, refusal: Refusal, number: int) -> None:
        """A client's update for a round was refused."""
        mine = self.claims(client) and self.key_of(client) == (self.plan.run, number)
        if refusal.code.blames_update and mine:
            why = f"{refusal.code}: {refusal}"
            self._note(client, Phase.REFUSED, why, fails=True)
            self._context.records.ended((self.plan.run, number), client)
            self.feed(events.UpdateRefused(client, why))
            self._context.fleet.free(client, self.key_of(client))

    async def accept(self, update: AcceptedUpdate) -> bool:
        """Accept an update whose bytes are synced. False if it was accepted before.

        Raises:
            Refusal: the round has closed, another update was accepted, or, with buffers, it is too
                stale or no buffer opened in time.
        """
        crossing("accept.before")
        self._accepting[update.client] += 1
        try:
            update, first = await self._store(update)
        except DBAPIError:
            self._asking.start(self._look_again(update, self.plan.number))
            raise
        except BaseException:
            self._settled(update.client)
            raise
        crossing("accept.after")
        if first:
            self._context.meters.accepted.inc()
            if update.counted == self.plan.number:
                self._sum.add(update.client, update.file, update.staleness)
            self.accepted(update, update.counted)
        self._settled(update.client)
        return first

    def _settled(self, client: str) -> None:
        """Note that it is known whether an update of a client was accepted."""
        self._accepting[client] -= 1
        if not self._accepting[client]:
            del self._accepting[client]

    def accepted(
        self, update: AcceptedUpdate | AcceptedHere | AcceptedRow | UpdateRow, counted: int
    ) -> None:
        """Count an update whose row is in the ledger, once; `counted` is the round of its sum."""
        client, key = update.client, (self.plan.run, update.round)
        if not engines.lacks(self.engine, self.plan, client, counted):
            return
        self._context.records.accepted(key, client)
        self._context.cool_offs.succeeded(client, evaluating=self._evaluating)
        self.feed(events.UpdateAccepted(client, update.devices or 1))
        self._context.fleet.free(client, key)

    async def _look_again(self, update: AcceptedUpdate, counted: int) -> None:
        """Count an update whose commit was not answered, if it was committed.

        Its client repeats it. That is then a repeat, and perhaps at a gate.
        """
        who, extra = self._log_name()
        ledger, key = self._context.ledger, (update.run, update.round, update.client)
        look = partial(self._context.in_ledger, ledger.find_settled, *key, counted)
        try:
            found = await retry_storage(look, who, extra)
        except FedloomError:  # of a server that has lost its turn
            return
        finally:
            self._settled(update.client)
        if found is None or not found.counted == counted == self.plan.number:
            return
        if self.engine.cohort.is_unfinished(update.client):
            self._sum.add(found.client, found.file, found.staleness or 0)
            self.accepted(found, counted)

    async def _store(self, update: AcceptedUpdate) -> tuple[AcceptedUpdate, bool]:
        """Store an update in its round, or in the open or next buffer."""
        while True:
            if self._buffered:
                await self._gate.wait()
                self.check_open(update.client, update.round)
                number = self.plan.number
                update = replace(update, counts_in=number, staleness=number - update.round)
            try:
                first = await self._context.accept((update, self.plan.capacity))
            except Refusal as refusal:
                if refusal.code is not Code.ROUND_CLOSED or not self._buffered:
                    raise
                if self._gate.is_open:  # not closing: a pause keeps a full buffer open
                    raise try_again() from None
            else:
                return update, first

    # ---- effects -----------------------------------------------------------------------------

    def _log_name(self) -> tuple[str, dict[str, Any]]:
        return f"round {self.plan.number} of {self.plan.run}", self._about()

    async def _perform(self, effect: effects.RoundEffect) -> Outcome | None:
        context = self._context
        match effect:
            case effects.Opened(cohort):
                await self._open(cohort)
            case effects.Recruited(client):
                places = self._places([client]).get(client)
                await context.in_ledger(context.ledger.recruit, *self.plan.key, client, places)
            case effects.Offer() if self._is_current(effect):
                await self._send(effect)
            case effects.Close():
                self._gate.close()
                with meters.timed(context.meters.commit_s), self.trace.commit():
                    return await self._close()
            case effects.Abandon(reason, fault):
                lacking = reason.startswith((NO_QUORUM, OUT_OF_REACH))
                cause = meters.QUORUM if lacking else meters.STOPPED
                return await self._abandon(reason, fault=fault, cause=cause)
        return None

    async def _open(self, cohort: Sequence[str]) -> None:
        now, plan = self._context.ledger.wall(), self.plan
        row = plan.row(now, self.deadline_at() or now)
        ledger, drawn_from = self._context.ledger, self._drawn_from
        await self._sum.begin()
        places = self._places(cohort)
        await self._context.in_ledger(ledger.open_round, row, cohort, drawn_from, places)
        self._stored = True
        self._opened_at = time.monotonic()
        crossing("round.opened")
        log.info(
            "round %d of %s opened for %d", plan.number, plan.run, len(cohort), extra=self._about()
        )
        self._gate.open()
        self._warn_of_more()

    def _places(self, members: Iterable[str]) -> dict[str, int]:
        """Devices that members may send, where they are sites."""
        if not self.plan.spec.sites:
            return {}
        return {client: self.engine.cohort.places_of(client) for client in members}

    def _warn_of_more(self) -> None:
        """Warn if more clients attend than the divisor of the mean is made for."""
        settings, engine = self.plan.spec.build_privacy(), self.engine
        attending = len(engine.cohort) + len(engine.candidates)
        expected = (settings and settings.population) or attending
        if engine.config.by_coins and attending > 1.25 * expected:
            log.warning(
                "%d clients attend round %d, %.1f times privacy.population = %d: the claim holds, "
                "but the steps of the model are that much longer. Submit a run with a larger "
                "population.",
                attending, self.plan.number, attending / expected, expected, extra=self._about(),
            )  # fmt: skip

    def _is_current(self, offer: effects.Offer) -> bool:
        """Whether an offer that was queued is still to be sent."""
        return self.claims(offer.client) and self.engine.origin(offer.client) == offer.origin

    async def _send(self, offer: effects.Offer) -> None:
        context, key = self._context, self.key_of(offer.client)
        message = await self._offer(offer)
        context.records.offered(key, offer.client, again=offer.again)
        self.trace.offered(offer.client, message)
        context.fleet.send(offer.client, message)
        context.meters.offers.inc()
        crossing("offer.sent")

    def _withdraw(self, effect: effects.Withdraw) -> None:
        plan = self.plan_of(effect.origin)
        if not self._kept:
            lost = self.engine.cohort.phases.get(effect.client) is Phase.LOST
            self._context.records.withdrawn(plan.key, effect.client, LOST if lost else LATE)
        self._send_withdrawal(effect.client, plan.key, effect.reason)
        self._context.fleet.free(effect.client, plan.key)

    def _send_withdrawal(self, client: str, key: tuple[str, int], reason: str) -> None:
        task = fleet_pb2.TaskKey(run=key[0], round=key[1])
        message = fleet_pb2.ServerMessage(withdraw=fleet_pb2.Withdraw(task=task, reason=reason))
        self._context.fleet.send(client, message)

    async def _close(self) -> Outcome:
        config = self.engine.config
        goal = len(self.engine.cohort) if config.by_coins else config.goal
        outcome, updates = await commit(self.plan, self._sum, self._context, goal)
        assert outcome.model is not None
        for update in updates:  # a gate may have accepted it without a word so far
            self.accepted(update, self.plan.number)
        self.feed(events.Committed())
        self._keep_records()
        self._clean(update.file for update in updates)
        done = "committed" if self.plan.upstream is None else "has a sum for the parent of"
        log.info(
            "round %d of %s %s %s from %d updates",
            self.plan.number, self.plan.run, done, outcome.model[:12], len(updates),
            extra=self._about(),
        )  # fmt: skip
        return outcome

    async def _fail(self, error: Exception) -> Outcome:
        known = isinstance(error, FedloomError | TooFewUpdatesError)
        reason = f"{error}" if known else f"{type(error).__name__}: {error}"
        is_open = self.engine.state.is_open
        self.feed(events.Abort(reason) if is_open else events.CommitFailed(reason))
        # The next round may have other clients; any other error would occur again.
        fault = not isinstance(error, TooFewUpdatesError)
        cause = meters.FAULT if fault else meters.TOO_FEW
        return await self._abandon(reason, fault=fault, cause=cause)

    async def _abandon(self, reason: str, *, fault: bool, cause: str) -> Outcome:
        context = self._context
        await self._sum.abandon()
        if self._stored:
            await context.in_ledger(context.ledger.abandon_round, *self.plan.key, reason, cause)
        self._keep_records()
        self._clean()
        about, run = self._about(), self.plan.run
        log.warning("round %d of %s abandoned: %s", self.plan.number, run, reason, extra=about)
        return Outcome(None, None, reason, fault, cause=cause)

    def _keep_records(self) -> None:
        """Store the records of members that ended; the round does not wait for it."""
        records, number = self._context.records, self.plan.number
        self._kept = over = not self.engine.continues
        mine = records.take(self.plan.key) if over else {}
        kept = {number: mine, **records.take_ended(self.plan.run)}
        if self._stored:
            self._store_records(kept, over=over)

    def _store_records(self, records: Mapping[int, Mapping[str, Record]], *, over: bool) -> None:
        ledger, run = self._context.ledger, self.plan.run
        storing = self._context.in_ledger(ledger.keep_records, run, records, over=over)
        self._storing.start(store_or_log(storing, "the record of a round's members"))

    def _clean(self, files: Iterable[str] = ()) -> None:
        """Delete these files of a round that is over; all of them if no work continues."""
        if self.engine.continues:
            self._sum.clean(files)
        else:
            self._sum.clean()
            self._release()

    def _release(self) -> None:
        """No client works for this driver any more: delete the files that are left."""
        self._gate.open()  # uploads that wait are refused
        for plan in self.tasks.plans:
            self._context.spool.release_round(*plan.key)
        if self._timer is not None:
            self._timer.cancel()

    def _finish(self, outcome: Outcome) -> bool:
        """The round is over; returns whether this driver has, or may get, another one."""
        if self._timer is not None:
            self._timer.cancel()
        self._count(outcome)
        self._ended(outcome)
        return self.engine.continues or not self.engine.state.is_over

    def _count(self, outcome: Outcome) -> None:
        ended = meters.ABANDONED if outcome.model is None else meters.COMMITTED
        self._context.meters.rounds.labels(self.plan.kind.value, ended, outcome.cause).inc()
        self.trace.end(outcome.reason, outcome=ended, cause=outcome.cause)
        if self._opened_at is not None:
            self._context.meters.round_s.observe(time.monotonic() - self._opened_at)
            self._opened_at = None

    # ---- views -------------------------------------------------------------------------------

    def deadline_at(self) -> float | None:
        """Seconds since the epoch of the deadline, once the round is open."""
        left_s = self.engine.clock.deadline_left_s(self._now())
        return None if left_s is None else self._context.ledger.wall() + left_s

    def status(self) -> dict[str, Any]:
        """The live status of the round."""
        reported = round_status.reported_progress(self.engine, self._context.fleet, self.key_of)
        return round_status.status(self.plan, self.engine, reported, self._now())

    def _brief(self) -> dict[str, Any]:
        return round_status.brief(self.status())

    # ---- messages ----------------------------------------------------------------------------

    async def _offer(self, offer: effects.Offer) -> fleet_pb2.ServerMessage:
        plan, client = self.plan_of(offer.origin), offer.client
        spec, context, memory = plan.spec, self._context, None
        if spec.remembers or spec.sites:
            counted = partial(context.ledger.last_counted, with_tensors=not spec.sites)
            memory = await context.in_ledger(counted, plan.run, client)
        own = plan.messages.get(client)
        task = for_client(self.tasks.message(plan), plan.name_of(client), spec.seed, memory, own)
        left_s = self.engine.clock.deadline_left_s(self._now()) or 0.0
        task.deadline_s = math.inf if self._buffered else left_s  # with buffers it may be stale
        if spec.sites:
            task.site.spec = json.dumps(spec.as_dict())
            task.site.devices = self.engine.cohort.places_of(client)
            task.site.path = plan.place
        return context.offer(client, task)
