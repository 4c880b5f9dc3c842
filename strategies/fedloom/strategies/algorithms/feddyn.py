"""FedDyn: each device's loss has a dynamic regulariser, so that all agree at the optimum.

    device   trains on  loss - <h_i, θ> + α/2·|θ - θ_server|²;   h_i ← h_i - α·(θ_i - θ_server)
    server   h ← h - α/N · Σ (θ_i - θ_server);   θ ← mean θ_i - h/α

Source: Acar et al. 2021, Federated Learning Based on Dynamic Regularization,
https://arxiv.org/abs/2111.04263, Algorithm 1. N counts all clients, not only those of a round.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from fedloom.strategies.base import ServerOptimizer
from fedloom.strategies.checks import check_count, check_number
from fedloom.strategies.client_rules import ClientRule, SentTensor, TensorAtStep, TrainedTensor
from fedloom.strategies.exact.partial import DELTA, Floats
from fedloom.strategies.optimizers.blockwise import Block

LINEAR = "linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class FedDynRule(ClientRule):
    """The device's half.

    Attributes:
        alpha: α > 0, the weight of the proximal term.
    """

    name: ClassVar[str] = "feddyn"
    remembers: ClassVar[tuple[str, ...]] = (LINEAR,)
    elementwise: ClassVar[bool] = True
    bears_delay: ClassVar[bool] = False
    alpha: float

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, above=0)

    def gradient(self, grad: Any, at: TensorAtStep) -> Any:
        """Return g - h_i + α·(θ - θ_server)."""
        return grad - at.memory[LINEAR] + self.alpha * (at.param - at.anchor)

    def after(self, at: TrainedTensor) -> SentTensor:
        """Send the delta; keep the new h_i."""
        return SentTensor(
            groups={DELTA: at.delta}, memory={LINEAR: at.memory[LINEAR] - self.alpha * at.delta}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FedDyn(ServerOptimizer):
    """The server's half.

    Attributes:
        alpha: α > 0, as on the devices. The paper tries 0.001 to 0.1.
        clients: N, number of all clients.
        server_learning_rate: of the whole step; 1 in the paper.
    """

    alpha: float
    clients: int

    weightings: ClassVar[tuple[str, ...]] = ("uniform",)

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, above=0)
        check_count("clients", self.clients)
        ServerOptimizer.__post_init__(self)

    def own_rule(self) -> ClientRule:
        """Return the device's half."""
        return FedDynRule(alpha=self.alpha)

    def initial(self) -> dict[str, float]:
        """Return the initial h."""
        return {LINEAR: 0.0}

    def change(self, block: Block) -> Floats:
        """Return Δ - h/α, with the new h."""
        h = block.slots[LINEAR]
        h -= self.alpha * block.closing.count / self.clients * block.delta
        return self.server_learning_rate * (block.delta - h / self.alpha)
