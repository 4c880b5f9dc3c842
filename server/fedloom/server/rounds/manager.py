"""All active runs of a server: submit, find, command, roll back and continue them.

Invariant: a run that cannot continue does not stop other runs.
"""

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedloom.protocol.errors import Code, FedloomError, Refusal, UsageError
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.background_tasks import BackgroundTasks, to_the_end
from fedloom.server.cool_off import CoolOffs
from fedloom.server.engine import RunState
from fedloom.server.engine.conduct import Conduct
from fedloom.server.ledger import Point, require_run
from fedloom.server.ledger.rows import RunRow
from fedloom.server.metrics.log_buffer import about
from fedloom.server.planning import limits
from fedloom.server.planning.best import mark
from fedloom.server.planning.fair_share import check_priority, check_share
from fedloom.server.planning.masking import check_deployed
from fedloom.server.planning.privacy_budget import Bar, RunSpending
from fedloom.server.planning.sites.gates import check_gates
from fedloom.server.planning.spec import RunSpec, parse
from fedloom.server.planning.state_note import StateNote
from fedloom.server.rounds.context import RoundsContext
from fedloom.server.rounds.member_records import Record
from fedloom.server.rounds.messages import app_runner
from fedloom.server.rounds.round_driver import RoundDriver
from fedloom.server.rounds.run_driver import RunDriver
from fedloom.server.rounds.run_position import best_at
from fedloom.server.rounds.sharing import queue
from fedloom.server.rounds.state_files import first_note
from fedloom.server.rounds.storage_retry import retry_storage
from fedloom.server.rounds.upstream import verdicts
from fedloom.server.spending.privacy_ledger import PrivacyGuard, spending_of

log = logging.getLogger(__name__)

ACTIVE = (RunState.RUNNING.value, RunState.PAUSED.value)


class NoBudgetError(UsageError):
    """A privacy budget has no room for a run; the message names other runs and labels."""


class Runs:
    """All active runs of a server."""

    def __init__(self, context: RoundsContext) -> None:
        self._context = context
        self._drivers: dict[str, RunDriver] = {}
        self._forgetting: dict[str, asyncio.Task[None]] = {}
        self._guard = PrivacyGuard(context.ledger, context.in_ledger)
        self._studies: dict[str, str] = {}
        self._starting = asyncio.Lock()
        self._background = BackgroundTasks()
        self._stopping = False

    async def start(self) -> None:
        """Continue every run that was active.

        Raises:
            UsageError: one cannot run on servers with gates, or one that is queued.
        """
        context = self._context
        rounds = await context.in_ledger(context.ledger.open_rounds)
        rows = await context.in_ledger(context.ledger.list_runs)
        self._studies = {row.id: row.study for row in rows if row.study}
        active = [row for row in rows if row.state in ACTIVE]
        for row in rows if context.gates else ():
            if row.state in (*ACTIVE, queue.QUEUED):
                _check_gates(row)
        kept = {(row.run, row.number) for row in rounds}
        context.spool.sweep(kept.union(*map(_worked_on, active)))
        await app_runner.sweep(context, {row.id for row in active})
        await self.apply_budgets()
        for row in active:
            await self._continue(row)
        await self._start_queued()

    async def _continue(self, row: RunRow) -> None:
        context = self._context
        try:
            await self._drive(row)
        except Exception as error:  # one run that cannot continue must not stop the others
            log.exception("run %s cannot continue", row.id, extra=about(run=row.id))
            why = str(error) if isinstance(error, FedloomError) else repr(error)
            await context.in_ledger(
                partial(context.ledger.set_run_state, row.id, "failed", why, ended=True)
            )
            await self.apply_budgets()  # what it had reserved is free

    async def _start_queued(self) -> None:
        """Start the queued runs that have a place; the place of one that cannot start is free."""
        context, ledger = self._context, self._context.ledger
        async with self._starting:
            while due := await context.in_ledger(
                queue.due, ledger, self._studies_running(), context.max_running
            ):
                for run in due:
                    await context.in_ledger(ledger.set_run_state, run, RunState.RUNNING.value, "")
                    log.info("run %s leaves the queue", run, extra=about(run=run))
                    await self._continue(require_run(await context.in_ledger(ledger.run, run), run))
                    context.live.changed("run", run)

    def _studies_running(self) -> list[str]:
        """The study of each running run."""
        drivers = self._drivers.values()
        return [each.study for each in drivers if each.engine.state is RunState.RUNNING]

    def _has_place(self) -> None:
        if self._context.max_running and not self._stopping:
            self._background.start(self._start_queued())

    async def stop(self) -> None:
        """Stop driving; the runs do not change and continue at the next start."""
        self._stopping = True
        async with self._starting:
            self._background.cancel()
        for driver in list(self._drivers.values()):
            await driver.stop()
            await driver.settled()

    async def _drive(self, row: RunRow) -> None:
        context = self._context
        if context.remote is not None:  # a fault of the object store must not fail the run
            fetching = partial(context.in_disk, context.models.local, row.model)
            await retry_storage(fetching, f"run {row.id}", about(run=row.id))
        manifest = await context.in_disk(context.models.manifest, row.model)
        driver = RunDriver(row, manifest, context, self.ended, self._has_place)
        self._check_kind(driver.spec)
        self._drivers[driver.id] = driver
        try:
            await driver.start(row)
        except Exception:
            self.ended(driver)
            raise

    async def submit(
        self, values: Mapping[str, Any], model: str, run: str = "", *, upstream: str = ""
    ) -> str:
        """Start a run from a stored model, or queue it.

        Args:
            values: the specification, as parsed TOML or JSON.
            model: digest.
            run: its id, from `new_id`; empty to draw one.
            upstream: name of this server at the parent whose run it is; empty for one of its own.

        Returns:
            The run's id.

        Raises:
            UsageError: the specification or the model is not valid, or a privacy budget has no room
                for the run.
        """
        spec = parse(values)
        context = self._context
        self._check_kind(spec)
        app_runner.check(spec, context)
        manifest = await context.in_disk(context.models.manifest, model)
        limits.sums(spec, manifest)  # refuses a specification that does not fit the model
        run = run or new_id(spec.name)
        queues, note = bool(context.max_running) and not upstream, None
        if not upstream:  # the strategy's state is the parent's
            note = await context.in_disk(first_note, context.models, spec, model)
        row: dict[str, Any] = {
            "id": run,
            "name": spec.name,
            "spec": spec.as_dict(),
            "state": queue.QUEUED if queues else RunState.RUNNING.value,
            "reason": "",
            "priority": spec.priority,
            "share": spec.share,
            "study": spec.study,
            "model": model,
            "privacy": limits.claim(spec, manifest),
            "strategy_state": note,
            "upstream": upstream or None,
        }
        spending = RunSpending.of(run, row["spec"], row["privacy"], order=time.time())
        async with self._within_budgets(spending):
            await context.in_disk(context.noise.make, run, spec)
            await context.in_ledger(context.ledger.add_run, row, manifest.size_bytes)
        if spec.study:
            self._studies[run] = spec.study
        asked = json.dumps(spec.as_dict(), sort_keys=True)
        log.info("run %s submitted: %s", run, asked, extra=about(run=run))
        context.live.changed("run", run)
        if queues:
            await self._start_queued()
            return run
        stored = await context.in_ledger(context.ledger.run, run)
        try:
            await self._drive(require_run(stored, run))
        except Exception as error:  # the row exists: without a reason it would look as if it ran
            fail = partial(context.ledger.set_run_state, run, "failed", repr(error), ended=True)
            await context.in_ledger(fail)
            raise
        return run

    def _check_kind(self, spec: RunSpec) -> None:
        """Check that this server can run it; after a restart it may lack TLS, or have gates.

        Raises:
            UsageError: it cannot.
        """
        check_deployed(spec.build_masking(), spec.build_privacy(), tls=bool(self._context.root_pem))
        if self._context.gates:
            check_gates(spec)

    @asynccontextmanager
    async def _within_budgets(self, run: RunSpending) -> AsyncIterator[None]:
        """Check that all budgets have room for a run; meanwhile no other run is checked.

        Raises:
            UsageError: a budget has no room.
        """
        async with self._guard.lock:
            if why := await self._guard.refusal(run):
                raise NoBudgetError(why)
            yield
            await self._rebar()

    async def apply_budgets(self) -> None:
        """Let every run draw those clients that the privacy budgets allow.

        To be called when budgets or operators' labels have changed, and when a run has ended.
        """
        async with self._guard.lock:
            await self._rebar()

    async def _rebar(self) -> None:
        before, self._context.bars = self._context.bars, await self._guard.bars()
        for run, bar in self._context.bars.items():
            if bar != before.get(run):
                whom = "any client" if bar.everyone else f"{len(bar.names)} clients"
                log.warning(
                    "run %s may not draw %s: their privacy budget has no room for it",
                    run, whom, extra=about(run=run),
                )  # fmt: skip
        for driver in list(self._drivers.values()):
            driver.rebar(before.get(driver.id, Bar()))

    @property
    def bars(self) -> Mapping[str, Bar]:
        """The clients that each active run may not draw; only runs that have some."""
        return self._context.bars

    @property
    def studies(self) -> set[str]:
        """Studies that runs are of, ended ones too."""
        return set(self._studies.values())

    def study_of(self, run: str) -> str:
        """The study of a run; empty for none, and for an unknown run."""
        return self._studies.get(run, "")

    def get(self, run: str) -> RunDriver | None:
        """An active run."""
        return self._drivers.get(run)

    def longest_header_bytes(self) -> int:
        """The largest header that an update of any active run may have, in bytes."""
        return max(
            (driver.position.header_limit_bytes for driver in self._drivers.values()), default=0
        )

    def of_parent(self) -> list[RunDriver]:
        """The active runs of a parent server, which this one holds as a site."""
        return [driver for driver in self._drivers.values() if driver.site]

    async def resume_of_parent(self, run: str) -> RunDriver:
        """Drive a run that had finished by the parent's word: it was rolled back there.

        Args:
            run: its id.

        Raises:
            UsageError: it was not the parent that ended it.
        """
        context = self._context
        if run in self._forgetting:
            await self._forgetting[run]
        row = require_run(await context.in_ledger(context.ledger.run, run), run)
        if row.state != RunState.FINISHED.value or not row.upstream:
            raise UsageError(f"the run {run} is {row.state} at this site.")
        await context.in_ledger(context.ledger.set_run_state, run, RunState.RUNNING.value, "")
        await self._drive(require_run(await context.in_ledger(context.ledger.run, run), run))
        return self._drivers[run]

    async def tell_site(self, site: str, runs: Sequence[str]) -> None:
        """Tell a site that has connected how runs go on that it still holds."""
        context = self._context
        for run in runs if context.fleet.devices_of(site) else ():
            row = await context.in_ledger(context.ledger.run, run)
            if row is not None and (row.study or "") == context.fleet.study_of(site):
                await verdicts.tell(context, run, [site], ended=row.state not in ACTIVE)

    def draw(self) -> None:
        """Let every run that waits for clients take them now, in turn."""
        self._context.turns.wake()

    def wanted(self, study: str) -> int:
        """Clients that the rounds of a study's runs draw at once."""
        return sum(each.wanted for each in self._drivers.values() if each.study == study)

    @property
    def open_rounds(self) -> list[RoundDriver]:
        """The open round of every run that has one."""
        return [driver.round for driver in self._drivers.values() if driver.round is not None]

    async def offers(self, digest: str) -> bool:
        """Whether an open round offers the file of this digest for download."""
        return any(each.sends(digest) for each in self.open_rounds)

    async def file_for(self, client: str, digest: str) -> Path | None:
        """A file other than a model that this client may download; None if there is none."""
        found = (each.file_for(client, digest) for each in self.open_rounds)
        return next((path for path in found if path is not None), None)

    def record_of(self, client: str, digest: str) -> tuple[Record, bool]:
        """The record that counts a file that a client is sent, and whether the client needs it."""
        for driver in self.open_rounds:
            if (found := driver.record_of(client, digest)) is not None:
                return found
        return Record(), False

    def round(self, key: tuple[str, int]) -> RoundDriver:
        """The driver of the round of a message.

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

    async def find(self, header: fleet_pb2.UpdateHeader) -> RoundDriver:
        """The driver of the round of an update; raises as `round` does."""
        return self.round((header.task.run, header.task.round))

    def lacks(self, header: fleet_pb2.UpdateHeader) -> bool:
        """Whether it is certain that no update of this member's task was accepted so far."""
        driver = self._drivers.get(header.task.run)
        if driver is None or driver.round is None:
            return False
        return driver.round.lacks(header.client, header.task.round)

    def trace_of(self, run: str) -> str:
        """The trace of a run's open round; empty for none."""
        driver = self._drivers.get(run)
        return "" if driver is None or driver.round is None else driver.round.trace.parent

    async def command(self, run: str, action: str, argument: float | str = "") -> bool:
        """Carry out an operator's command, and return when it is stored.

        Returns:
            False if another command has resumed or ended the run meanwhile; this one does nothing.

        Raises:
            UsageError: there is no such active run, or the action does not fit its state.
        """
        if action == "stop" and run not in self._drivers and await self._leave_queue(run):
            return True
        driver = await self._active(run, action)
        if action in ("resume", "retry") and _is_paused(driver):
            async with self._revived(run):
                if not _is_paused(driver):
                    return False
                driver.command(action, argument)
        else:
            driver.command(action, argument)
        await driver.settled()
        return True

    async def _active(self, run: str, action: str) -> RunDriver:
        """The driver of an active run.

        Raises:
            UsageError: the run has not started, or has ended.
        """
        driver = self._drivers.get(run)
        if driver is not None:
            return driver
        row = require_run(await self._context.in_ledger(self._context.ledger.run, run), run)
        todo = (
            "it can be stopped, and its priority moves it in the queue."
            if row.state == queue.QUEUED
            else "a run that has ended stays as it is. Submit it again; its last model as --model "
            "continues it."
        )
        raise UsageError(
            f"Expected an active run to {action}, got {run}, which is {row.state}: {todo}"
        )

    async def _leave_queue(self, run: str) -> bool:
        """Stop a queued run; False if it is not queued."""
        context, ledger = self._context, self._context.ledger
        async with self._starting:
            row = require_run(await context.in_ledger(ledger.run, run), run)
            if row.state != queue.QUEUED:
                return False
            why = "stopped by the operator before it started"
            state = RunState.STOPPED.value
            await context.in_ledger(partial(ledger.set_run_state, run, state, why, ended=True))
        context.live.changed("run", run)
        await self.apply_budgets()  # what it had reserved is free
        return True

    async def change_rank(self, run: str, priority: int | None, share: float | None) -> None:
        """Change the priority or the share of a queued or active run; None keeps the present one.

        Raises:
            UsageError: it has ended, or a number is out of its range.
        """
        context = self._context
        async with self._starting:  # a run that leaves the queue now has its rank read before
            row = require_run(await context.in_ledger(context.ledger.run, run), run)
            if row.state not in (*ACTIVE, queue.QUEUED):
                raise UsageError(f"Expected a run that is queued or active, got one {row.state}.")
            priority = row.rank[0] if priority is None else priority
            share = row.rank[1] if share is None else share
            check_priority(priority)
            check_share(share)
            await context.in_ledger(context.ledger.set_rank, run, priority, share)
            context.turns.change(run, priority=priority, share=share)
        context.live.changed("run", run)

    @asynccontextmanager
    async def _revived(self, run: str) -> AsyncIterator[None]:
        """Check that all budgets have room for a run that is to go on, as `_within_budgets`."""
        context = self._context
        row = require_run(await context.in_ledger(context.ledger.run, run), run)
        async with self._within_budgets(spending_of(replace(row, state="running"))):
            yield

    def let_go(self, client: str, reason: str) -> None:
        """Make every round stop waiting for a client."""
        for driver in list(self._drivers.values()):
            driver.let_go(client, reason)

    @property
    def cool_offs(self) -> CoolOffs:
        """The clients that fail again and again."""
        return self._context.cool_offs

    def conducts(self) -> dict[str, Conduct]:
        """Run → how its open round treats some clients for their part in masking sessions."""
        found = {run: d.round.plan.conduct for run, d in self._drivers.items() if d.round}
        return {run: conduct for run, conduct in found.items() if conduct != Conduct()}

    def cools_off(self, client: str, *, private: bool) -> bool:
        """Whether a run may not draw a client now; see `RoundsContext.cools_off`."""
        return self._context.cools_off(client, private=private)

    async def roll_back(self, run: str, number: int) -> Point:
        """Roll a run back to the model and the state of an earlier committed round.

        A run that has ended becomes paused. A repeat changes nothing, unless a round was committed
        in between.

        Returns:
            What was undone.

        Raises:
            UsageError: there is no such round, or the run cannot be rolled back.
            IntegrityError: files of that round are missing.
            UnavailableError: the commit of the open round takes too long.
        """
        context, ledger = self._context, self._context.ledger
        row = require_run(await context.in_ledger(ledger.run, run), run)
        point = await self.look_back(row, number)
        if not point.undone:
            return point
        driver = self._drivers.get(run)
        if driver is not None and run not in self._forgetting:
            # The caller may disconnect; the driver must not miss the change in the ledger.
            await to_the_end(driver.roll_back(point))
        else:
            if run in self._forgetting:
                await self._forgetting[run]
            why = f"rolled back to round {number} by the operator: resume it to continue"
            spec = parse(row.spec)
            best = mark(spec, await context.in_ledger(best_at, ledger, spec, run, point))
            async with self._revived(run):
                await context.in_ledger(
                    partial(ledger.roll_back, run, number, best=best, revive=why)
                )
            await self._drive(require_run(await context.in_ledger(ledger.run, run), run))
        context.live.changed("run", run)
        extra = about(run=run, number=number)
        log.warning(
            "run %s rolled back to round %d; undone: %s", run, number, point.undone, extra=extra
        )
        return point

    async def look_back(self, row: RunRow, number: int) -> Point:
        """What a rollback to a round would undo.

        Raises:
            UsageError: there is no such round, or the run cannot be rolled back.
            IntegrityError: files of that round are missing.
        """
        context, spec = self._context, parse(row.spec)
        if row.upstream:
            raise UsageError(
                f"Expected a run of this server, got {row.id} of its parent server: roll it back "
                "there."
            )
        if spec.flower:
            raise UsageError(
                "Expected a run whose rounds can be undone, got one of a Flower ServerApp, which "
                "has used their replies: submit a new run instead."
            )
        settings = spec.build_privacy()
        if settings is not None and settings.correlated:
            raise UsageError(
                f"Expected a run whose rounds can be undone, got one with {settings.mechanism}, "
                "whose noise is on the sum of all rounds: submit a new run from the model instead."
            )
        point = await context.in_ledger(context.ledger.point, row, number)
        files = StateNote.read(point.state).digests | {point.digest}
        await context.in_disk(context.models.require, files)
        return point

    async def change_goals(self, run: str, goal: int, quorum: int) -> None:
        """Change goal and quorum of an active run, and return when it is stored.

        Raises:
            UsageError: there is no such active run, or the numbers are not valid.
        """
        driver = await self._active(run, "change the goal of")
        driver.change_goals(goal, quorum)
        await driver.settled()

    def ended(self, driver: RunDriver) -> None:
        """A run has ended; it is forgotten once the ledger has its state."""
        if driver.id not in self._forgetting and driver.id in self._drivers:
            self._context.fleet.forget(driver)
            self._context.turns.remove(driver.id)
            self._forgetting[driver.id] = asyncio.ensure_future(self._forget(driver))

    async def _forget(self, driver: RunDriver) -> None:
        try:
            await driver.settled()
            await driver.clean()
        except Exception:
            log.exception("run %s: its files are left", driver.id, extra=about(run=driver.id))
        self._drivers.pop(driver.id)
        self._forgetting.pop(driver.id)
        await self.apply_budgets()  # what it had reserved is free
        self._has_place()


def _check_gates(row: RunRow) -> None:
    try:
        spec = parse(row.spec)
    except FedloomError:
        return  # its driver reports the error
    try:
        check_gates(spec)
    except UsageError as error:
        raise UsageError(f"The run {row.id} is {row.state}. {error}") from None


def _is_paused(driver: RunDriver) -> bool:
    return driver.engine.state is RunState.PAUSED


def new_id(name: str) -> str:
    """Draw the id of a new run with this name."""
    return f"{name}-{secrets.token_hex(3)}"


def _worked_on(run: RunRow) -> set[tuple[str, int]]:
    """Rounds of a run that are over, whose clients may still be at work."""
    try:
        config = parse(run.spec).buffer_config()
    except FedloomError:
        return set()  # its driver reports the error
    if config is None:
        return set()
    first = max(1, run.last_round - config.max_staleness)
    return {(run.id, number) for number in range(first, run.last_round + 1)}
