"""FedNova: normalises updates by steps, so that clients with more steps do not dominate.

    device   sends Δ_i/τ_i and its number of steps τ_i
    server   x ← x + η·τ_eff · mean(Δ_i/τ_i),   τ_eff = mean τ_i

Source: Wang et al. 2020, Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization, https://arxiv.org/abs/2007.07481, equation 6, with plain gradient descent on the
devices: then ‖a_i‖₁ = τ_i.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedloom.strategies.base import ServerOptimizer
from fedloom.strategies.client_rules import ClientRule, LocalWork, SentTensor, TrainedTensor
from fedloom.strategies.exact.partial import DELTA, Floats
from fedloom.strategies.optimizers.blockwise import Block

STEPS = "steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class FedNovaRule(ClientRule):
    """The device's half."""

    name: ClassVar[str] = "fednova"
    scalars: ClassVar[tuple[str, ...]] = (STEPS,)
    elementwise: ClassVar[bool] = True

    def after(self, at: TrainedTensor) -> SentTensor:
        """Send the delta of one step."""
        return SentTensor(groups={DELTA: at.delta / at.work.steps})

    def numbers(self, work: LocalWork) -> dict[str, float]:
        """Send the number of steps."""
        return {STEPS: float(work.steps)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FedNova(ServerOptimizer):
    """The server's half."""

    def own_rule(self) -> ClientRule:
        """Return the device's half."""
        return FedNovaRule()

    def change(self, block: Block) -> Floats:
        """Return η·τ_eff·Δ; a false number of steps cannot change its sign."""
        steps = max(0.0, block.closing.scalars[STEPS])
        return self.server_learning_rate * steps * block.delta
