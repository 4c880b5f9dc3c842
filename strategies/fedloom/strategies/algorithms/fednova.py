"""FedNova: normalises updates by steps, so that clients with more steps do not dominate.

    device   sends Δ_i/‖a_i‖₁ and ‖a_i‖₁
    server   x ← x + η·τ_eff · mean(Δ_i/‖a_i‖₁),   τ_eff = mean ‖a_i‖₁

Legend: Δ_i the update, a_i the weights of the gradients in it; with plain gradient descent ‖a_i‖₁
is the number of steps. See `fedloom.strategies.local_optimizers`.

Source: Wang et al. 2020, Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization, https://arxiv.org/abs/2007.07481, equation 6 and section 4.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedloom.strategies.base import ServerOptimizer
from fedloom.strategies.client_rules import ClientRule, LocalWork, SentTensor, TrainedTensor
from fedloom.strategies.exact.partial import DELTA, Floats
from fedloom.strategies.local_optimizers import LocalSteps
from fedloom.strategies.optimizers.blockwise import Block

STEPS = "steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class FedNovaRule(ClientRule):
    """The device's half."""

    name: ClassVar[str] = "fednova"
    scalars: ClassVar[tuple[str, ...]] = (STEPS,)
    elementwise: ClassVar[bool] = True
    local_steps: ClassVar[LocalSteps] = LocalSteps.LINEAR
    because: ClassVar[str] = "divides the update by the weights of the gradients in it"

    def after(self, at: TrainedTensor) -> SentTensor:
        """Send the delta of one step."""
        return SentTensor(groups={DELTA: at.delta / at.work.steps})

    def numbers(self, work: LocalWork) -> dict[str, float]:
        """Send ‖a_i‖₁."""
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
