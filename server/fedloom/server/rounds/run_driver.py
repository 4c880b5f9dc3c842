"""Drives one active run: its rounds, one after another.

The run's engine decides the next step; the driver opens rounds, passes an operator's commands to
them, and stores the state of the run.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.protocol.manifest import Manifest
from fedloom.server import engine
from fedloom.server.background_tasks import BackgroundTasks
from fedloom.server.ledger import Point
from fedloom.server.ledger.rows import CountedRoundRow, RunRow
from fedloom.server.metrics.log_buffer import about
from fedloom.server.planning.best import mark
from fedloom.server.planning.fair_share import Demand
from fedloom.server.planning.privacy_budget import Bar
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.planning.spec import RunSpec
from fedloom.server.rounds.commit import Outcome
from fedloom.server.rounds.context import RoundsContext
from fedloom.server.rounds.engines import buffer_settings
from fedloom.server.rounds.masking.driver import MaskedRoundDriver
from fedloom.server.rounds.masking.masked_sum import MaskedSum
from fedloom.server.rounds.messages.app_runner import AppRunner
from fedloom.server.rounds.messages.replies import Replies
from fedloom.server.rounds.round_driver import RoundDriver
from fedloom.server.rounds.round_sum import RoundSum
from fedloom.server.rounds.run_position import Position, best_at, counts
from fedloom.server.rounds.task_table import TaskTable, plans_before
from fedloom.server.rounds.upstream import verdicts
from fedloom.server.rounds.upstream.device_sum import DeviceSum
from fedloom.server.rounds.upstream.orders import Orders, RoundOrder, order_of
from fedloom.server.rounds.upstream.sessions_sum import SessionsSum

log = logging.getLogger(__name__)

ANY_NUMBER = 10**9
"""Abandoned rounds in a row of a parent's run, which the parent pauses, not its site."""

COMMIT_S = 60.0
"""Longest wait for a commit before a run is rolled back, in seconds."""


class RunDriver:
    """One active run.

    Args:
        row: the run's row in the ledger.
        manifest: of its model.
        context: storage, connected clients, and what observes rounds.
        ended: called when the run has ended and waits for no client.
        paused: called when the run pauses, which frees its place.
    """

    def __init__(
        self,
        row: RunRow,
        manifest: Manifest,
        context: RoundsContext,
        ended: Callable[["RunDriver"], None],
        paused: Callable[[], None] = lambda: None,
    ) -> None:
        self.id: str = row.id
        self.study = row.study or ""
        self.position = Position(row, manifest, context)
        self.spec = self.position.spec
        self._config = _config(self.spec, row)
        self.engine = engine.Run(  # until `start`
            self._config, state=engine.RunState(row.state), reason=row.reason
        )
        self.round: RoundDriver | None = None
        self._context = context
        self._ended = ended
        self._paused = paused
        self._app = AppRunner(self, context) if self.spec.flower else None
        self._orders = Orders(row.upstream) if row.upstream else None
        self._between = asyncio.Event()  # no round is open
        self._rolling_back = asyncio.Lock()
        self._storing = BackgroundTasks()

    async def start(self, row: RunRow) -> None:
        """Begin, or continue from the ledger."""
        context = self._context
        open_round = await context.in_ledger(context.ledger.open_round_of, self.id)
        rows = await context.in_ledger(context.ledger.list_rounds, self.id)
        await self.position.look_back(rows)
        progress = engine.RunProgress(
            opened=row.last_round,
            trained=row.committed,
            evaluated=[r.kind for r in rows if counts(r)][-1:] == ["evaluate"],
            abandoned_in_a_row=row.abandoned_in_a_row,
            open_kind=engine.RoundKind(open_round.kind) if open_round else None,
            best=self.position.best,
        )
        if self._app is not None:
            number = None if open_round is None else open_round.number
            await self._app.board.load(number, row.last_round)
        state = engine.RunState(row.state)
        self.engine = engine.Run(self._config, state=state, reason=row.reason, progress=progress)
        if self._orders is not None and rows:
            context.passed.restore(self.id, order_of(rows[-1], self._orders.site).files)
        if self._orders is not None and open_round is not None:
            order = order_of(open_round, self._orders.site)
            self._orders.add(order)
            self.position.follow(order.model, order.state)
        priority, share = row.rank
        context.turns.add(
            self, study=self.study, priority=priority, share=share, submitted=row.created_at
        )
        context.fleet.listen(self)
        if open_round is not None:
            kind = engine.RoundKind(open_round.kind)
            restored = self._round_driver(self._plan(open_round.number, kind), rows)
            await restored.restore(open_round, paused=state is engine.RunState.PAUSED)
            self.round = restored
        elif self._leaves_work(rows):
            last = self._plan(rows[-1].number, engine.RoundKind.TRAIN)
            last = replace(last, trained=last.trained - 1, model=rows[-1].model_in)
            between = self._round_driver(last, rows)
            await between.restore(None)
            self.round = between
        self.feed(engine.Started())
        if self._app is not None:
            self._app.follow()

    def _leaves_work(self, rows: Sequence[CountedRoundRow]) -> bool:
        """Whether clients of the last round may still be at work, for the next buffer."""
        buffered, trained = self.spec.buffer_config() is not None, self.engine.progress.trained
        if not buffered or trained >= self.spec.rounds or not rows:
            return False
        return counts(rows[-1]) and bool(rows[-1].kind == "train")

    async def stop(self) -> None:
        """Stop driving the run; the next start continues it."""
        self._context.turns.remove(self.id)
        if self._app is not None:
            await self._app.stop()
        if self.round is not None:
            await self.round.stop()

    # ---- operator ----------------------------------------------------------------------------

    def command(self, action: str, argument: float | str = "") -> None:
        """Carry out an operator's command.

        Raises:
            UsageError: it does not fit the state of the run or of its round.
        """
        match action:
            case "pause":
                self.feed(engine.Pause())
            case "resume":
                self.feed(engine.Resume())
            case "stop":
                self.feed(engine.Stop())
            case "close":
                self._check_enough()
                self._to_round(engine.CloseNow())
            case "abort":
                self._to_round(engine.Abort(str(argument) or "aborted by the operator"))
            case "retry":
                if self.engine.progress.open_kind is None:
                    self.feed(engine.Resume())
                else:
                    self._to_round(engine.Abort(str(argument) or "tried again by the operator"))
            case "extend":
                self._to_round(engine.ExtendDeadline(float(argument)))
                self._store_deadline()
            case _:
                raise UsageError(f"Expected a known action, got {action!r}.")

    def change_goals(self, goal: int, quorum: int) -> None:
        """Change goal and quorum of the open and all later rounds.

        Raises:
            UsageError: the run's goal is fixed, or the numbers are not valid.
        """
        if self._orders is not None:
            raise UsageError(
                f"Expected a run of this server, got {self.id}, whose goal its parent server sets."
            )
        self.position.change_goals(goal, quorum)
        self._later(self._context.ledger.set_goals, self.id, goal, quorum)
        if self.round is not None and self.round.engine.state.is_open:
            self.round.feed(engine.ChangeGoal(goal, quorum))

    def _check_enough(self) -> None:
        """Check that the open round has enough updates for its aggregation."""
        if self.round is None or self.round.plan.kind is not engine.RoundKind.TRAIN:
            return
        aggregation, got = self.spec.build_strategy().aggregation, self.round.status()["accepted"]
        if 0 < got < aggregation.min_updates:
            raise UsageError(
                f"Expected at least {aggregation.min_updates} accepted updates to close with, as "
                f"{aggregation.name} needs them, got {got}; wait for them or abort the round."
            )

    def _to_round(self, event: engine.RoundEvent) -> None:
        if self.round is None:
            raise UsageError("Expected a run with an open round, got one without.")
        self.round.feed(event)

    def _store_deadline(self) -> None:
        assert self.round is not None
        ledger, round_ = self._context.ledger, self.round
        deadline_at = round_.deadline_at()
        if deadline_at is not None:
            self._later(ledger.set_deadline, self.id, round_.plan.number, deadline_at)

    async def roll_back(self, point: Point) -> None:
        """Continue from an earlier committed round; the open round is aborted first.

        Raises:
            UsageError: it does not fit the state of the run.
            UnavailableError: the commit of the open round takes too long.
        """
        async with self._rolling_back:
            reason = f"rolled back to round {point.number} by the operator"
            self.feed(engine.RollBack(reason))
            trained, best = None, None
            try:
                await self._wait_until_between()
                self._disband(reason)
                crossing("rollback.before")
                ledger = self._context.ledger
                best = await self._context.in_ledger(best_at, ledger, self.spec, self.id, point)
                call = partial(ledger.roll_back, self.id, point.number, best=mark(self.spec, best))
                point = await self._context.in_ledger(call)
                crossing("rollback.after")
                self.position.go_back(point, best)
                trained = point.trained
            finally:
                self.feed(engine.RolledBack(trained, best))

    def _disband(self, reason: str) -> None:
        """End all work between two buffers, in a buffered run."""
        if self.round is not None:
            between, self.round = self.round, None
            between.disband(reason)

    async def _wait_until_between(self) -> None:
        try:
            async with asyncio.timeout(COMMIT_S):
                await self._between.wait()
        except TimeoutError:
            raise UnavailableError(
                f"Expected the open round to end within {COMMIT_S:.0f} s, got one that is still "
                "being committed: try again when it is."
            ) from None

    # ---- rounds of a parent server -----------------------------------------------------------

    @property
    def site(self) -> str:
        """Name of this server at the parent whose run it is; empty for a run of its own."""
        return "" if self._orders is None else self._orders.site

    async def order(self, order: RoundOrder) -> None:
        """Open a round that the parent has ordered; none is open.

        The files of the last ordered round are removed, where nothing else needs them.
        """
        assert self._orders is not None
        await self._context.passed.drop(self.id, order.files, self._context)
        self._orders.add(order)
        self.position.follow(order.model, order.state)
        self.feed(engine.Wanted(order.number, order.kind))

    async def ordered(self, number: int) -> Outcome:
        """Wait for the end of a round that the parent has ordered."""
        assert self._orders is not None
        return await self._orders.outcome(number)

    # ---- rounds ------------------------------------------------------------------------------

    def feed(self, event: engine.RunEvent) -> None:
        """Pass an event to the run's engine, and perform its effects.

        Raises:
            OperatorRefused: the operator's command does not fit the state.
        """
        before = (self.engine.state, self.engine.reason)
        effects = self.engine.handle(event)
        after = (self.engine.state, self.engine.reason)
        if after != before:
            self._store_state()
        for effect in effects:
            self._perform(effect)
        if self.engine.progress.open_kind is None:
            self._between.set()
        else:
            self._between.clear()
        if self._app is not None:
            self._app.follow()
        if self.has_ended and self.engine.progress.open_kind is None:
            self._disband(self.engine.reason or "the run has ended")
            self._storing.start(self.tell_sites())
            self._ended(self)

    def _perform(self, effect: engine.RunEffect) -> None:
        match effect:
            case engine.OpenRound(number, kind):
                plan = self._plan(number, kind)
                if self.round is not None:
                    self.round.next(plan, self.position.select(plan))
                else:
                    self.round = self._round_driver(plan)
                    self.round.begin()
            case engine.PauseRound():
                self._feed_round(engine.Pause())
            case engine.ResumeRound():
                self._feed_round(engine.Resume())
                self._store_deadline()
            case engine.AbortRound(reason):
                if self.round is not None and self.round.engine.state.is_open:
                    self._feed_round(engine.Abort(reason))
            case engine.Finish():
                model, extra = self.position.model[:12], about(run=self.id)
                log.info("run %s finished with model %s", self.id, model, extra=extra)

    def _feed_round(self, event: engine.RoundEvent) -> None:
        if self.round is not None and not self.round.engine.state.is_over:
            self.round.feed(event)

    def _store_state(self) -> None:
        state = self.engine.state
        reason = self.engine.reason
        if state is engine.RunState.FINISHED and (plan := self.spec.privacy_plan()) is not None:
            reason = plan.stopped(self.engine.progress.trained)
        if state is not engine.RunState.RUNNING:
            extra = about(run=self.id)
            log.info("run %s is %s: %s", self.id, state.value, reason or "done", extra=extra)
        if state is engine.RunState.PAUSED:
            self._paused()
        ledger = self._context.ledger
        self._later(
            partial(ledger.set_run_state, self.id, state.value, reason, ended=self.has_ended)
        )
        self._changed()

    def _later(self, call: Any, *args: Any) -> None:
        stored = self._storing.start(self._context.in_ledger(call, *args))
        stored.add_done_callback(lambda _: self._changed())

    def _changed(self) -> None:
        """Notify the pages that show the run: its rows have changed."""
        self._context.live.changed("run", self.id)

    async def settled(self) -> None:
        """Wait until every change so far is stored."""
        await self._storing.settled()

    async def clean(self) -> None:
        """Delete what only an active run needs."""
        if self._app is not None:
            await self._app.clean()
        if self._orders is not None:
            context = self._context
            await context.in_disk(context.outbox.discard, self.id)
            await context.passed.drop(self.id, (), context)
            context.sending.forget(self.id)

    def _round_driver(self, plan: RoundPlan, rows: Sequence[CountedRoundRow] = ()) -> RoundDriver:
        """Make a round's driver; a buffer's gets earlier rounds that clients may work on."""
        buffer, select = buffer_settings(plan), self.position.select(plan)
        models = {row.number: row.model_in for row in rows if counts(row)}
        tasks = TaskTable(plan, () if buffer is None else plans_before(plan, models, buffer))
        driver = RoundDriver if self.spec.own_sessions() is None else MaskedRoundDriver
        return driver(
            tasks, self._context, self, select=select, ended=self._round_ended,
            results=self._results,
        )  # fmt: skip

    def _results(self, plan: RoundPlan) -> RoundSum | Replies:
        if self._app is not None:
            return Replies(plan, self._context, self._app.board)
        kinds = (RoundSum, DeviceSum)
        if self.spec.own_sessions() is not None:
            kinds = (MaskedSum, SessionsSum)
        return kinds[self._orders is not None](plan, self._context)

    def _plan(self, number: int, kind: engine.RoundKind) -> RoundPlan:
        messages = {} if self._app is None else self._app.board.take(number)
        if self._orders is None:
            return self.position.plan(number, kind, self.engine.progress.trained, messages)
        order = self._orders.of(number)
        plan = self.position.plan(number, kind, order.trained, messages)
        return replace(plan, upstream=order.upstream)

    def _round_ended(self, outcome: Outcome) -> None:
        round_ = self.round
        assert round_ is not None
        if not round_.engine.continues:
            self.round = None
        self._changed()
        self.position.remember(outcome.sessions)
        if outcome.model is None:
            self.feed(engine.RoundAbandoned(outcome.reason, fault=outcome.fault))
        else:
            self.position.move(outcome)
            self.feed(engine.RoundCommitted(round_.plan.kind, self.position.best))
        if self._orders is not None:
            self._orders.end(round_.plan.number, outcome)
        if self._orders is None and not self.has_ended:  # a parent decides what counts
            self._storing.start(self.tell_sites())

    async def tell_sites(self) -> None:
        """Send the connected sites which of their sums count."""
        if not self.spec.sites:
            return
        fleet = self._context.fleet
        sites = [s for s in fleet.connected() if fleet.devices_of(s)]
        its = [site for site in sites if fleet.study_of(site) == self.study]
        await verdicts.tell(self._context, self.id, its, ended=self.has_ended)

    @property
    def has_ended(self) -> bool:
        """Whether the run has finished, failed or was stopped."""
        return self.engine.state not in (engine.RunState.RUNNING, engine.RunState.PAUSED)

    def rebar(self, before: Bar) -> None:
        """Follow a change of the clients that the run may not draw, which were `before`."""
        if self.round is not None and not self.round.engine.state.is_over:
            self.round.rebar(before)

    def let_go(self, client: str, reason: str) -> None:
        """Stop waiting for a client, and withdraw its task."""
        if self.round is not None and self.round.claims(client):
            self.round.let_go(client, reason)

    # ---- its turn ----------------------------------------------------------------------------

    def demand(self) -> Demand:
        """What the run wants of the idle clients now."""
        running = self.engine.state is engine.RunState.RUNNING
        return self.round.demand() if running and self.round is not None else Demand()

    def wake(self) -> None:
        """Let the open round take clients, if it waits for them."""
        if self.round is not None:
            self.round.wake()

    @property
    def wanted(self) -> int:
        """Clients that check in which a round draws at once, if the run is running."""
        running = self.engine.state is engine.RunState.RUNNING
        if not running or self.round is None or not self.spec.draws_check_ins:
            return 0
        config = self.round.engine.config
        at_once = getattr(config, "concurrency", config.cohort_size)
        return max(config.needed, at_once)

    # ---- the fleet's listener ----------------------------------------------------------------

    def client_available(self, client: str) -> None:
        """A client is connected and idle."""
        if self.round is not None:
            self.round.client_available(client)

    def client_left(self, client: str) -> None:
        """A client's stream ended, or another run took it."""
        if self.round is not None:
            self.round.client_left(client)

    def claims(self, client: str) -> bool:
        """Whether the open round waits for this client."""
        return self.round is not None and self.round.claims(client)

    # ---- views -------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Live status of the run, which the ledger does not store."""
        fleet, private = self._context.fleet, bool(self.spec.privacy)
        idle = [name for name in fleet.available() if fleet.study_of(name) == self.study]
        return {
            "clients_available": len(idle),
            "clients_cooling": sum(self._context.cools_off(c, private=private) for c in idle),
            "round": None if self.round is None else self.round.status(),
        }


def _config(spec: RunSpec, row: RunRow) -> engine.RunConfig:
    """The settings of a run; a parent's opens rounds when the parent orders them."""
    if row.upstream is None:
        return spec.run_config()
    return engine.RunConfig(rounds=spec.rounds, max_abandoned=ANY_NUMBER, on_demand=True)
