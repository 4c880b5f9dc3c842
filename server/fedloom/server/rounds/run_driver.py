"""One active run in the world: its rounds, one after another.

The run's engine decides what comes next; the driver opens rounds, tells them what an operator asks
for, and stores how the run stands.
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
from fedloom.server.context import World
from fedloom.server.engine import (
    Abort,
    AbortRound,
    BufferConfig,
    ChangeGoal,
    CloseNow,
    ExtendDeadline,
    Finish,
    OpenRound,
    Pause,
    PauseRound,
    Resume,
    ResumeRound,
    RollBack,
    RolledBack,
    RoundAbandoned,
    RoundCommitted,
    RoundEvent,
    RoundKind,
    Run,
    RunEffect,
    RunEvent,
    RunProgress,
    RunState,
    Started,
    Stop,
)
from fedloom.server.ledger import Point, Row
from fedloom.server.metrics.log_buffer import about
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.rounds.background_tasks import Pending
from fedloom.server.rounds.buffer_driver import BufferShell
from fedloom.server.rounds.commit import Outcome
from fedloom.server.rounds.round_driver import RoundShell
from fedloom.server.rounds.run_position import Position

log = logging.getLogger(__name__)

COMMIT_S = 60.0
"""Longest wait for a round that is being committed before a run is rolled back."""


class RunDriver:
    """One active run.

    Args:
        row: the run's row in the ledger.
        manifest: of its model.
        world: shared parts.
        ended: called when it needs nobody any more.
    """

    def __init__(
        self,
        row: Row,
        manifest: Manifest,
        world: World,
        ended: Callable[["RunDriver"], None],
    ) -> None:
        self.id: str = row["id"]
        self.position = Position(row, manifest, world)
        self.spec = self.position.spec
        self.engine: Run
        self.round: RoundShell | None = None
        self._buffer = self.spec.buffer_config()
        self._world = world
        self._ended = ended
        self._between = asyncio.Event()  # no round is open
        self._going_back = asyncio.Lock()
        self._storing = Pending()

    async def start(self, row: Row) -> None:
        """Begin, or go on where the ledger says the run stood."""
        world = self._world
        open_round = await world.in_ledger(world.ledger.open_round_of, self.id)
        rows = await world.in_ledger(world.ledger.list_rounds, self.id)
        progress = RunProgress(
            opened=row["last_round"],
            trained=row["committed"],
            evaluated=any(r["kind"] == "evaluate" and _stands(r) for r in rows),
            abandoned_in_a_row=row["abandoned_in_a_row"],
            open_kind=RoundKind(open_round["kind"]) if open_round else None,
        )
        await self.position.look_back(rows)
        state = RunState(row["state"])
        self.engine = Run(
            self.spec.run_config(), state=state, reason=row["reason"], progress=progress
        )
        world.fleet.listen(self)
        if open_round is not None:
            kind = RoundKind(open_round["kind"])
            shell = self._shell(self._plan(open_round["number"], kind), rows)
            await shell.restore(open_round, paused=state is RunState.PAUSED)
            self.round = shell
        elif _leaves_work(rows) and self._buffer is not None and self._wants_training:
            last = self._plan(rows[-1]["number"], RoundKind.TRAIN)
            last = replace(last, trained=last.trained - 1, model=rows[-1]["model_in"])
            between = self._buffer_shell(last, self._buffer, rows)
            await between.wait_for_next()
            self.round = between
        self.feed(Started())

    @property
    def _wants_training(self) -> bool:
        return self.engine.progress.trained < self.spec.rounds

    async def stop(self) -> None:
        """Leave everything as it is; a later start goes on with it."""
        if self.round is not None:
            await self.round.stop()

    # ---- operator ----------------------------------------------------------------------------

    def command(self, action: str, argument: float | str = "") -> None:
        """Do what an operator asks.

        Raises:
            UsageError: it does not fit the state of the run or of its round.
        """
        match action:
            case "pause":
                self.feed(Pause())
            case "resume":
                self.feed(Resume())
            case "stop":
                self.feed(Stop())
            case "close":
                self._check_enough()
                self._to_round(CloseNow())
            case "abort":
                self._to_round(Abort(str(argument) or "aborted by the operator"))
            case "retry":
                if self.engine.progress.open_kind is None:
                    self.feed(Resume())
                else:
                    self._to_round(Abort(str(argument) or "tried again by the operator"))
            case "extend":
                self._to_round(ExtendDeadline(float(argument)))
                self._store_deadline()
            case _:
                raise UsageError(f"Expected a known action, got {action!r}.")

    def change_goals(self, goal: int, quorum: int) -> None:
        """Have rounds, the open one included, want another number of updates.

        Raises:
            UsageError: the run cannot, or the numbers do not do.
        """
        self.position.change_goals(goal, quorum)
        self._later(self._world.ledger.set_goals, self.id, goal, quorum)
        if self.round is not None and self.round.engine.state.is_open:
            self.round.feed(ChangeGoal(goal, quorum))

    def _check_enough(self) -> None:
        """Can a model be made of what the open round has? Of nothing it says so itself."""
        if self.round is None or self.round.plan.kind is not RoundKind.TRAIN:
            return
        aggregation, got = self.spec.build_strategy().aggregation, self.round.status()["accepted"]
        if 0 < got < aggregation.min_updates:
            raise UsageError(
                f"Expected at least {aggregation.min_updates} accepted updates to close with, as "
                f"{aggregation.name} needs them, got {got}; wait for them or abort the round."
            )

    def _to_round(self, event: RoundEvent) -> None:
        if self.round is None:
            raise UsageError("Expected a run with an open round, got one without.")
        self.round.feed(event)

    def _store_deadline(self) -> None:
        assert self.round is not None
        ledger, shell = self._world.ledger, self.round
        deadline_at = shell.deadline_at()
        if deadline_at is not None:
            self._later(ledger.set_deadline, self.id, shell.plan.number, deadline_at)

    async def roll_back(self, point: Point) -> None:
        """Go on from an earlier committed round; the open round is given up first.

        Raises:
            UsageError: it does not fit the state of the run.
            UnavailableError: the open round is being committed and takes long.
        """
        async with self._going_back:
            reason = f"rolled back to round {point.number} by the operator"
            self.feed(RollBack(reason))
            trained = None
            try:
                await self._wait_until_between()
                self._disband(reason)
                crossing("rollback.before")
                ledger = self._world.ledger
                point = await self._world.in_ledger(ledger.roll_back, self.id, point.number)
                crossing("rollback.after")
                self.position.go_back(point)
                trained = point.trained
            finally:
                self.feed(RolledBack(trained))

    def _disband(self, reason: str) -> None:
        """Have nobody work any more between two buffers, where the run has them."""
        if isinstance(self.round, BufferShell):
            shell, self.round = self.round, None
            shell.disband(reason)

    async def _wait_until_between(self) -> None:
        try:
            async with asyncio.timeout(COMMIT_S):
                await self._between.wait()
        except TimeoutError:
            raise UnavailableError(
                f"Expected the open round to end within {COMMIT_S:.0f} s, got one that is still "
                "being committed: try again when it is."
            ) from None

    # ---- rounds ------------------------------------------------------------------------------

    def feed(self, event: RunEvent) -> None:
        """Tell the run's engine what happened and do what it asks for.

        Raises:
            OperatorRefused: the operator's command does not fit.
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
        ended = self.engine.state not in (RunState.RUNNING, RunState.PAUSED)
        if ended and self.engine.progress.open_kind is None:
            self._disband(self.engine.reason or "the run has ended")
            self._ended(self)

    def _perform(self, effect: RunEffect) -> None:
        match effect:
            case OpenRound(number, kind):
                plan = self._plan(number, kind)
                if isinstance(self.round, BufferShell) and kind is RoundKind.TRAIN:
                    self.round.next(plan, self.position.select(plan))
                else:
                    self.round = self._shell(plan)
                    self.round.begin()
            case PauseRound():
                self._tell(Pause())
            case ResumeRound():
                self._tell(Resume())
                self._store_deadline()
            case AbortRound(reason):
                if self.round is not None and self.round.engine.state.is_open:
                    self._tell(Abort(reason))
            case Finish():
                model, told = self.position.model[:12], about(run=self.id)
                log.info("run %s finished with model %s", self.id, model, extra=told)

    def _tell(self, event: RoundEvent) -> None:
        if self.round is not None and not self.round.engine.state.is_over:
            self.round.feed(event)

    def _store_state(self) -> None:
        state = self.engine.state
        ended = state not in (RunState.RUNNING, RunState.PAUSED)
        reason = self.engine.reason
        if state is RunState.FINISHED and (plan := self.spec.privacy_plan()) is not None:
            reason = plan.stopped()
        if state is not RunState.RUNNING:
            told = about(run=self.id)
            log.info("run %s is %s: %s", self.id, state.value, reason or "done", extra=told)
        ledger = self._world.ledger
        self._later(partial(ledger.set_run_state, self.id, state.value, reason, ended=ended))
        self._changed()

    def _later(self, call: Any, *args: Any) -> None:
        stored = self._storing.start(self._world.in_ledger(call, *args))
        stored.add_done_callback(lambda _: self._changed())

    def _changed(self) -> None:
        """Tell whoever watches that the run's rows are not what they were."""
        self._world.live.changed("run", self.id)

    async def settled(self) -> None:
        """Wait until what was asked to be stored is stored."""
        await self._storing.settled()

    def _shell(self, plan: RoundPlan, rows: Sequence[Row] = ()) -> RoundShell:
        if self._buffer is not None and plan.kind is RoundKind.TRAIN:
            return self._buffer_shell(plan, self._buffer, rows)
        select = self.position.select(plan)
        return RoundShell(plan, self._world, self, select, self._round_ended)

    def _buffer_shell(
        self, plan: RoundPlan, config: BufferConfig, rows: Sequence[Row]
    ) -> BufferShell:
        """The shell of a buffer, and of those before it whose models somebody may work on."""
        before = _plans_before(plan, rows, config.max_staleness)
        select = self.position.select(plan)
        return BufferShell(plan, self._world, self, select, self._round_ended, config, before)

    def _plan(self, number: int, kind: RoundKind) -> RoundPlan:
        return self.position.plan(number, kind, self.engine.progress.trained)

    def _round_ended(self, outcome: Outcome) -> None:
        shell = self.round
        assert shell is not None
        if not shell.goes_on:
            self.round = None
        self._changed()
        if outcome.model is None:
            self.feed(RoundAbandoned(outcome.reason, fault=outcome.fault))
            return
        self.position.move(outcome)
        self.feed(RoundCommitted(shell.plan.kind))

    def let_go(self, client: str, reason: str) -> None:
        """Wait no more for a client; its task is withdrawn."""
        if self.round is not None and self.round.claims(client):
            self.round.let_go(client, reason)

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
        """Does the open round wait for this client?"""
        return self.round is not None and self.round.claims(client)

    # ---- views -------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What happens right now, beyond what the ledger holds."""
        return {
            "clients_available": len(self._world.fleet.available()),
            "round": None if self.round is None else self.round.status(),
        }


def _plans_before(plan: RoundPlan, rows: Sequence[Row], max_staleness: int) -> list[RoundPlan]:
    """Plans of the rounds before one whose models somebody may still work on."""
    before: list[RoundPlan] = []
    models = {r["number"]: r["model_in"] for r in rows if _stands(r)}
    for number in range(plan.number - 1, plan.number - max_staleness - 1, -1):
        if number not in models:
            break  # abandoned, undone, or none: work on what is before it has ended
        trained = plan.trained - (plan.number - number)
        before.append(replace(plan, number=number, trained=trained, model=models[number]))
    return before


def _leaves_work(rows: Sequence[Row]) -> bool:
    """Did the last round end so that clients of it may go on?"""
    return bool(rows) and _stands(rows[-1]) and rows[-1]["kind"] == "train"


def _stands(row: Row) -> bool:
    """Was this round committed, and is the run still based on it?"""
    return row["state"] == "committed" and row["undone_at"] is None
