"""Holds a parent's rounds for the devices of this server, one round for each task of the parent.

Invariants: a round has one sum, made once it has closed; the next round of a run opens only when
the parent's word on the last one is stored.
"""

import asyncio
import json
import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fedloom.protocol.errors import FedloomError, UsageError
from fedloom.protocol.task_kind import Kind
from fedloom.protocol.task_message import from_message
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import Abort, Done, RunState
from fedloom.server.ledger import SENT
from fedloom.server.metrics.log_buffer import about
from fedloom.server.planning.round_plan import UpstreamRound
from fedloom.server.planning.spec import RunSpec, parse
from fedloom.server.rounds.context import RoundsContext
from fedloom.server.rounds.manager import Runs
from fedloom.server.rounds.run_driver import RunDriver
from fedloom.server.rounds.upstream.orders import RoundOrder

log = logging.getLogger(__name__)

MARGIN = 0.1
"""Share of the time to the parent's deadline that is left for the upload of the sum."""
POLL_S = 0.1
"""Interval at which a round that waits for devices counts them."""
WITHDRAWN = "the parent server has withdrawn the task"


class NoDevicesError(Exception):
    """No device is there to hold a round for."""


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
            return sum(map(fleet.devices_of, attending))
        return sum(not fleet.devices_of(client) for client in attending)

    async def collect(self, task: fleet_pb2.Task, model: Path, site: str) -> None:
        """Hold a round, and return when its sum is in the outbox.

        Args:
            task: the parent's.
            model: file of its model.
            site: name of this server at the parent.

        Raises:
            NoDevicesError: no device is connected.
            UsageError: the round cannot be held, or was abandoned; the message says why.
        """
        run, number = task.key.run, task.key.round
        driver = await self._driver(task, model, site)
        await self.settle(run, task.memory_round, number - 1)
        if driver.engine.progress.opened == number:
            if driver.round is None:
                await self._check_sent(run, number)
                return
        else:
            await self._open(driver, task, model, site)
        outcome = await driver.ordered(number)
        if outcome.model is None:
            raise UsageError(f"the site's round was abandoned: {outcome.reason}")

    def withdraw(self, run: str, number: int) -> None:
        """The parent has withdrawn a task: its round is aborted, unless it has closed."""
        if (driver := self._runs.get(run)) is not None:
            self._abort(driver, number)

    async def _driver(self, task: fleet_pb2.Task, model: Path, site: str) -> RunDriver:
        context, run = self._context, task.key.run
        driver = self._runs.get(run)
        spec = _spec_of(task, sites=self._has_sites() if driver is None else driver.spec.sites)
        if driver is None and await context.in_ledger(context.ledger.run, run) is not None:
            driver = await self._runs.resume_of_parent(run, model)
        elif driver is None:
            digest = await context.in_disk(context.models.add, model)
            await self._runs.submit(spec.as_dict(), digest, run, upstream=site)
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

    async def _check_sent(self, run: str, number: int) -> None:
        """Check that a round that is over here was not abandoned.

        Raises:
            UsageError: it was.
        """
        row = await self._context.in_ledger(self._context.ledger.round, run, number)
        if row is None or row.state != SENT:
            why = "it is missing" if row is None else row.reason
            raise UsageError(f"the site's round was abandoned: {why}")

    async def _open(self, driver: RunDriver, task: fleet_pb2.Task, model: Path, site: str) -> None:
        context, begun = self._context, asyncio.get_running_loop().time()
        if driver.engine.progress.opened > task.key.round:
            raise UsageError(f"this site has held later rounds than {task.key.round} already.")
        asked = from_message(task)
        digest = task.model.digest
        if context.models.size(digest) is None:
            await context.in_disk(context.models.add, model)
        await self._devices_attend(driver, task.site.devices)
        goal = min(task.site.devices, self.devices(driver.spec))
        above = task.site.path
        left_s = asked.deadline_s - (asyncio.get_running_loop().time() - begun)
        order = RoundOrder(
            number=asked.round,
            kind=asked.kind,
            trained=max(0, asked.training_round - (asked.kind is Kind.TRAIN)),
            model=digest,
            upstream=UpstreamRound(
                site=site,
                path=f"{above}/{site}" if above else site,
                goal=goal,
                deadline_s=max(1.0, left_s * (1 - MARGIN)),
            ),
        )
        await driver.order(order)
        log.info(
            "round %d of %s is held for %d devices", order.number, driver.id, goal,
            extra=about("", driver.id, order.number),
        )  # fmt: skip

    async def _devices_attend(self, driver: RunDriver, places: int) -> None:
        """Wait for the devices of the last round, which return after a restart, or for any.

        Raises:
            NoDevicesError: none came within the grace period of the run.
        """
        context = self._context
        rows = await context.in_ledger(context.ledger.list_rounds, driver.id)
        before = next((row.accepted for row in reversed(rows) if row.accepted), 1)
        patience_s = driver.spec.round_config().patience_s
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while self.devices(driver.spec) < min(before, places):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(POLL_S)
        if not self.devices(driver.spec):
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

    def held(self) -> list[str]:
        """The parent's runs that have not ended here."""
        return [driver.id for driver in self._runs.of_parent()]


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
