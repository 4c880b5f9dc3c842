"""Holds a parent's rounds for the devices of this server, one round for each task of the parent.

Invariants: a round has one sum, made once it has closed; the next round of a run opens only when
the parent's word on the last one is stored.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedloom.protocol.errors import FedloomError, UsageError
from fedloom.protocol.task_kind import Kind
from fedloom.protocol.task_message import from_message
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import Abort, Done, RunState
from fedloom.server.ledger import SENT
from fedloom.server.metrics.log_buffer import about
from fedloom.server.planning.round_plan import UpstreamRound
from fedloom.server.planning.spec import RunSpec, parse
from fedloom.server.planning.state_note import StateNote
from fedloom.server.rounds.context import RoundsContext
from fedloom.server.rounds.manager import Runs
from fedloom.server.rounds.run_driver import RunDriver
from fedloom.server.rounds.upstream.orders import RoundOrder

log = logging.getLogger(__name__)

POLL_S = 0.1
"""Interval at which a round that waits for devices counts them."""
WITHDRAWN = "the parent server has withdrawn the task"


class NoDevicesError(Exception):
    """No device is there to hold a round for, or too few for a masking session."""


class Collector:
    """Holds rounds of a parent.

    Args:
        runs: of this server.
        context: of its rounds.
    """

    def __init__(self, runs: Runs, context: RoundsContext) -> None:
        self._runs, self._context = runs, context

    def devices(self, spec: RunSpec) -> int:
        """Connected devices that may take part in a round; of a site, as many as it may have."""
        fleet = self._context.fleet
        attending = [client for client in fleet.reachable() if not fleet.study_of(client)]
        if spec.sites:
            registered = map(fleet.devices_of, attending)
            return sum(count for count in registered if count >= spec.least_devices)
        return sum(not fleet.devices_of(client) for client in attending)

    async def collect(
        self, task: fleet_pb2.Task, find: Callable[[str], Path], site: str, ends_at: float
    ) -> None:
        """Hold a round, and return when its sum is in the outbox.

        Args:
            task: the parent's.
            find: returns where a file of the task is, by its digest.
            site: name of this server at the parent.
            ends_at: the parent's deadline, monotonic seconds.

        Raises:
            NoDevicesError: no device is connected, or too few for a masking session.
            UsageError: the round cannot be held, or was abandoned; the message says why.
        """
        run, number, context = task.key.run, task.key.round, self._context
        asked = from_message(task)
        state = await context.in_disk(context.passed.take, asked, find, context.models)
        driver = await self._driver(task, site)
        await self.settle(run, task.memory_round, number - 1)
        if driver.engine.progress.opened == number:
            if driver.round is None:
                await self._check_sent(driver, number)
                return
        else:
            await self._open(driver, task, state, site, ends_at)
        outcome = await driver.ordered(number)
        if outcome.model is None:
            raise _abandoned(driver, outcome.reason)

    def withdraw(self, run: str, number: int) -> None:
        """The parent has withdrawn a task: its round is aborted, unless it has closed."""
        if (driver := self._runs.get(run)) is not None:
            self._abort(driver, number)

    async def _driver(self, task: fleet_pb2.Task, site: str) -> RunDriver:
        context, run = self._context, task.key.run
        driver = self._runs.get(run)
        spec = _spec_of(task, sites=self._has_sites() if driver is None else driver.spec.sites)
        if driver is None and await context.in_ledger(context.ledger.run, run) is not None:
            driver = await self._runs.resume_of_parent(run)
        elif driver is None:
            await self._runs.submit(spec.as_dict(), task.model.digest, run, upstream=site)
            driver = self._runs.get(run)
            assert driver is not None
        if driver.site != site or driver.spec != spec:
            raise UsageError(f"the run {run} of this site is another one than the parent's.")
        if driver.engine.state is not RunState.RUNNING:
            raise UsageError(
                f"the run {run} is {driver.engine.state} at this site: resume it there."
            )
        return driver

    def _has_sites(self) -> bool:
        """Whether clients of this server are sites themselves, whose sums it adds up."""
        fleet = self._context.fleet
        return any(not fleet.study_of(site) for site in fleet.sites())

    async def _end(self, driver: RunDriver, over: int) -> None:
        """Abort a round that the parent has ended, if it is open here, and wait for its end."""
        opened = driver.engine.progress.opened
        if driver.round is not None and opened <= over:
            self._abort(driver, opened)
            await driver.ordered(opened)

    def _abort(self, driver: RunDriver, number: int) -> None:
        round_ = driver.round
        if round_ is not None and round_.plan.number == number and round_.engine.state.is_open:
            with suppress(FedloomError):  # it has just closed
                round_.feed(Abort(WITHDRAWN))

    async def _check_sent(self, driver: RunDriver, number: int) -> None:
        """Check that a round that is over here was not abandoned.

        Raises:
            UsageError: it was.
        """
        row = await self._context.in_ledger(self._context.ledger.round, driver.id, number)
        if row is None or row.state != SENT:
            raise _abandoned(driver, "it is missing" if row is None else row.reason)

    async def _open(
        self, driver: RunDriver, task: fleet_pb2.Task, state: StateNote, site: str, ends_at: float
    ) -> None:
        if driver.engine.progress.opened > task.key.round:
            raise UsageError(f"this site has held later rounds than {task.key.round} already.")
        asked = from_message(task)
        await self._check_claim(driver)
        await self._devices_attend(driver, task.site.devices)
        goal = min(task.site.devices, self.devices(driver.spec))
        above = task.site.path
        left_s = max(0.0, ends_at - time.monotonic())
        margin_s = self._context.sending.margin_s(
            left_s, task.model.size_bytes, sessions=driver.spec.own_sessions() is not None
        )
        order = RoundOrder(
            number=asked.round,
            kind=asked.kind,
            trained=max(0, asked.training_round - (asked.kind is Kind.TRAIN)),
            model=task.model.digest,
            state=replace(state, config=_differing(state.config, driver.spec.config)).text(),
            upstream=UpstreamRound(
                site=site,
                path=f"{above}/{site}" if above else site,
                goal=goal,
                deadline_s=max(1.0, left_s - margin_s),
            ),
        )
        await driver.order(order)
        log.info(
            "round %d of %s is held for %d devices", order.number, driver.id, goal,
            extra=about("", driver.id, order.number),
        )  # fmt: skip

    async def _check_claim(self, driver: RunDriver) -> None:
        """Check that the privacy claim of a run has room for a round of its devices' noise.

        Raises:
            UsageError: it has none; a true parent does not ask for more.
        """
        context, plan = self._context, driver.spec.privacy_plan()
        if plan is not None and driver.engine.progress.opened:
            rows = await context.in_ledger(context.ledger.list_rounds, driver.id)
            if (held := sum(row.kind == Kind.TRAIN.value for row in rows)) >= plan.last:
                raise UsageError(
                    f"Expected at most {plan.last} training rounds, as the run's privacy claim "
                    f"says, got another one after {held}."
                )

    async def _devices_attend(self, driver: RunDriver, places: int) -> None:
        """Wait for the devices of the last round, which return after a restart, or for any.

        With masking sessions, for those of a smallest one at least.

        Raises:
            NoDevicesError: none came within the grace period of the run, or too few for a session.
        """
        context, least = self._context, driver.spec.least_devices
        if places < least:
            raise NoDevicesError(_sits_out(f"its task has places for {places} devices", least))
        rows = await context.in_ledger(context.ledger.list_rounds, driver.id)
        before = next((row.accepted for row in reversed(rows) if row.accepted), least)
        patience_s = driver.spec.round_config().patience_s
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                wanted = min(max(before, least), places)
                while self.devices(driver.spec) < wanted:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(POLL_S)
        found = self.devices(driver.spec)
        if 0 < found < least:
            there = f"{found} devices are connected after {patience_s:g} s, the run's patience_s"
            raise NoDevicesError(_sits_out(there, least))
        if not found:
            who = "site" if driver.spec.sites else "device"
            raise NoDevicesError(
                f"no {who} was connected to this site within {patience_s:g} s, the run's "
                "patience_s."
            )

    async def settle(self, run: str, counted: int, over: int, *, ended: bool = False) -> None:
        """Store the parent's word on the rounds whose sums were sent.

        Args:
            run: id.
            counted: the last round that was committed with a sum of this site; 0 for none.
            over: the last round that is over, committed or not.
            ended: whether the run has ended at the parent.
        """
        context, driver = self._context, self._runs.get(run)
        if driver is None or not driver.site:
            return
        await self._end(driver, over)
        kind = Kind.EVALUATE if driver.spec.evaluate_only else Kind.TRAIN
        await context.in_ledger(context.ledger.settle_sent, run, kind.value, counted, over)
        context.live.changed("run", run)
        if ended and driver.round is None:
            driver.feed(Done())
        await driver.tell_sites()

    def acknowledged(self, run: str, number: int) -> None:
        """The parent has the sum of a round."""
        self._context.sending.acknowledged(run, number)

    def held(self) -> list[str]:
        """The parent's runs that have not ended here."""
        return [driver.id for driver in self._runs.of_parent()]


def _differing(config: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """What a task asks of the client's code that is not in the run's specification."""
    same = {(name, type(value), value) for name, value in usual.items()}
    return {n: v for n, v in config.items() if (n, type(v), v) not in same}


def _spec_of(task: fleet_pb2.Task, *, sites: bool) -> RunSpec:
    """The run of a task, as this site holds it for its devices, or for `sites` of its own.

    Raises:
        UsageError: this version does not know it.
    """
    try:
        values = json.loads(task.site.spec)
    except ValueError as error:
        raise UsageError(f"Expected the run's specification as JSON, got {error}.") from None
    return replace(parse(values), sites=sites, study="")


def _abandoned(driver: RunDriver, reason: str) -> UsageError:
    """The error for the parent; why a masking session ended may name devices, which stay here."""
    told = reason if driver.spec.own_sessions() is None else reason.partition("; ")[0]
    return UsageError(f"the site's round was abandoned: {told}")


def _sits_out(what: str, least: int) -> str:
    return (
        f"this site sits the round out: {what}, and a masking session of the run has at least "
        f"{least} (masking.min_group)."
    )
