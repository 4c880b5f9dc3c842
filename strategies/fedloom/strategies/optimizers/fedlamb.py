"""LAMB on the server: Adam's direction, with a step in proportion to the tensor's norm.

Legend: Δ mean delta, x a tensor's parameters, m momentum, v variance, η server learning rate,
λ weight decay, φ(z) = min(z, largest_norm).

    m, v   as FedAdam's
    u      ← m / (√v + τ) - λ·x
    x      ← x + η · φ(|x|) / |u| · u        for each tensor; with the ratio 1 where a norm is 0

Reference:
    You et al. 2020, Large Batch Optimization for Deep Learning: Training BERT in 76 minutes,
    https://arxiv.org/abs/1904.00962, Algorithm 2; with the pseudo-gradient -Δ
    as in Reddi et al. 2021, https://arxiv.org/abs/2003.00295.

Deliberate differences from the paper: v starts at τ² and there is no bias correction, as in
FedAdam here. Without weight decay the correction would change nothing: it scales u, and division
by |u| cancels it.
"""

from dataclasses import dataclass

from fedloom.strategies.checks import check_number
from fedloom.strategies.exact.partial import Floats
from fedloom.strategies.optimizers.adaptive import FedAdam
from fedloom.strategies.optimizers.blockwise import Block, Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class FedLamb(FedAdam):
    """FedAdam with a trust ratio per tensor (You et al. 2020).

    Norms are over the coordinates that the round covers.

    Attributes:
        server_learning_rate: η > 0, change of a tensor per round, relative to its norm.
        weight_decay: λ ≥ 0.
        largest_norm: > 0; tensors of a larger norm step as if they had this one.
    """

    server_learning_rate: float = 0.05
    weight_decay: float = 0.0
    largest_norm: float = 10.0

    def __post_init__(self) -> None:
        FedAdam.__post_init__(self)
        check_number("weight_decay", self.weight_decay, at_least=0)
        check_number("largest_norm", self.largest_norm, above=0)

    def change(self, block: Block) -> Floats:
        """Return η·u."""
        step = FedAdam.change(self, block)
        return step - self.server_learning_rate * self.weight_decay * block.param

    def ratio(self) -> Ratio:
        """Return φ(|x|) / |u|, of |x| and |η·u|."""
        return self._trust

    def _trust(self, param_norm: float, change_norm: float) -> float:
        if not (param_norm and change_norm):
            return 1.0
        return min(param_norm, self.largest_norm) * self.server_learning_rate / change_norm
