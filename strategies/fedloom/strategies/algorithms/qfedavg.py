"""q-FedAvg: clients with a larger loss weigh more, so that losses become more equal.

With F the loss of the received model on a client's examples, L = 1/η of its learning rate and Δ its
delta, it sends F^q·Δ and F^q + q·L·F^(q-1)·|Δ|², as in the paper except for a common factor L; the
server steps by the ratio of their means. q = 0 is FedAvg with equal weights.

Source: Li et al. 2020, Fair Resource Allocation in Federated Learning,
https://arxiv.org/abs/1905.10497, Algorithm 2.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from fedloom.strategies.base import ServerOptimizer
from fedloom.strategies.checks import check_number
from fedloom.strategies.client_rules import ClientRule, LocalWork, SentTensor, TrainedTensor
from fedloom.strategies.exact.partial import DELTA, Floats
from fedloom.strategies.local_optimizers import LocalSteps
from fedloom.strategies.optimizers.blockwise import Block

CURVATURE = "curvature"
_SMALL: Final = 1e-10
"""Added to losses, since 0 has no negative power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QFedAvgRule(ClientRule):
    """The device's half.

    Attributes:
        q: ≥ 0.
    """

    name: ClassVar[str] = "qfedavg"
    scalars: ClassVar[tuple[str, ...]] = (CURVATURE,)
    needs_loss: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    local_steps: ClassVar[LocalSteps] = LocalSteps.CONSTANT
    because: ClassVar[str] = "takes the update divided by the learning rate for a gradient"
    q: float

    def __post_init__(self) -> None:
        check_number("q", self.q, at_least=0)

    def after(self, at: TrainedTensor) -> SentTensor:
        """Send F^q·Δ."""
        return SentTensor(groups={DELTA: at.delta * (at.work.initial_loss + _SMALL) ** self.q})

    def numbers(self, work: LocalWork) -> dict[str, float]:
        """Send F^q + q·L·F^(q-1)·|Δ|²."""
        loss = work.initial_loss + _SMALL
        bend = self.q * loss ** (self.q - 1) * work.norm**2 / work.learning_rate
        return {CURVATURE: loss**self.q + bend}


@dataclass(frozen=True, slots=True, kw_only=True)
class QFedAvg(ServerOptimizer):
    """The server's half.

    Attributes:
        q: ≥ 0; the larger, the fairer. The paper tries 0.001 to 15.
    """

    q: float

    weightings: ClassVar[tuple[str, ...]] = ("uniform",)

    def __post_init__(self) -> None:
        check_number("q", self.q, at_least=0)
        ServerOptimizer.__post_init__(self)

    def own_rule(self) -> ClientRule:
        """Return the device's half."""
        return QFedAvgRule(q=self.q)

    def change(self, block: Block) -> Floats:
        """Return the ratio of the means; no step if F^q is too small to sum."""
        curvature = block.closing.scalars[CURVATURE]
        if curvature <= 0:
            return np.zeros_like(block.delta)
        return self.server_learning_rate * block.delta / curvature
