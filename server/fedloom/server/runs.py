"""Runs in the world: each one's rounds, one after another, and all of them across restarts."""

import asyncio
import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fedloom.protocol.errors import Code, FedloomError, Refusal, UnavailableError, UsageError
from fedloom.protocol.faults import crossing
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.updates import header_limit_bytes
from fedloom.server.buffer_shell import BufferShell
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
    Select,
    Started,
    Stop,
)
from fedloom.server.ledger import Point, Row, require_run
from fedloom.server.log_ring import about
from fedloom.server.observed import tell
from fedloom.server.round_shell import Outcome, RoundShell
from fedloom.server.round_sum import digests_in, first_note
from fedloom.server.spec import RunSpec, parse
from fedloom.server.tasks import RoundPlan, changed
from fedloom.server.world import World
from fedloom.strategies.selection import History

log = logging.getLogger(__name__)

COMMIT_S = 60.0
"""Longest wait for a round that is being committed before a run is rolled back."""

ACTIVE = (RunState.RUNNING.value, RunState.PAUSED.value)


class RunDriver:
    """One active run.

    Args:
        row: the run's row in the ledger.
        manifest: of its model.
        world: shared parts.
        runs: where to say that it has ended.
    """

    def __init__(self, row: Row, manifest: Manifest, world: World, runs: "Runs") -> None:
        self.id: str = row["id"]
        self.spec: RunSpec = parse(row["spec"])
        self.engine: Run
        self.round: RoundShell | None = None
        self._manifest = manifest
        self._limits = self.spec.limits(manifest)
        self._buffer = self.spec.buffer_config()
        self.header_limit_bytes = header_limit_bytes(manifest, len(self._limits.groups))
        self._model: str = row["model"]
        self._strategy_state: str | None = row["strategy_state"]
        self._world = world
        self._runs = runs
        self._goals: tuple[int, int] | None = tuple(row["goals"]) if row["goals"] else None
        self._history = History()
        self._taken: set[str] = set()
        self._between = asyncio.Event()  # no round is open
        self._going_back = asyncio.Lock()
        self._pending: set[asyncio.Task[None]] = set()

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
        policy = self.spec.build_selection()
        if policy.needs:
            tell(self._history, await world.in_ledger(world.ledger.observations, self.id), policy)
        await self._look_back(rows)
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

    async def _look_back(self, rows: Sequence[Row]) -> None:
        """Find out who took part in the tree that has begun, where the run is private by one."""
        plan, world = self.spec.privacy_plan(), self._world
        if plan is None or plan.settings.restart_every is None:
            return
        done = [r["number"] for r in rows if (r["kind"], r["state"]) == ("train", "committed")]
        for trained, number in enumerate(done, 1):
            part = await world.in_ledger(world.ledger.accepted, self.id, number)
            self._taken = plan.taken(self._taken, (u["client"] for u in part), trained)

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

    @property
    def goals(self) -> tuple[int, int]:
        """Goal and quorum of the open round and of those to come."""
        config = self.spec.round_config()
        return self._goals or (config.goal, config.quorum)

    def change_goals(self, goal: int, quorum: int) -> None:
        """Have rounds, the open one included, want another number of updates.

        Raises:
            UsageError: the run cannot, or the numbers do not do.
        """
        if self._buffer is not None or self.spec.privacy:
            kind = "buffers" if self._buffer is not None else "privacy, whose claim hangs on it"
            raise UsageError(f"Expected a run whose goal may change, got one with {kind}.")
        most = self.spec.capacity - self.spec.round_config().goal
        if goal > most:
            raise UsageError(
                f"Expected a goal of at most {most}, which the sums of this run have room for, "
                f"got {goal}: submit a run with a larger goal."
            )
        changed(self.spec.round_config(), (goal, quorum))
        self._goals = (goal, quorum)
        self._later(self._world.ledger.set_goals, self.id, goal, quorum)
        if self.round is not None and self.round.engine.is_open:
            self.round.feed(ChangeGoal(goal, quorum))

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
                if isinstance(self.round, BufferShell):
                    shell, self.round = self.round, None
                    shell.disband(reason)
                crossing("rollback.before")
                ledger = self._world.ledger
                point = await self._world.in_ledger(ledger.roll_back, self.id, point.number)
                crossing("rollback.after")
                self._model, self._strategy_state = point.digest, point.state
                trained = point.trained
            finally:
                self.feed(RolledBack(trained))

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
            if isinstance(self.round, BufferShell):
                shell, self.round = self.round, None
                shell.disband(self.engine.reason or "the run has ended")
            self._runs.ended(self)

    def _perform(self, effect: RunEffect) -> None:
        match effect:
            case OpenRound(number, kind):
                plan = self._plan(number, kind)
                if isinstance(self.round, BufferShell) and kind is RoundKind.TRAIN:
                    self.round.next(plan, self._select(plan))
                else:
                    self.round = self._shell(plan)
                    self.round.begin()
            case PauseRound():
                self._tell(Pause())
            case ResumeRound():
                self._tell(Resume())
                self._store_deadline()
            case AbortRound(reason):
                if self.round is not None and self.round.engine.is_open:
                    self._tell(Abort(reason))
            case Finish():
                model, told = self._model[:12], about(run=self.id)
                log.info("run %s finished with model %s", self.id, model, extra=told)

    def _tell(self, event: RoundEvent) -> None:
        if self.round is not None and not self.round.engine.is_over:
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
        task = asyncio.ensure_future(self._world.in_ledger(call, *args))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        task.add_done_callback(lambda _: self._changed())

    def _changed(self) -> None:
        """Tell whoever watches that the run's rows are not what they were."""
        self._world.live.changed("run", self.id)

    async def settled(self) -> None:
        """Wait until what was asked to be stored is stored."""
        if self._pending:
            await asyncio.wait(self._pending)

    def _shell(self, plan: RoundPlan, rows: Sequence[Row] = ()) -> RoundShell:
        if self._buffer is not None and plan.kind is RoundKind.TRAIN:
            return self._buffer_shell(plan, self._buffer, rows)
        return RoundShell(plan, self._world, self, self._select(plan), self._round_ended)

    def _select(self, plan: RoundPlan) -> Select:
        return self.spec.select(plan.number, plan.kind, self._history, plan.stream)

    def _buffer_shell(
        self, plan: RoundPlan, config: BufferConfig, rows: Sequence[Row]
    ) -> BufferShell:
        """The shell of a buffer, and of those before it whose models somebody may work on."""
        earlier: list[RoundPlan] = []
        models = {r["number"]: r["model_in"] for r in rows if _stands(r)}
        for number in range(plan.number - 1, plan.number - config.max_staleness - 1, -1):
            if number not in models:
                break  # abandoned, undone, or none: work on what is before it has ended
            trained = plan.trained - (plan.number - number)
            earlier.append(replace(plan, number=number, trained=trained, model=models[number]))
        select = self._select(plan)
        return BufferShell(plan, self._world, self, select, self._round_ended, config, earlier)

    def _plan(self, number: int, kind: RoundKind) -> RoundPlan:
        stream = self._world.noise.stream(self.id, self.spec)
        clip = self._clip()
        limits = replace(self._limits, max_norm=self.spec.longest(self._manifest, clip))
        if kind is RoundKind.EVALUATE:
            limits = replace(limits, groups=(), scalars=())
        return RoundPlan(
            run=self.id,
            number=number,
            kind=kind,
            trained=self.engine.progress.trained,
            spec=self.spec,
            model=self._model,
            strategy_state=self._strategy_state,
            manifest=self._manifest,
            limits=limits,
            stream=stream,
            clip=clip or 0.0,
            barred=frozenset(self._taken),
            goals=self._goals,
        )

    def _clip(self) -> float | None:
        """The clip of the next round; None without [privacy]."""
        settings = self.spec.build_privacy()
        if settings is None:
            return None
        note = json.loads(self._strategy_state) if self._strategy_state else {}
        return float(note.get("clip", settings.clip))

    def _round_ended(self, outcome: Outcome) -> None:
        shell = self.round
        assert shell is not None
        if not shell.goes_on:
            self.round = None
        self._changed()
        if outcome.model is None:
            self.feed(RoundAbandoned(outcome.reason, fault=outcome.fault))
            return
        tell(self._history, outcome.observed, self.spec.build_selection())
        self._model, self._strategy_state = outcome.model, outcome.strategy_state
        plan = self.spec.privacy_plan()
        if plan is not None and shell.plan.kind is RoundKind.TRAIN:
            self._taken = plan.taken(self._taken, outcome.part, shell.plan.trained + 1)
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


class Runs:
    """All active runs of a server."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._drivers: dict[str, RunDriver] = {}
        self._forgetting: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Go on with every run that was active."""
        world = self._world
        rounds = await world.in_ledger(world.ledger.open_rounds)
        active = await world.in_ledger(world.ledger.list_runs, ACTIVE)
        kept = {(row["run"], row["number"]) for row in rounds}
        world.spool.sweep(kept.union(*map(_worked_on, active)))
        for row in active:
            try:
                await self._drive(row)
            except Exception as error:  # one run that cannot go on must not stop the others
                log.exception("run %s cannot go on", row["id"], extra=about(run=row["id"]))
                why = str(error) if isinstance(error, FedloomError) else repr(error)
                await world.in_ledger(
                    partial(world.ledger.set_run_state, row["id"], "failed", why, ended=True)
                )

    async def stop(self) -> None:
        """Leave every run as it is."""
        for driver in list(self._drivers.values()):
            await driver.stop()
            await driver.settled()

    async def _drive(self, row: Row) -> None:
        world = self._world
        manifest = await world.in_disk(world.models.manifest, row["model"])
        driver = RunDriver(row, manifest, world, self)
        self._drivers[driver.id] = driver
        try:
            await driver.start(row)
        except Exception:
            self.ended(driver)
            raise

    async def submit(self, values: Mapping[str, Any], model: str, run: str = "") -> str:
        """Start a run from a model that is in the store.

        Args:
            values: the specification, as parsed TOML or JSON.
            model: digest.
            run: its id, of `new_id`; drawn here if empty.

        Returns:
            The run's id.

        Raises:
            UsageError: the specification or the model does not do.
        """
        spec = parse(values)
        world = self._world
        manifest = await world.in_disk(world.models.manifest, model)
        spec.sums(manifest)  # refuses what is not for this model
        run = run or new_id(spec.name)
        row: dict[str, Any] = {
            "id": run,
            "name": spec.name,
            "spec": spec.as_dict(),
            "state": RunState.RUNNING.value,
            "reason": "",
            "model": model,
            "privacy": _claim(spec),
            "strategy_state": await world.in_disk(first_note, world.models, spec, model),
        }
        await world.in_disk(world.noise.make, run, spec)
        await world.in_ledger(world.ledger.add_run, row, manifest.size_bytes)
        world.live.changed("run", run)
        stored = await world.in_ledger(world.ledger.run, run)
        try:
            await self._drive(require_run(stored, run))
        except Exception as error:  # it is stored: without a word it would look as if it ran
            fail = partial(world.ledger.set_run_state, run, "failed", repr(error), ended=True)
            await world.in_ledger(fail)
            raise
        asked = json.dumps(spec.as_dict(), sort_keys=True)
        log.info("run %s submitted: %s", run, asked, extra=about(run=run))
        return run

    def get(self, run: str) -> RunDriver | None:
        """An active run."""
        return self._drivers.get(run)

    def longest_header_bytes(self) -> int:
        """The longest header that an update of any active run may have."""
        return max((driver.header_limit_bytes for driver in self._drivers.values()), default=0)

    def sends(self, digest: str) -> bool:
        """Does an open round send this beside its model?"""
        rounds = [driver.round for driver in self._drivers.values()]
        return any(shell is not None and shell.sends(digest) for shell in rounds)

    def round(self, key: tuple[str, int]) -> RoundShell:
        """The open round that a message speaks of.

        Raises:
            Refusal: UNKNOWN_RUN, STALE_ROUND or FUTURE_ROUND.
        """
        driver = self._drivers.get(key[0])
        if driver is None:
            raise Refusal(Code.UNKNOWN_RUN, f"Expected an active run, got {key[0][:80]!r}.")
        latest = driver.engine.progress.opened
        if key[1] > latest:
            raise Refusal(Code.FUTURE_ROUND, f"Expected a round of at most {latest}, got {key[1]}.")
        if driver.round is None or not driver.round.speaks_of(key[1]):
            raise Refusal(
                Code.STALE_ROUND, f"Expected round {latest}, got {key[1]}, which is over."
            )
        return driver.round

    async def command(self, run: str, action: str, argument: float | str = "") -> None:
        """Do what an operator asks, and return when it is stored.

        Raises:
            UsageError: there is no such active run, or the action does not fit its state.
        """
        driver = self._drivers.get(run)
        if driver is None:
            world = self._world
            row = require_run(await world.in_ledger(world.ledger.run, run), run)
            raise UsageError(f"Expected an active run, got one that is {row['state']}.")
        driver.command(action, argument)
        await driver.settled()

    def let_go(self, client: str, reason: str) -> None:
        """Have no round wait for a client any more."""
        for driver in list(self._drivers.values()):
            driver.let_go(client, reason)

    async def roll_back(self, run: str, number: int) -> Point:
        """Have a run go on from the model and the state of an earlier committed round.

        One that has ended comes back, paused. Doing it twice changes nothing, as long as no round
        was committed in between.

        Returns:
            What was undone.

        Raises:
            UsageError: there is no such round, or it does not fit the run.
            IntegrityError: files of that round are gone.
            UnavailableError: a round is being committed and takes long.
        """
        world, ledger = self._world, self._world.ledger
        row = require_run(await world.in_ledger(ledger.run, run), run)
        point = await self.look_back(row, number)
        if not point.undone:
            return point
        driver = self._drivers.get(run)
        if driver is not None and run not in self._forgetting:
            # Whoever asked may go away; the driver must not miss what the ledger did.
            await asyncio.shield(asyncio.ensure_future(driver.roll_back(point)))
        else:
            if run in self._forgetting:
                await self._forgetting[run]
            why = f"rolled back to round {number} by the operator: resume it to go on"
            await world.in_ledger(partial(ledger.roll_back, run, number, revive=why))
            await self._drive(require_run(await world.in_ledger(ledger.run, run), run))
        told = about(run=run, number=number)
        log.warning(
            "run %s rolled back to round %d; undone: %s", run, number, point.undone, extra=told
        )
        return point

    async def look_back(self, row: Row, number: int) -> Point:
        """What rolling a run back to a round would do.

        Args:
            row: of the run.
            number: of the round.

        Raises:
            UsageError: there is no such round, or the run cannot be rolled back.
            IntegrityError: files of that round are gone.
        """
        world, spec = self._world, parse(row["spec"])
        settings = spec.build_privacy()
        if settings is not None and settings.restart_every is not None:
            raise UsageError(
                "Expected a run whose rounds can be undone, got one with dp_ftrl, whose noise is "
                "on the sum of all rounds: submit a new run from the model instead."
            )
        point = await world.in_ledger(world.ledger.point, row, number)
        await world.in_disk(world.models.require, {point.digest, *digests_in(point.state)})
        return point

    async def change_goals(self, run: str, goal: int, quorum: int) -> None:
        """Change goal and quorum of an active run, and return when it is stored.

        Raises:
            UsageError: there is no such active run, or the numbers do not do.
        """
        driver = self._drivers.get(run)
        if driver is None:
            raise UsageError("Expected an active run, got one that has ended.")
        driver.change_goals(goal, quorum)
        await driver.settled()

    def ended(self, driver: RunDriver) -> None:
        """A run needs nobody any more; it is forgotten once the ledger says how it ended."""
        if driver.id not in self._forgetting and driver.id in self._drivers:
            self._world.fleet.forget(driver)
            self._forgetting[driver.id] = asyncio.ensure_future(self._forget(driver))

    async def _forget(self, driver: RunDriver) -> None:
        await driver.settled()
        self._drivers.pop(driver.id)
        self._forgetting.pop(driver.id)


def new_id(name: str) -> str:
    """Draw the id of a run with this name."""
    return f"{name}-{secrets.token_hex(3)}"


def _leaves_work(rows: Sequence[Row]) -> bool:
    """Did the last round end so that clients of it may go on?"""
    return bool(rows) and _stands(rows[-1]) and rows[-1]["kind"] == "train"


def _stands(row: Row) -> bool:
    """Was this round committed, and is the run still based on it?"""
    return row["state"] == "committed" and row["undone_at"] is None


def _worked_on(run: Row) -> set[tuple[str, int]]:
    """Rounds of a run that clients may still work on although they are over."""
    try:
        config = parse(run["spec"]).buffer_config()
    except FedloomError:
        return set()  # whoever drives it says so
    if config is None:
        return set()
    first = max(1, run["last_round"] - config.max_staleness)
    return {(run["id"], number) for number in range(first, run["last_round"] + 1)}


def _claim(spec: RunSpec) -> dict[str, Any] | None:
    plan = spec.privacy_plan()
    return None if plan is None else plan.claim()
