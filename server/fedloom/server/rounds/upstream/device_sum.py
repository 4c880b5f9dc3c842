"""The sum of one round of a site: stored for the parent when the round closes.

Invariant: the sum is durable, in the bytes that are sent, before the ledger says that the round was
sent. It follows from the accepted updates alone, so after a crash the same bytes are written again.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.task_description import FileRef
from fedloom.protocol.updates.site_members import member, write_members
from fedloom.protocol.updates.site_sum import metrics_message
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.ledger.rows import AcceptedRow
from fedloom.server.planning.round_result import added_up, measure
from fedloom.server.planning.run_setup import RunSetup
from fedloom.server.rounds.round_sum import RoundSum, StoredResult


class DeviceSum(RoundSum):
    """The sum of one round of a site, whose plan is ordered by the parent."""

    def _finish_in_thread(self, accepted: Sequence[AcceptedRow]) -> StoredResult:
        plan, result = self._plan, self._result(accepted)
        if plan.upstream is None:
            raise IntegrityError(f"Expected round {plan.number} ordered by a parent, got no order.")
        every = list(result.metrics)
        header = fleet_pb2.UpdateHeader(
            task=fleet_pb2.TaskKey(run=plan.run, round=plan.number),
            client=plan.upstream.site,
            model_digest=plan.given.digest,
            weight=math.fsum(row.weight for row in accepted),
        )
        header.site.devices = sum(row.num_devices for row in accepted)
        if self._context.name_devices:
            named = sorted(accepted, key=lambda row: row.client)  # equal sums have equal bytes
            tree = [member(row.client, row.num_devices, row.members) for row in named]
            write_members(header.site, tree)
        if plan.spec.metrics_settings().enabled:
            for message, measured in (
                (header.site.training, [each.training for each in every]),
                (header.site.evaluation, [each.evaluation for each in every]),
            ):
                message.CopyFrom(metrics_message(added_up(plan.spec, measured)))
        self._context.outbox.write(header, result.total)
        crossing("site.sum.stored")
        setup = RunSetup.of(plan.spec, plan.manifest, None)
        result = replace(result, metrics=every)
        return StoredResult(
            model=FileRef(digest=plan.model, size_bytes=plan.manifest.size_bytes),
            note=plan.strategy_state,
            metrics=measure(setup, result, plan.trained),
            participations=plan.participations,
        )
