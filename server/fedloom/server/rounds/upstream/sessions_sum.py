"""The sum of one masked round of a site: that of its sessions, whose devices' updates nobody saw.

Invariant: it follows from the stored sums of sessions alone, so after a crash the same bytes are
written again.
"""

from collections.abc import Sequence

from fedloom.server.ledger.rows import AcceptedRow
from fedloom.server.planning.round_result import RoundResult
from fedloom.server.rounds.masking.masked_sum import MaskedSum
from fedloom.server.rounds.upstream.device_sum import DeviceSum
from fedloom.strategies.summed_metrics import SummedMetrics


class SessionsSum(DeviceSum, MaskedSum):
    """A sum for the parent, as `DeviceSum`, that is made as `MaskedSum`: of those of sessions."""

    def _weight(self, accepted: Sequence[AcceptedRow], result: RoundResult) -> float:
        """The sum of the weights; updates without tensors have none, and count as light ones."""
        if self.form.specs:
            return self.form.weight(result.words or {}, len(accepted))
        return len(accepted) * min(1.0, self._plan.limits.max_weight)

    def _measured(self, result: RoundResult) -> tuple[SummedMetrics, SummedMetrics]:
        """What devices measured, as their words say."""
        words, sums = self.form.words, result.words or {}
        return words.summed("training", sums), words.summed("evaluation", sums)
