"""The open rounds as a gate knows them, from the ledger: it admits, checks and accepts updates.

A round's plan follows from its row and its run's, read at one moment, as that of the driver does:
both run the same version.

Of a run with buffers a gate has every task on which devices may work, also while no buffer is open:
an update that is complete then waits for the next one. Its accept decides in which it counts.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy.exc import DBAPIError

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.updates.body import BodyChecker, Checker
from fedloom.protocol.updates.header import PlannedPart, header_limit_bytes
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.background_tasks import BackgroundTasks
from fedloom.server.engine import RoundKind
from fedloom.server.fleet.context import FleetContext
from fedloom.server.ledger import AcceptedUpdate
from fedloom.server.ledger.masking.bodies import MaskedUpload
from fedloom.server.ledger.replicas.batch_accepts import GateUpload
from fedloom.server.ledger.replicas.doorbell import POLL_S, QUIET_S, Doorbell
from fedloom.server.ledger.replicas.gate_queues import RefusedHere, Telling, Told
from fedloom.server.ledger.rows import RoundRow, RunRow
from fedloom.server.ledger.store import unavailable
from fedloom.server.ledger.updates import CLOSING, COMMITTED, MASKING, REPORTING
from fedloom.server.metrics.log_buffer import about
from fedloom.server.planning import limits
from fedloom.server.planning.admission import check_update
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.planning.spec import parse
from fedloom.server.replicas.gate_masking import GateMasking, MaskedGateRound
from fedloom.server.replicas.gate_sums import GateSums
from fedloom.server.replicas.relay import DRIVER, Relay
from fedloom.server.rounds.engines import buffer_settings
from fedloom.server.rounds.member_records import Record
from fedloom.server.rounds.task_table import TaskTable, plans_before
from fedloom.server.rounds.update_gate import UpdateGate
from fedloom.server.storage.objects.parts import num_parts
from fedloom.server.threads import Grouped

log = logging.getLogger(__name__)

Key = tuple[str, int]

LOOK_S = 0.05
"""Interval at which the ledger is read for the next buffer, while updates wait for it."""

DRAIN_S = 5.0
"""Longest time for the sums of a gate that stops."""


@dataclass(frozen=True, slots=True)
class _Served:
    """The open round of a run, and with buffers also what its devices work on between two.

    Attributes:
        table: its task, and those of earlier rounds that devices may work on.
        buffer: delays updates while no buffer is open.
    """

    table: TaskTable
    buffer: UpdateGate

    @property
    def has_buffers(self) -> bool:
        return buffer_settings(self.table.plan) is not None

    def follow(self, row: RoundRow) -> None:
        if row.state == REPORTING:
            self.buffer.open()
        else:
            self.buffer.close()


class GateRounds:
    """The rounds that report; see `fedloom.server.fleet.reporting_rounds`.

    Args:
        server: context of the gate's services.
        gate: its id.
        relay: tells the driver of refusals.
        bell: wakes the driver.
    """

    def __init__(self, server: FleetContext, gate: str, relay: Relay, bell: Doorbell) -> None:
        self._server = server
        self._relay = relay
        self._bell = bell
        self._sums = GateSums(server, gate)
        self._masking = GateMasking(server)
        self._gate = gate
        self._sealing = BackgroundTasks()
        relay.closed = self.close
        self._served: dict[str, _Served] = {}
        self._unknown: set[str] = set()  # runs with a round that reports, but is not served
        self._reading = asyncio.Lock()
        self._waiting = 0  # updates, for the next buffer
        self._awaited = asyncio.Event()
        accept = partial(server.ledger.accept_at_gate, gate, 0)  # whoever drives counts them
        self._accept: Grouped[GateUpload, AcceptedUpdate | None] = Grouped(server.in_ledger, accept)

    async def keep(self) -> None:
        """Follow the ledger until cancelled: closely, while updates wait for a buffer."""
        while True:
            try:
                await self._read()
            except DBAPIError as error:
                log.warning("open rounds are not known: %s", unavailable(error))
            self._awaited.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._awaited.wait()

    def _pause_s(self) -> float:
        if self._waiting:
            return LOOK_S
        return POLL_S if self._served or self._unknown else QUIET_S  # what is asked for, is read

    async def _read(self) -> None:
        server = self._server
        async with self._reading:
            found = await server.in_ledger(server.ledger.last_rounds)
            rows = {row.run: (row, run) for row, run in found if _has_work(row, run)}
            reporting = {(row.run, row.number) for row, _ in found if row.state == REPORTING}
            for key in self._sums.keys:
                if key not in reporting:
                    self._sealing.start(self._end(key))
            self._unknown = set()
            for name in self._served.keys() - rows.keys():
                self._replace(name, None)
            for name, (row, run) in rows.items():
                known = self._served.get(name)
                if known is None or known.table.plan.number != row.number:
                    table = await self._table(row, run)
                    if table is not None or known is None or not known.has_buffers:
                        self._replace(name, table)  # else devices go on with earlier tasks
                if name in self._served:
                    self._served[name].follow(row)
                    if row.state == MASKING:
                        await self._masking.follow((row.run, row.number))

    async def _end(self, key: Key) -> None:
        await self._seal(key)  # if the driver did not ask for it
        self._sums.forget(key)

    def close(self, key: Key) -> None:
        """A round has closed: the driver waits for its sum."""
        self._sealing.start(self._seal(key))

    async def _seal(self, key: Key) -> None:
        await self._sums.seal(key)
        self._bell.ring(DRIVER)

    async def drain(self) -> None:
        """Seal all sums: nothing is accepted any more."""
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._sealing.settled()
                await self._sums.drain()
        except TimeoutError:
            log.warning("sums are not sealed: the driver folds their updates")

    def _replace(self, run: str, table: TaskTable | None) -> None:
        """Serve the tasks of this table alone; None for no task of the run."""
        known = self._served.pop(run, None)
        for plan in () if known is None else known.table.plans:
            if table is None or plan.number not in table:
                self._server.records.take(plan.key)
                if plan.spec.masking:
                    self._masking.forget(plan.key)
        if table is not None:
            buffer = UpdateGate() if known is None else known.buffer
            self._served[run] = _Served(table, buffer)
        elif known is not None:
            known.buffer.stop()

    async def _table(self, row: RoundRow, run: RunRow) -> TaskTable | None:
        """The tasks of a round; None if they are not known now, as if its model cannot be read."""
        try:
            plan = await self._plan(row, run)
            return TaskTable(plan, await self._before(plan))
        except Exception:  # of one run: others are served
            about_ = about(run=row.run, number=row.number)
            log.exception("round %d of %s is not served yet", row.number, row.run, extra=about_)
            self._unknown.add(row.run)
            return None

    async def _plan(self, row: RoundRow, run: RunRow) -> RoundPlan:
        models, spec, kind = self._server.models, parse(run.spec), RoundKind(row.kind)
        await self._server.in_disk(models.local, row.model_in)
        manifest = await self._server.in_disk(models.manifest, row.model_in)
        clip = limits.clip_of(spec, run.strategy_state)
        usual = limits.limits(spec, manifest)
        return RoundPlan(
            run=row.run,
            number=row.number,
            kind=kind,
            trained=run.committed - (row.state == COMMITTED),
            spec=spec,
            model=row.model_in,
            strategy_state=run.strategy_state,
            manifest=manifest,
            limits=limits.of_round(spec, manifest, kind, clip, usual),
            clip=clip or 0.0,
        )

    async def _before(self, plan: RoundPlan) -> list[RoundPlan]:
        """The plans of earlier rounds whose devices may still be at work, in a run with buffers."""
        config = buffer_settings(plan)
        if config is None:
            return []
        ledger = self._server.ledger
        models = await self._server.in_ledger(ledger.models_before, *plan.key, config.max_staleness)
        return plans_before(plan, models, config)

    # ---- uploads ----

    def lacks(self, header: fleet_pb2.UpdateHeader) -> bool:  # noqa: ARG002 - as of the driver
        """False: another server may have accepted it."""
        return False

    async def find(self, header: fleet_pb2.UpdateHeader) -> "GateRound | MaskedGateRound":
        """The round of an update.

        Raises:
            Refusal: UNKNOWN_RUN, STALE_ROUND, FUTURE_ROUND, NOT_IN_COHORT, or BUSY.
        """
        server, key, client = self._server, (header.task.run, header.task.round), header.client
        if not self.is_open(key):
            await self._read()
        if not self.is_open(key):
            raise await self._missing(*key)
        if not await server.in_ledger(server.ledger.is_member, *key, client):
            raise Refusal(
                Code.NOT_IN_COHORT,
                f"Expected a member that works on round {key[1]}, got {client!r}.",
            )
        if not self.is_open(key):
            raise await self._missing(*key)
        server.records.offered(key, client, again=False)  # it may have its files from elsewhere
        plan = self._served[key[0]].table.plan_of(key[1])
        return GateRound(self, plan) if not plan.spec.masking else await self._masked(plan, client)

    async def _masked(self, plan: RoundPlan, client: str) -> MaskedGateRound:
        """The round of a masked body.

        Raises:
            Refusal: NOT_IN_COHORT, its client is in no session.
        """
        masking, table = self._masking, self._served[plan.run].table
        of = await masking.session_of(table, client)
        if of is None:
            raise Refusal(
                Code.NOT_IN_COHORT, f"Expected a member of a masking session, got {client!r}."
            )
        await masking.follow(plan.key)
        return MaskedGateRound(self, masking, plan, of)

    async def _missing(self, run: str, number: int) -> Refusal:
        if run in self._unknown:
            return Refusal(Code.BUSY, f"This server cannot serve round {number} now: try again.")
        row = await self._server.in_ledger(self._server.ledger.run, run)
        if row is None:
            return Refusal(Code.UNKNOWN_RUN, f"Expected an active run, got {run[:80]!r}.")
        latest = row.last_round
        if number > latest:
            text = f"Expected a round of at most {latest}, got {number}."
            return Refusal(Code.FUTURE_ROUND, text)
        text = f"Expected round {latest}, got {number}, which is over."
        return Refusal(Code.STALE_ROUND, text)

    def is_open(self, key: Key) -> bool:
        """Whether updates of a round's task were accepted when the ledger was read last."""
        served = self._served.get(key[0])
        return served is not None and key[1] in served.table

    async def accept(self, update: AcceptedUpdate, plan: RoundPlan) -> bool:
        """Accept an update; the driver is told in the same transaction."""
        config = buffer_settings(plan)
        stored = await self._store(
            GateUpload(
                update=update,
                capacity=plan.capacity,
                parts=num_parts(update.size_bytes),
                max_staleness=None if config is None else config.max_staleness,
                seen=self._seen(plan.key, update.client),
            )
        )
        if stored is not None:
            self._server.meters.accepted.inc()
            self._bell.ring(DRIVER)
            self._sums.add(plan, stored)
        return stored is not None

    async def accept_masked(self, upload: MaskedUpload) -> bool:
        """Accept a masked body; the driver is told in the same transaction."""
        server, (run, number, _) = self._server, upload.at
        upload = replace(upload, seen=self._seen((run, number), upload.client))
        first = await server.in_ledger(server.ledger.accept_body, upload, self._gate)
        if first:
            self._bell.ring(DRIVER)
        return first

    async def _store(self, upload: GateUpload) -> AcceptedUpdate | None:
        """Store an update in its round, or in the open or next buffer; None for a repeat."""
        while True:
            try:
                return await self._accept(upload)
            except Refusal as refusal:
                served, waits = (
                    self._served.get(upload.update.run),
                    upload.max_staleness is not None,
                )
                if served is None or not waits or refusal.code is not Code.ROUND_CLOSED:
                    raise
            await self._next_buffer(served.buffer)

    async def _next_buffer(self, buffer: UpdateGate) -> None:
        """Wait until the ledger has an open buffer.

        Raises:
            Refusal: BUSY: none has opened in time, or the run has ended.
        """
        buffer.close()
        self._waiting += 1
        self._awaited.set()
        try:
            await buffer.wait()
        finally:
            self._waiting -= 1

    def _seen(self, key: Key, client: str) -> dict[str, Any]:
        """What this gate saw of a member, as columns of its record."""
        record = self._server.records.find(key, client)
        return {} if record is None else record.stored()

    def refused(self, client: str, refusal: Refusal, key: Key) -> None:
        """Tell the driver that an update was refused."""
        here = RefusedHere(refusal.code.value, str(refusal), *key)
        self._relay.tell(Telling(Told.REFUSED, "", client, bytes(here)))

    # ---- others ----

    @property
    def open_rounds(self) -> Sequence[object]:
        """The plan of each."""
        return [served.table.plan for served in self._served.values()]

    def longest_header_bytes(self) -> int:
        """The largest header that an update of an open round may have, in bytes."""
        plans = (served.table.plan for served in self._served.values())
        longest = (header_limit_bytes(p.manifest, len(p.limits.groups)) for p in plans)
        return max(longest, default=0)

    def trace_of(self, run: str) -> str:  # noqa: ARG002 - the driver has traces
        """No trace."""
        return ""

    async def offers(self, digest: str) -> bool:
        """Whether an open round offers the file of this digest for download."""
        if self._offering(digest) is None:
            await self._read()  # its device may be faster than this gate
        return self._offering(digest) is not None

    def _offering(self, digest: str) -> Key | None:
        plans = (served.table.offering(digest) for served in self._served.values())
        return next((plan.key for plan in plans if plan is not None), None)

    async def file_for(self, client: str, digest: str) -> Path | None:
        """The list of ready members of a masked round, for those of a session."""
        if self._offering(digest) is not None:
            return None
        if (found := await self._list(client, digest)) is None:
            await self._read()  # its device may be faster than this gate
            found = await self._list(client, digest)
        return found

    async def _list(self, client: str, digest: str) -> Path | None:
        masked = [each.table for each in self._served.values() if each.table.plan.spec.masking]
        for table in masked:
            if (found := await self._masking.file_for(table, client, digest)) is not None:
                return found
        return None

    def record_of(self, client: str, digest: str) -> tuple[Record, bool]:
        """The record that counts a file that a client is sent, and whether a round offers it."""
        records, key = self._server.records, self._offering(digest)
        if key is None:
            return Record(), self._masking.lists(client, digest)
        records.offered(key, client, again=False)
        return records.find(key, client) or Record(), True


class GateRound:
    """A round for one update; see `fedloom.server.fleet.reporting_rounds`."""

    def __init__(self, rounds: GateRounds, plan: RoundPlan) -> None:
        self._rounds = rounds
        self.plan = plan

    def plan_of(self, number: int | None) -> RoundPlan:  # noqa: ARG002 - of this update's task
        """The plan of the round."""
        return self.plan

    def admit(self, header: fleet_pb2.UpdateHeader) -> list[PlannedPart]:
        """Admit an update by its header.

        Raises:
            Refusal: the header is not valid.
        """
        return check_update(header, self.plan)

    def checker(self, header: fleet_pb2.UpdateHeader, planned: list[PlannedPart]) -> Checker:
        """The checker of an admitted body, at its start."""
        return BodyChecker(header, planned, self.plan.limits, self.plan.manifest)

    def check_open(self, client: str, number: int) -> None:  # noqa: ARG002 - `find` checked them
        """Check that the round accepted updates when the ledger was read last.

        Raises:
            Refusal: ROUND_CLOSED.
        """
        if not self._rounds.is_open(self.plan.key):
            raise Refusal(Code.ROUND_CLOSED, f"Round {self.plan.number} has closed.")

    def refused(self, client: str, refusal: Refusal, number: int) -> None:
        """An update of a client was refused."""
        if refusal.code.blames_update:
            self._rounds.refused(client, refusal, (self.plan.run, number))

    async def accept(self, update: AcceptedUpdate) -> bool:
        """Accept an update whose parts are durable; False if it was accepted before.

        Raises:
            Refusal: the round has closed, or another update was accepted.
        """
        crossing("accept.before")
        first = await self._rounds.accept(update, self.plan)
        crossing("accept.after")
        return first


def _has_work(row: RoundRow, run: RunRow) -> bool:
    """Whether devices may work for a run whose last round this is: between two buffers, too."""
    if row.state in (REPORTING, MASKING):
        return True
    between = row.state in (CLOSING, COMMITTED) and row.undone_at is None
    trains = row.kind == RoundKind.TRAIN.value
    return between and trains and parse(run.spec).buffer_config() is not None
