"""Weighted federated averaging.

References:
    McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized
    Data, https://arxiv.org/abs/1602.05629, Algorithm 1.
"""

from dataclasses import dataclass

from fedloom.strategies.base import ServerOptimizer
from fedloom.strategies.exact.partial import Floats
from fedloom.strategies.optimizers.blockwise import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvg(ServerOptimizer):
    """x ← x + server_learning_rate · mean delta.

    With the default rate of 1 and clients that send whole models this is FedAvg as published;
    with `LocalTraining(steps=1, batch_size=None)` on the devices it is FedSGD.
    """

    def change(self, block: Block) -> Floats:
        """Return η·Δ."""
        return self.server_learning_rate * block.delta
