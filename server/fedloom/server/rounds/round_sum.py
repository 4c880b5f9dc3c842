"""The sum of one round: updates are folded in groups while others arrive, in a thread of the fold.

An aggregation that needs each update folds nothing: the files are kept until the round is over,
and are read in blocks when it closes.

Invariants: every accepted update is folded once, however often it is added; the model is on disk
before the ledger says that the round is committed.
"""

import logging
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fedloom.protocol import tracing
from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.task_description import FileRef
from fedloom.protocol.tensors.file_arrays import Scratch
from fedloom.protocol.updates.addends import UpdateFile
from fedloom.server.background_tasks import BackgroundTasks
from fedloom.server.engine import BestModel
from fedloom.server.ledger.rows import AcceptedRow, MetricsRow
from fedloom.server.metrics.log_buffer import about
from fedloom.server.metrics.meters import timed
from fedloom.server.planning import limits
from fedloom.server.planning.advance import advance
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.planning.round_result import (
    ClientMetrics,
    ClientReport,
    ReportedMetrics,
    RoundMetrics,
    RoundResult,
)
from fedloom.server.planning.run_setup import RunSetup
from fedloom.server.rounds import fold, state_files
from fedloom.server.rounds.context import RoundsContext
from fedloom.server.rounds.storage_retry import retry_storage
from fedloom.server.storage.objects.interface import DamagedObjectError, MissingObjectError
from fedloom.server.storage.stored_updates import SpoolUpdates, StoredUpdate
from fedloom.server.threads import Grouped
from fedloom.strategies import Partial
from fedloom.strategies.privacy import Participations

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """The result of a round; the ledger's row is not yet written.

    Attributes:
        model: the next model.
        note: the ledger's note of the state that belongs to it.
        metrics: of the round.
        participations: of the clients after it.
        remark: a note of the aggregation or the sum for the operator; empty for none.
        best: the best model after the round; None in a run that has none.
    """

    model: FileRef
    note: str | None
    metrics: RoundMetrics
    participations: Participations
    remark: str = ""
    best: BestModel | None = None


class _Waiting(NamedTuple):
    """An update to be folded; `above` is the span around it."""

    client: str
    file: str
    factor: float
    above: str


def checkpoint_name(key: tuple[str, int]) -> str:
    """The file in the spool with the sum of a round's updates so far."""
    return f"{key[0]}.{key[1]}..sum"


class RoundSum:
    """The sum of one round."""

    def __init__(self, plan: RoundPlan, context: RoundsContext) -> None:
        self._plan = plan
        self._context = context
        self._checkpoint: Path = context.spool.path(checkpoint_name(plan.key))
        self._folder = fold.Folder(self._empty(), set())
        self._folding = BackgroundTasks()
        self._fold_together: Grouped[_Waiting, list[str]] = Grouped(
            context.in_fold,
            self._fold_in_thread,
            most=fold.TOGETHER,
            until_cancelled=True,
            patience_s=fold.PATIENCE_S,
        )
        self._error: Exception | None = None
        self._finishing = False
        self._sealed: list[str] = []  # files of gates' sums
        self._is_sum = plan.spec.needs == "sum"

    def _empty(self) -> Partial:
        return limits.empty_sum(self._plan.spec, self._plan.manifest)

    async def begin(self) -> None:
        """Nothing: a new round has no sum yet."""

    async def restore(self, accepted: Iterable[AcceptedRow]) -> None:
        """Read the last checkpoint, and fold the updates accepted since.

        One that came with a move from files is in the object store.
        """
        fetching = partial(self._context.fetch, self._checkpoint.name, if_kept=True)
        await retry_storage(fetching, f"round {self._plan.number}", about("", *self._plan.key))
        self._folder = await self._context.in_fold(fold.restore, self._checkpoint, self._empty)
        for update in accepted:
            if update.gate is None or self._context.sealed is None:
                self.add(update.client, update.file, update.staleness or 0)

    def add(self, client: str, file: str, staleness: int = 0) -> None:
        """Queue an accepted update for folding; `file` is empty where it has no tensors."""
        if file and self._is_sum:
            factor = fold.factor(self._plan.spec, staleness)
            self._folding.start(self._fold(client, file, factor))

    async def _fold(self, client: str, file: str, factor: float) -> None:
        if client in self._folder.folded:
            return
        try:
            above = tracing.current()
            await self._context.fetch(file)
            done = await self._fold_together(_Waiting(client, file, factor, above))
        except Exception as error:
            number, extra = self._plan.number, about(client, *self._plan.key)
            log.exception("round %d: cannot fold the update of %s", number, client, extra=extra)
            self._error = error
            return
        for name in done:
            self._context.spool.release_copy(name)

    def _fold_in_thread(self, waiting: Sequence[_Waiting]) -> list[list[str]]:
        """Fold updates; the first caller releases what a checkpoint has made unnecessary."""
        spool, meter = self._context.spool, self._context.meters.fold_s
        new = {each.client: each for each in waiting if each.client not in self._folder.folded}
        if not new:
            return [[] for _ in waiting]
        updates = {
            client: UpdateFile(spool.path(file), spool.header(file), factor)
            for client, file, factor, _ in new.values()
        }
        with ExitStack() as spans, timed(meter, times=len(new)):
            for each in new.values():
                span = self._context.tracer.span("fold", each.above, client=each.client)
                spans.enter_context(span)
            for_each = fold.in_threads(self._context.in_fold_helpers, updates.values())
            self._folder.fold(updates, for_each)
        for _ in new:
            crossing("fold.after")
        due = self._folder.is_checkpoint_due
        done = self._folder.save(self._checkpoint) if due else []
        return [done, *([] for _ in waiting[1:])]

    async def finish(self, accepted: Iterable[AcceptedRow]) -> "StoredResult":
        """Compute the run's next state from all accepted updates, and store it.

        Raises:
            TooFewUpdatesError: the aggregation needs more updates; another round may have them.
            Exception: any error of the strategy, or of folding an update.
        """
        accepted = list(accepted)
        if self._finishing:  # an earlier attempt may have consumed the sum in memory: read it again
            await self.stop()
            self._error = None
            await self.restore(())
        self._finishing = True
        if self._context.sealed is not None:
            if self._is_sum:
                accepted = await self._context.sealed(self._plan.key)
                await self._merge_sealed(accepted)
            for update in accepted:
                if update.gate is not None and update.file:
                    self._context.spool.drop_copy(update.file)  # of an upload that began here
        for update in accepted:
            self.add(update.client, update.file, update.staleness or 0)
        self._fold_together.hurry()
        await self._folding.settled()
        if self._error is not None:
            raise self._error
        return await self._context.in_fold(self._finish_in_thread, accepted)

    async def _merge_sealed(self, accepted: Sequence[AcceptedRow]) -> None:
        """Add the sums of gates; what is in none of them is folded from its body."""
        sums = fold.sums_of(accepted)
        self._sealed = list(sums)
        for file, members in sums.items():
            try:
                await self._context.fetch(file)
                await self._context.in_fold(self._merge_in_thread, file, members)
            except (IntegrityError, DamagedObjectError, MissingObjectError) as error:
                extra = about("", *self._plan.key)
                log.warning("a gate's sum is folded again from its updates: %s", error, extra=extra)

    def _merge_in_thread(self, file: str, members: set[str]) -> None:
        spool = self._context.spool
        self._folder.merge(fold.restore(spool.path(file), self._empty), members)
        spool.release_copy(file)
        crossing("seal.merged")

    def _finish_in_thread(self, accepted: Sequence[AcceptedRow]) -> "StoredResult":
        plan = self._plan
        setup = RunSetup.of(plan.spec, plan.manifest, plan.stream)
        before = state_files.load(self._context.models, setup, plan)
        after = advance(setup, before, self._result(accepted))
        if after.state.model is before.model:
            model = FileRef(digest=plan.model, size_bytes=plan.manifest.size_bytes)
            note = plan.strategy_state
        else:
            model, note = state_files.store(self._context.models, setup, plan, after)
        return StoredResult(
            model=model,
            note=note,
            metrics=after.metrics,
            participations=after.state.participations,
            remark=after.note,
            best=after.state.best,
        )

    def _result(self, accepted: Sequence[AcceptedRow]) -> RoundResult:
        plan = self._plan
        return RoundResult(
            number=plan.number,
            kind=plan.kind,
            reports=[report_of(row) for row in accepted],
            total=self._folder.partial,
            metrics=map(_metrics, self._context.ledger.reported_metrics(*plan.key)),
            updates=None if self._is_sum else self._each(accepted),
            keep=Scratch(self._checkpoint.parent).keep,
        )

    def _each(self, accepted: Sequence[AcceptedRow]) -> SpoolUpdates:
        spool, files = self._context.spool, [row for row in accepted if row.file]
        for row in files:
            spool.fetch(row.file)
        stored = [
            StoredUpdate(row.client, spool.path(row.file), spool.header(row.file)) for row in files
        ]
        return SpoolUpdates(limits.sums(self._plan.spec, self._plan.manifest), stored)

    async def abandon(self) -> None:
        """Fold nothing more: the sum is not used, and the files of updates that wait are freed."""
        await self.stop()

    def clean(self, files: Iterable[str] | None = None) -> None:
        """Delete the checkpoint and the spool files of a round that is over.

        Args:
            files: of its updates, if clients may still upload for the round's task; None for
                every file of the round.
        """
        self._checkpoint.unlink(missing_ok=True)
        if files is None:
            self._context.spool.release_round(*self._plan.key)
            return
        for name in (*files, *self._sealed):
            if name:
                self._context.spool.release(name)

    async def stop(self) -> None:
        """Stop after the update that is being folded; the others stay in the spool."""
        self._folding.cancel()
        await self._folding.settled()


def report_of(row: AcceptedRow) -> ClientReport:
    """An accepted update, as the ledger holds it."""
    return ClientReport(client=row.client, asked_in=row.round, has_tensors=bool(row.file))


def _metrics(row: MetricsRow) -> ReportedMetrics:
    return ReportedMetrics(
        client=row.client,
        training=ClientMetrics(**row.training),
        evaluation=ClientMetrics(**row.evaluation),
    )
