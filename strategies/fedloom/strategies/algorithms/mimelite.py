"""Mime-lite: local steps use the server's momentum, which is constant during local training.

    device   g ← (1 - β)·g + β·m   at each step; sends y_i - x and ∇f_i(x) over all its examples
    server   x ← x + η·mean(y_i - x);   m ← (1 - β)·mean ∇f_i(x) + β·m

Source: Karimireddy et al. 2021, Breaking the centralized barrier for cross-device federated
learning, https://arxiv.org/abs/2008.03606, Algorithm 1 (MimeLite) with momentum SGD, table 2.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from fedloom.strategies.base import ServerOptimizer
from fedloom.strategies.checks import check_number
from fedloom.strategies.client_rules import ClientRule, SentTensor, TensorAtStep, TrainedTensor
from fedloom.strategies.exact.partial import DELTA, Floats
from fedloom.strategies.local_optimizers import LocalSteps
from fedloom.strategies.optimizers.blockwise import Block

GRADIENT, MOMENTUM = "gradient", "momentum"


@dataclass(frozen=True, slots=True, kw_only=True)
class MimeLiteRule(ClientRule):
    """The device's half.

    Attributes:
        momentum: β in [0, 1).
    """

    name: ClassVar[str] = "mimelite"
    receives: ClassVar[tuple[str, ...]] = (MOMENTUM,)
    groups: ClassVar[tuple[str, ...]] = (DELTA, GRADIENT)
    needs_gradient: ClassVar[bool] = True
    needs_anchor: ClassVar[bool] = False
    elementwise: ClassVar[bool] = True
    local_steps: ClassVar[LocalSteps] = LocalSteps.DESCENT
    because: ClassVar[str] = "takes the server's momentum in place of a local one"
    momentum: float

    def __post_init__(self) -> None:
        check_number("momentum", self.momentum, at_least=0, below=1)

    def gradient(self, grad: Any, at: TensorAtStep) -> Any:
        """Return (1 - β)·g + β·m."""
        return (1 - self.momentum) * grad + self.momentum * at.received[MOMENTUM]

    def after(self, at: TrainedTensor) -> SentTensor:
        """Send the delta and the gradient at the received parameters."""
        assert at.full_gradient is not None
        return SentTensor(groups={DELTA: at.delta, GRADIENT: at.full_gradient})


@dataclass(frozen=True, slots=True, kw_only=True)
class MimeLite(ServerOptimizer):
    """The server's half.

    Attributes:
        momentum: β in [0, 1).
    """

    momentum: float = 0.9

    broadcasts: ClassVar[tuple[str, ...]] = (MOMENTUM,)

    def __post_init__(self) -> None:
        check_number("momentum", self.momentum, at_least=0, below=1)
        ServerOptimizer.__post_init__(self)

    def own_rule(self) -> ClientRule:
        """Return the device's half."""
        return MimeLiteRule(momentum=self.momentum)

    def initial(self) -> dict[str, float]:
        """Return the initial m."""
        return {MOMENTUM: 0.0}

    def change(self, block: Block) -> Floats:
        """Return η·Δ, and move m."""
        m = block.slots[MOMENTUM]
        m *= self.momentum
        m += (1 - self.momentum) * block.mean[GRADIENT]
        return self.server_learning_rate * block.delta
