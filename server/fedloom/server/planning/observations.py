"""What selection learns of a committed round's cohort."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from fedloom.server.engine import Phase
from fedloom.server.planning.round_result import ClientMetrics
from fedloom.strategies.selection import Observation, Selection
from fedloom.strategies.selection.base import metrics_of

_GAVE_UP = frozenset({Phase.DECLINED, Phase.FAILED, Phase.REFUSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortMember:
    """A member of the cohort of a committed round. Times are seconds on any one clock.

    Attributes:
        client: its name.
        phase: at the end of the round.
        counted: whether its update counted.
        training: metrics of its training; None unless its update counted.
        offered_at: when it was first offered the task; None if not measured.
        accepted_at: when its update was accepted; None if none was, or not measured.
        closed_at: when the round closed; None if not measured.
    """

    client: str
    phase: Phase
    counted: bool
    training: ClientMetrics = field(default_factory=ClientMetrics)
    offered_at: float | None = None
    accepted_at: float | None = None
    closed_at: float | None = None

    @property
    def waited_s(self) -> float:
        """Seconds that the round waited for it: until its update, or the end without one.

        NaN for a member that declined or failed, and if not measured.
        """
        until = self.accepted_at
        if not self.counted and self.phase not in _GAVE_UP:
            until = self.closed_at
        if until is None or self.offered_at is None:
            return math.nan
        return max(0.0, until - self.offered_at)  # a wall clock may be set back


def observe(members: Iterable[CohortMember], policy: Selection) -> list[Observation]:
    """Return the observations of a committed training round for a selection policy.

    The policy names the metrics that are a client's loss and label.
    """
    loss, label = metrics_of(policy)
    return [
        Observation(
            client=member.client,
            counted=member.counted,
            num_examples=member.training.num_examples,
            loss=member.training.values.get(loss, math.nan),
            label=member.training.values.get(label, math.nan),
            seconds=member.waited_s,
        )
        for member in members
    ]
