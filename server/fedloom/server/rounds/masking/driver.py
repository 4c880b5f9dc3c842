"""Drives a masked round: its members are ready, exchange messages in sessions, and send bodies.

As `RoundDriver`, with these durable steps between the offers and the commit:

    sessions stored → roster sent → shares stored → U2 stored → shares sent → bodies stored
    → U3 stored → survivors sent → signatures stored → revealing stored → signatures sent
    → reveals stored → U4 stored → sum on disk → session done

Invariants: a step is sent after the state that it belongs to is stored. A body is accepted only
while the ledger's row of its session is MASKING. Bodies are deleted when their session is over.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import Code, FedloomError, IntegrityError, Refusal
from fedloom.protocol.masking import Advert, CertifiedKey, ChainVerifier, terms_of
from fedloom.protocol.updates.body import Checker
from fedloom.protocol.updates.header import PlannedPart
from fedloom.protocol.updates.masked_body import MaskedBodyChecker
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import (
    MaskedRound,
    MaskingSession,
    Phase,
    RoundState,
    Select,
    SessionSnapshot,
    SessionState,
    effects,
    events,
    session_events,
)
from fedloom.server.engine.clock import AT_ONCE
from fedloom.server.ledger import AcceptedUpdate
from fedloom.server.ledger.masking.blames import CAUSES, IMPLAUSIBLE
from fedloom.server.ledger.masking.bodies import MaskedUpload
from fedloom.server.ledger.masking.sessions import READY, digest_of
from fedloom.server.ledger.replicas.gate_queues import AcceptedHere
from fedloom.server.ledger.rows import AcceptedRow, RoundRow, UpdateRow
from fedloom.server.metrics.masking import SessionWatch
from fedloom.server.planning.admission import check_masked, check_masked_update
from fedloom.server.planning.fair_share import Demand
from fedloom.server.planning.masked_form import MaskedForm
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.rounds import engines
from fedloom.server.rounds.clients import ConnectedClient, Listener
from fedloom.server.rounds.commit import Outcome
from fedloom.server.rounds.context import RoundsContext
from fedloom.server.rounds.masking.adverts import ReadyMembers
from fedloom.server.rounds.masking.exchange import Exchange
from fedloom.server.rounds.masking.masked_sum import MaskedSum
from fedloom.server.rounds.masking.sessions import OpenSession, open_sessions
from fedloom.server.rounds.masking.steps import Step, Steps
from fedloom.server.rounds.masking.unmask import NoSum, unmask
from fedloom.server.rounds.member_records import Record
from fedloom.server.rounds.messages.replies import Replies
from fedloom.server.rounds.round_driver import RoundDriver
from fedloom.server.rounds.round_sum import RoundSum
from fedloom.server.rounds.storage_retry import retry_storage
from fedloom.server.rounds.task_table import TaskTable
from fedloom.server.storage.objects.parts import num_parts

log = logging.getLogger(__name__)

CLOSING_S = 10.0
"""Longest wait for members that give up a session, before its round is abandoned."""


class MaskedRoundDriver(RoundDriver):
    """Drives one masked round; the arguments are those of a `RoundDriver`."""

    engine: MaskedRound

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
        super().__init__(tasks, context, owner, select=select, ended=ended, results=results)
        task = tasks.message(self.plan)
        self._attempt = task.masking.attempt
        self._terms = terms_of(task, context.federation)
        self._ready = ReadyMembers(self._terms, self._identify)
        self._steps = Steps(context, task.key, self._attempt)
        self._exchange = Exchange(context)
        self._open_sessions: dict[int, OpenSession] = {}
        self._told: dict[str, ConnectedClient | None] = {}
        self._closings = asyncio.Event()
        self._watch = SessionWatch(context.meters, context.tracer)
        self._proven: set[int] = set()  # sessions whose end is proven
        self._received: set[str] = set()  # members whose bodies this server has accepted
        self._counted_at, self._is_counting = math.nan, False  # see `_time`

    @property
    def _masked_sum(self) -> MaskedSum:
        return cast(MaskedSum, self._sum)

    def _identify(self, advert: Advert) -> CertifiedKey:
        context, now = self._context, datetime.now(UTC)
        return ChainVerifier(context.root_pem, context.federation, now)(advert)

    # ---- life --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin to select from the available clients."""
        self.engine = engines.begin_masked(
            self.plan, select=self._select, divide=self._ready.divide, now=self._now(),
            available=self._idle(),
        )  # fmt: skip
        self._start()

    async def restore(self, row: RoundRow | None, *, paused: bool = False) -> None:
        """Continue a round that was open when the server stopped."""
        context, key = self._context, self.plan.key
        stored = await engines.read(self.plan, row, self.tasks.first, context)
        sessions = await context.in_ledger(context.ledger.sessions, *key)
        self.engine = engines.restore_masked(
            self.plan, stored, sessions, select=self._select, divide=self._ready.divide,
            now=self._now(), wall=self._context.ledger.wall(), available=self._idle(),
            paused=paused,
        )  # fmt: skip
        self._stored = True
        if self.engine.state is RoundState.REPORTING:
            self._gate.open()
        await self._restore_sessions(sessions)
        self._start()

    async def stop(self) -> None:
        """Stop driving the round; the next start continues it."""
        await super().stop()
        self._watch.end("the server stops")

    def feed(self, event: Any) -> None:
        """Pass an event to the engine, and tell those who watch what it did to the sessions.

        Raises:
            OperatorRefused: the operator's command does not fit the state.
        """
        super().feed(event)
        if self._watch.saw(self.engine.sessions, self._now(), self.trace.parent):
            self._context.live.changed("run", self.plan.run)

    def _time(self) -> float:
        """As a `RoundDriver`'s; of a session that takes bodies, gates' are counted before its time.

        What a gate accepted before a deadline may be told after it.
        """
        now, gathers = super()._time(), SessionState.MASKING
        if self._context.sealed is None:  # there are no gates
            return now
        at = min((s.due_at for s in self.engine.sessions if s.state is gathers), default=math.inf)
        if now < at or at in (AT_ONCE, self._counted_at):
            return now
        if not self._is_counting:
            self._is_counting = True
            self._asking.start(self._count_bodies(at))
        return math.nextafter(at, -math.inf)

    def _looks_at(self, at: float) -> bool:
        return self._is_counting or super()._looks_at(at)

    async def _count_bodies(self, due_at: float) -> None:
        """Count the bodies that are accepted; then the time of their sessions has come."""
        who, extra = self._log_name()
        context, key = self._context, self.plan.key
        try:
            for number in self._open_sessions:
                look = partial(context.in_ledger, context.ledger.body_digests, (*key, number))
                for client in await retry_storage(look, who, extra):
                    self.feed(session_events.BodyStored(client))
        except FedloomError:  # of a server that has lost its turn
            return
        except Exception:  # the round must end all the same
            log.exception("%s: what gates have accepted cannot be read", who, extra=extra)
        self._counted_at, self._is_counting = due_at, False
        self.feed(events.Wake())

    def _finish(self, outcome: Outcome) -> bool:
        self._watch.end(outcome.reason and "abandoned")
        return super()._finish(outcome)

    async def _restore_sessions(self, sessions: Sequence[SessionSnapshot]) -> None:
        """Read the rosters of sessions that are not done, and delete bodies that do not count."""
        context, rosters = self._context, []
        for number, session in enumerate(sessions):
            members: Collection[str] = ()
            if session.state is not SessionState.DONE:
                at = (*self.plan.key, number)
                self._ready.restore(
                    await context.in_ledger(context.ledger.session_messages, at, READY)
                )
                members = session.members
            rosters.append((session.width_class, self._ready.drawn(members)))
        self._open_sessions = open_sessions(self.plan.key, self._terms.pid, rosters)
        for number, session in enumerate(sessions):
            counts = () if session.state.is_over else session.masked
            if number in self._open_sessions:
                self._open_sessions[number].state = session.state
            if session.state is SessionState.SHARING:
                self._write_list(self._open_sessions[number])
            elif session.state is not SessionState.MASKING:
                self._drop_bodies(set(session.members).difference(counts))

    def demand(self) -> Demand:
        """What the round wants of the idle clients: nothing while its members mask."""
        return Demand() if self.engine.state is RoundState.MASKING else super().demand()

    # ---- clients -----------------------------------------------------------------------------

    def client_available(self, client: str) -> None:
        """A client is connected and idle; a member of a session continues it."""
        fleet = self._context.fleet
        if client in self._told and self._told[client] is fleet.get(client):
            return  # it was told on this connection that its session is over
        if self.engine.session_of(client) is not None and self.claims(client):
            fleet.occupy(client, self.plan.key, self._owner)
        super().client_available(client)

    def _withdraw(self, effect: effects.Withdraw) -> None:
        session = self.engine.session_of(effect.client)
        if session is None or session.state is not SessionState.ABANDONED:
            super()._withdraw(effect)
        # Otherwise `abandoned` ends its task, after that is stored.

    def file_for(self, client: str, digest: str) -> Path | None:
        """The list of ready members, for those of a session."""
        session = self.engine.session_of(client)
        of = None if session is None else self._open_sessions.get(session.number)
        return self._list_path(of) if of is not None and of.ready.digest == digest else None

    def record_of(self, client: str, digest: str) -> tuple[Record, bool] | None:
        """The record of a member that is sent a file of its task, or the list of ready members."""
        if self.file_for(client, digest) is not None:
            return Record(), True
        return super().record_of(client, digest)

    async def masking_message(self, client: str, message: fleet_pb2.MaskingMessage) -> None:
        """A member sent a message of its session; a refused one ends its part."""
        try:
            await self._take(client, message)
        except Refusal as refusal:
            self._refuse(client, refusal)

    async def _take(self, client: str, message: fleet_pb2.MaskingMessage) -> None:
        if message.attempt != self._attempt:
            raise Refusal(
                Code.STALE_ROUND,
                f"Expected messages of try {self._attempt}, got one of {message.attempt}.",
            )
        session = self.engine.session_of(client)
        if message.WhichOneof("kind") == "ready":
            await self._is_ready(client, message.ready)
        elif session is None:
            raise Refusal(Code.NOT_IN_COHORT, "Expected a member of a session, got another client.")
        elif (of := self._open_sessions.get(session.number)) is not None:
            event = await self._exchange.take(of, session, client, message)
            if event is not None:
                self.feed(event)
            if isinstance(event, session_events.ClosingStored):
                await self._closed(of, session)

    async def _is_ready(self, client: str, raw: bytes) -> None:
        """A member has trained, or says so again."""
        if (session := self.engine.session_of(client)) is None:
            if not self.claims(client):
                raise Refusal(Code.ROUND_CLOSED, "Expected a member at work, got another client.")
            found = self._ready.verify(raw, client)
            context = self._context
            await context.in_ledger(context.ledger.check_certificate, found.advert.serial, client)
            session = self.engine.session_of(client)  # they may have opened meanwhile
            if session is None:
                self._ready.add(found)
                self._context.records.training(self.plan.key, client)
                self.feed(session_events.Ready(client, found.advert.coverage))
                return
        if not self._ready.is_drawn(client, raw):
            raise Refusal(
                Code.MASKING_REFUSED,
                "Expected the advert with which this member is in its session, got another: a "
                "process that restarts has dropped out of the session.",
            )
        await self._send_last(session.number, client)

    def _refuse(self, client: str, refusal: Refusal) -> None:
        key, session = self.plan.key, self.engine.session_of(client)
        log.info("round %d: refused a message of %s: %s", key[1], client, refusal,
                 extra=self._about(client))  # fmt: skip
        if refusal.code is not Code.ROUND_CLOSED:
            self._context.records.refused(key, client, refusal.code, str(refusal))
            self.client_failed(client, f"{refusal.code}: {refusal}")
        if session is None or client not in session.masked:
            self._send_withdrawal(client, key, str(refusal))

    # ---- uploads -----------------------------------------------------------------------------

    def admit(self, header: fleet_pb2.UpdateHeader) -> list[PlannedPart]:
        """Admit a masked update by its header, which says of its parts what they cover.

        Raises:
            Refusal: in clear, not in a session, closed, another model, or a bad header.
        """
        check_masked(header)
        self.check_open(header.client, header.task.round)
        session = self.engine.session_of(header.client)
        assert session is not None
        of = self._open_sessions[session.number]
        check_masked_update(header, self.plan, self._form(header).layout, of.roster.sid)
        return []

    def _form(self, header: fleet_pb2.UpdateHeader) -> MaskedForm:
        """The form of a member's body, by its header.

        Raises:
            Refusal: the body covers something else than its session's class.
        """
        session = self.engine.session_of(header.client)
        assert session is not None
        return self._masked_sum.form.covering(header.parts, session.width_class)

    def checker(self, header: fleet_pb2.UpdateHeader, planned: list[PlannedPart]) -> Checker:  # noqa: ARG002 - as of parts
        """The checker of an admitted body, at its start."""
        return MaskedBodyChecker(header, self._form(header).layout)

    async def accept(self, update: AcceptedUpdate) -> bool:
        """Accept a masked body that is synced. False if it was accepted before.

        Raises:
            Refusal: the session accepts no more, or another body was accepted.
        """
        context, client = self._context, update.client
        crossing("accept.before")
        session = self.engine.session_of(client)
        assert session is not None
        try:
            header = context.spool.header(update.file)
        except IntegrityError:
            self.check_open(client, update.round)  # it was deleted as its session ended
            raise
        upload = MaskedUpload(
            at=self._open_sessions[session.number].at,
            client=client,
            file=update.file,
            header=header.SerializeToString(deterministic=True),
            parts=None if context.remote is None else num_parts(update.size_bytes),
        )
        try:  # the ledger says whether the session is closed: a gate may have accepted the body
            first = await context.in_ledger(context.ledger.accept_body, upload)
        except Refusal as refusal:
            if refusal.code is Code.ROUND_CLOSED:
                context.spool.discard_late(update.file, *self.plan.key)  # unread
            raise
        if first:
            self._received.add(client)
        crossing("masking.stored")
        self.feed(session_events.BodyStored(client))
        return first

    def accepted(
        self, update: AcceptedUpdate | AcceptedHere | AcceptedRow | UpdateRow, counted: int
    ) -> None:
        """A gate has stored a member's body. Afterwards the sets of sessions say who counts."""
        if counted == self.plan.number and self.engine.state is RoundState.MASKING:
            self.feed(session_events.BodyStored(update.client))

    # ---- effects -----------------------------------------------------------------------------

    async def _perform(self, effect: effects.RoundEffect) -> Outcome | None:
        match effect:
            case effects.OpenSessions(rosters):
                await self._begin_sessions(rosters)
            case effects.ForwardShares(number, shared):
                of, session = await self._move(number, SessionState.MASKING, shared=shared)
                self._send_each(await self._steps.shares(of, session, shared))
            case effects.Freeze(number):
                await self._freeze(number)
            case effects.SendSurvivors(number, masked):
                of, session = await self._move(number, SessionState.AGREEING)
                self._send_all(masked, self._steps.survivors(of, session))
            case effects.SendSignatures(number, _, to):
                of, session = await self._move(number, SessionState.REVEALING)
                self._send_all(to, await self._steps.signatures(of, session))
            case effects.Unmask(number, revealed):
                of, session = await self._move(number, SessionState.UNMASKING, revealed=revealed)
                await self._unmask(of, session)
            case effects.AbandonSession(number, reason):
                await self._abandon_session(number, reason)
            case effects.SendClosing():
                pass  # sent when its last signature was stored: this queue may have ended
            case effects.Resend(number, client):
                await self._send_last(number, client)
            case _:
                return await self._perform_other(effect)
        return None

    async def _perform_other(self, effect: effects.RoundEffect) -> Outcome | None:
        outcome = await super()._perform(effect)
        if outcome is not None and outcome.model is not None:
            return await self._over(outcome)
        return outcome

    async def _begin_sessions(self, rosters: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        context, plan = self._context, self.plan
        members = [(name, self._ready.drawn(names)) for name, names in rosters]
        sessions = open_sessions(plan.key, self._terms.pid, members)
        adverts = {a.advert.name: a.advert.to_bytes() for _, each in members for a in each}
        deadline_at = context.ledger.wall() + self.engine.config.session_s
        await context.in_ledger(
            context.ledger.open_sessions, *plan.key, rosters, deadline_at=deadline_at,
            adverts=adverts,
        )  # fmt: skip
        crossing("masking.opened")
        if plan.upstream is not None:
            model_bytes = plan.manifest.size_bytes
            context.sending.closed(plan.run, plan.number, model_bytes, sessions=True)
        self._open_sessions = sessions
        log.info(
            "round %d of %s masks in %d sessions of %d members", plan.number, plan.run,
            len(rosters), len(adverts), extra=self._about(),
        )  # fmt: skip
        for of in sessions.values():
            self._write_list(of)
            self._send_all(of.roster.names, self._steps.ready_list(of))

    def _of(self, number: int) -> tuple[OpenSession, MaskingSession]:
        return self._open_sessions[number], self.engine.sessions[number]

    async def _move(
        self, number: int, state: SessionState, *, shared: Collection[str] = (),
        revealed: Collection[str] = (), reason: str = "",
    ) -> tuple[OpenSession, MaskingSession]:  # fmt: skip
        """Store the next state of a session."""
        context, (of, session) = self._context, self._of(number)
        await context.in_ledger(
            context.ledger.move_session, of.at, state, shared=shared, revealed=revealed,
            reason=reason,
        )  # fmt: skip
        of.state = state
        crossing("masking.moved")
        return of, session

    async def _freeze(self, number: int) -> None:
        context, (of, session) = self._context, self._of(number)
        masked = await context.in_ledger(context.ledger.freeze_session, of.at)
        of.state = SessionState.FROZEN
        crossing("masking.moved")
        self._drop_bodies(session.members.difference(masked))
        for client in masked:
            self.feed(session_events.BodyStored(client))
        self.feed(session_events.BodiesFrozen(number))

    async def _unmask(self, of: OpenSession, session: MaskingSession) -> None:
        context, number, members = self._context, session.number, sorted(session.masked)
        await self._fetch_bodies(of, members)
        form = self._form(context.spool.header(self._body(members[0])))  # all cover the same
        said = await self._exchange.exchanged(of, session)
        bodies = [context.spool.path(self._body(client)) for client in members]
        found = await context.in_fold(unmask, said, bodies, form)
        if isinstance(found, NoSum):
            await self._blame(of, found, members)
            self.feed(session_events.UnmaskFailed(number, found.reason))
            return
        await context.in_fold(self._masked_sum.write, number, found)
        names = {client: self._body(client) if form.specs else "" for client in members}
        finish = context.ledger.finish_session
        for client in await context.in_ledger(finish, of.at, names, form.layout.size_bytes):
            context.cool_offs.succeeded(client, evaluating=self._evaluating)
        of.state = SessionState.DONE
        crossing("masking.unmasked")
        of.dealt.clear()
        self._drop_bodies(session.members)
        for client in members:
            context.records.accepted(self.plan.key, client)
            context.meters.accepted.inc()
        self.feed(session_events.Unmasked(number))
        self._send_all(members, self._steps.done())
        self._free(session)

    async def _fetch_bodies(self, of: OpenSession, members: Sequence[str]) -> None:
        """Have the bodies on this disk that were accepted, and no others.

        Raises:
            IntegrityError: one is missing, or another one than was accepted.
        """
        context, spool = self._context, self._context.spool
        accepted = await context.in_ledger(context.ledger.body_digests, of.at)
        for client in members:
            file = self._body(client)
            if client not in self._received:
                spool.drop_copy(file)  # of an upload that began here, and ended at a gate
            await context.fetch(file)
            if digest_of(spool.header(file).SerializeToString(deterministic=True)) != (
                accepted.get(client)
            ):
                raise IntegrityError(
                    f"Expected the body of {client} that was accepted in session {of.at[2]}, got "
                    "another one."
                )

    async def _blame(self, of: OpenSession, found: NoSum, members: Sequence[str]) -> None:
        """Store who dealt or revealed false shares, and mark all for an implausible sum."""
        marked = members if found.implausible else ()
        causes = {**found.at_fault, **dict.fromkeys(marked, IMPLAUSIBLE)}
        for client, cause in causes.items():
            await self._context.in_ledger(self._context.ledger.blame, of.at, client, cause)
        for client, cause in found.at_fault.items():
            did = CAUSES[cause]
            log.warning("%s %s", client, did, extra=self._about(client))
            self._context.records.refused(self.plan.key, client, Code.MASKING_REFUSED, did)
            self._note(client, Phase.REFUSED, did, fails=True)

    async def _abandon_session(self, number: int, reason: str) -> None:
        of, session = await self._move(number, SessionState.ABANDONED, reason=reason)
        log.warning("session %d is abandoned: %s", number, reason, extra=self._about())
        of.dealt.clear()
        self._drop_bodies(session.members)
        self._told |= {client: self._context.fleet.get(client) for client in session.members}
        self._send_all(session.members, self._steps.abandoned(session))
        self._free(session)

    def _free(self, session: MaskingSession) -> None:
        for client in sorted(session.members):
            self._context.fleet.free(client, self.plan.key)

    # ---- sending -----------------------------------------------------------------------------

    def _send_all(self, clients: Iterable[str], step: Step) -> None:
        for client in clients:
            self._context.fleet.send(client, step)

    def _send_each(self, steps: Mapping[str, Step]) -> None:
        for client, step in steps.items():
            self._context.fleet.send(client, step)

    async def _send_last(self, number: int, client: str) -> None:
        """Send a member what its session asked it last."""
        if number in self._open_sessions:
            of, session = self._of(number)
            for step in await self._steps.last(of, session, client):
                self._context.fleet.send(client, step)

    # ---- the end -----------------------------------------------------------------------------

    async def _closed(self, of: OpenSession, session: MaskingSession) -> None:
        """A member gave its session up; with enough of them that is proven."""
        self._closings.set()
        if len(session.closed) >= session.threshold and session.number not in self._proven:
            self._proven.add(session.number)
            self._send_all(session.members, await self._steps.closed(of, session))

    async def _abandon(self, reason: str, *, fault: bool, cause: str) -> Outcome:
        for number, of in self._open_sessions.items():
            if not of.state.is_over:
                await self._abandon_session(number, reason)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(self.engine.config.phase_s, CLOSING_S)):
                await self._wait_for_closings()
        return await self._over(await super()._abandon(reason, fault=fault, cause=cause))

    async def _wait_for_closings(self) -> None:
        """Wait for the proofs with which members may mask their updates again in the next round."""
        while any(map(self._may_be_closed, self.engine.sessions)):
            self._closings.clear()
            await self._closings.wait()

    def _may_be_closed(self, session: MaskingSession) -> bool:
        """Whether bodies may have left, and enough members can still prove the session's end."""
        if session.state is not SessionState.ABANDONED or not session.shared:
            return False
        get, closed = self._context.fleet.get, session.closed
        can = {c for c in session.members - session.signed - closed if get(c) is not None}
        return len(closed) < session.threshold <= len(closed) + len(can)

    async def _over(self, outcome: Outcome) -> Outcome:
        """Delete the messages that are left: only digests stay. Read who did what."""
        ledger, (run, number) = self._context.ledger, self.plan.key
        await self._context.in_ledger(ledger.forget_sessions, run, number)
        sessions = await self._context.in_ledger(ledger.past_sessions, run, number, number + 1)
        return replace(outcome, sessions=sessions)

    # ---- files -------------------------------------------------------------------------------

    def _body(self, client: str) -> str:
        run, number = self.plan.key
        return f"{run}.{number}.{client}"

    def _drop_bodies(self, clients: Iterable[str]) -> None:
        for client in clients:
            self._context.spool.discard(self._body(client))

    def _list_path(self, of: OpenSession) -> Path:
        run, number = self.plan.key
        return self._context.spool.path(f"{run}.{number}..ready-{of.ready.digest[:16]}")

    def _write_list(self, of: OpenSession) -> None:
        of.ready.write(self._list_path(of))
