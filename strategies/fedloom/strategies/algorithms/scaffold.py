"""SCAFFOLD: control variates that correct the clients' drift in local training.

    device   g ← g - c_i + c                       at each step
             c_i⁺ ← c_i - c + (x - y_i) / (K·η)    after K steps of size η from x to y_i (option II)
             sends y_i - x and c_i⁺ - c_i
    server   x ← x + η_g · mean(y_i - x);   c ← c + |S|/N · mean(c_i⁺ - c_i)

c_i⁺ is the mean of the local gradients. With local momentum it is their mean weighted by a, if K is
‖a‖₁: see `fedloom.strategies.local_optimizers`. When every c_i is the gradient at an optimum of the
mean loss, no client moves, with any a.

Source: Karimireddy et al. 2020, SCAFFOLD: Stochastic Controlled Averaging for Federated Learning,
https://arxiv.org/abs/1910.06378, Algorithm 1, which has plain steps.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from fedloom.strategies.base import ServerOptimizer
from fedloom.strategies.checks import check_count
from fedloom.strategies.client_rules import ClientRule, SentTensor, TensorAtStep, TrainedTensor
from fedloom.strategies.exact.partial import DELTA, Floats
from fedloom.strategies.local_optimizers import LocalSteps
from fedloom.strategies.optimizers.blockwise import Block

CONTROL = "control"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaffoldRule(ClientRule):
    """The device's half: c_i is its memory, c comes from the server."""

    name: ClassVar[str] = "scaffold"
    receives: ClassVar[tuple[str, ...]] = (CONTROL,)
    remembers: ClassVar[tuple[str, ...]] = (CONTROL,)
    groups: ClassVar[tuple[str, ...]] = (DELTA, CONTROL)
    needs_anchor: ClassVar[bool] = False
    elementwise: ClassVar[bool] = True
    local_steps: ClassVar[LocalSteps] = LocalSteps.LINEAR
    because: ClassVar[str] = "takes the mean gradient from the update"

    def gradient(self, grad: Any, at: TensorAtStep) -> Any:
        """Return g - c_i + c."""
        return grad - at.memory[CONTROL] + at.received[CONTROL]

    def after(self, at: TrainedTensor) -> SentTensor:
        """Return the delta and the change of c_i; keep the new c_i."""
        old = at.memory[CONTROL]
        new = old - at.received[CONTROL] - at.delta / (at.work.steps * at.work.learning_rate)
        return SentTensor(groups={DELTA: at.delta, CONTROL: new - old}, memory={CONTROL: new})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold(ServerOptimizer):
    """The server's half.

    Attributes:
        clients: N, number of all clients, not only those of a round.
    """

    clients: int

    broadcasts: ClassVar[tuple[str, ...]] = (CONTROL,)
    weightings: ClassVar[tuple[str, ...]] = ("uniform",)

    def __post_init__(self) -> None:
        check_count("clients", self.clients)
        ServerOptimizer.__post_init__(self)

    def own_rule(self) -> ClientRule:
        """Return the device's half."""
        return ScaffoldRule()

    def initial(self) -> dict[str, float]:
        """Return the initial c."""
        return {CONTROL: 0.0}

    def change(self, block: Block) -> Floats:
        """Return η_g·Δ, and move c."""
        block.slots[CONTROL] += block.closing.count / self.clients * block.mean[CONTROL]
        return self.server_learning_rate * block.delta
