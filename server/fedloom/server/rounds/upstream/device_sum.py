"""The sum of one round of a site: stored for the parent when the round closes.

Invariant: the sum is durable, in the bytes that are sent, before the ledger says that the round was
sent. It follows from the accepted updates alone, so after a crash the same bytes are written again.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.task_description import FileRef
from fedloom.protocol.updates.site_members import member, write_members
from fedloom.protocol.updates.site_sum import metrics_message
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.ledger.rows import AcceptedRow
from fedloom.server.planning.round_result import RoundResult, added_up, measure
from fedloom.server.planning.run_setup import RunSetup
from fedloom.server.rounds.round_sum import RoundSum, StoredResult
from fedloom.server.rounds.upstream.member_record import recorded
from fedloom.strategies.summed_metrics import SummedMetrics


class DeviceSum(RoundSum):
    """The sum of one round of a site, whose plan is ordered by the parent."""

    async def finish(self, accepted: Iterable[AcceptedRow]) -> StoredResult:
        """Store the sum for the parent; see `RoundSum.finish`."""
        plan = self._plan
        if plan.spec.own_sessions() is None:  # else the time counts from their opening
            self._context.sending.closed(plan.run, plan.number, plan.manifest.size_bytes)
        return await super().finish(accepted)

    def _finish_in_thread(self, accepted: Sequence[AcceptedRow]) -> StoredResult:
        plan, result = self._plan, self._result(accepted)
        if plan.upstream is None:
            raise IntegrityError(f"Expected round {plan.number} ordered by a parent, got no order.")
        result = replace(result, metrics=list(result.metrics))
        header = fleet_pb2.UpdateHeader(
            task=fleet_pb2.TaskKey(run=plan.run, round=plan.number),
            client=plan.upstream.site,
            model_digest=plan.given.digest,
            weight=self._weight(accepted, result),
        )
        header.site.devices = sum(row.num_devices for row in accepted)
        named = sorted(accepted, key=lambda row: row.client)  # equal sums have equal bytes
        tree = [member(row.client, row.num_devices, row.members) for row in named]
        if self._context.digest_devices:
            record = self._context.outbox.record_path(plan.run, plan.number)
            tree = [member(recorded(record, tree), header.site.devices)]
        if self._context.name_devices or self._context.digest_devices:
            write_members(header.site, tree)
        if plan.spec.metrics_settings().enabled and not plan.spec.privacy:  # no noise is on them
            training, evaluation = self._measured(result)
            header.site.training.CopyFrom(metrics_message(training))
            header.site.evaluation.CopyFrom(metrics_message(evaluation))
        header.site.updates = result.total.count
        self._context.outbox.write(header, result.total)
        crossing("site.sum.stored")
        setup = RunSetup.of(plan.spec, plan.manifest, None)
        return StoredResult(
            model=FileRef(digest=plan.model, size_bytes=plan.manifest.size_bytes),
            note=None,
            metrics=measure(setup, result, plan.trained),
            participations=plan.participations,
        )

    def _weight(self, accepted: Sequence[AcceptedRow], _: RoundResult) -> float:
        """The sum of the weights of the updates."""
        return math.fsum(row.weight for row in accepted)

    def _measured(self, result: RoundResult) -> tuple[SummedMetrics, SummedMetrics]:
        """What devices measured in training, and in evaluation."""
        spec, every = self._plan.spec, list(result.metrics)
        training = added_up(spec, (each.training for each in every))
        return training, added_up(spec, (each.evaluation for each in every))
