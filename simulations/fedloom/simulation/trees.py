"""Federated XGBoost in a simulation: its model as a module, for runs and their tests.

Invariant: `forward` gives the margins of the booster that `fedloom.client.trees.booster` makes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.client import trees


class TreeModel(nn.Module):
    """A model of trees, for `Experiment.model`.

    Args:
        clients: names of all clients.
        rounds: rounds at most.
        settings: of XGBoost, as on the clients.
        capacity_bytes: bytes for one client's trees of one round.
    """

    trees: Tensor

    def __init__(
        self,
        clients: Sequence[str],
        rounds: int,
        settings: Mapping[str, Any],
        capacity_bytes: int = 1 << 14,
    ) -> None:
        super().__init__()
        start = trees.empty(clients, rounds, capacity_bytes)[trees.TREES]
        self.register_buffer(trees.TREES, torch.from_numpy(start))
        self._settings = dict(settings)
        self._made: tuple[Tensor, Any] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Margins: float32 [batch, classes] of class numbers, [batch] of a regression."""
        if self._made is None or not torch.equal(self._made[0], self.trees):
            model = {trees.TREES: self.trees.numpy()}
            self._made = self.trees.clone(), trees.booster(model, self._settings)
        made = self._made[1]
        classes = int(self._settings.get("num_class", 0))
        if made is None:
            return torch.zeros((len(x), classes or 2) if self._is_classes else len(x))
        data = trees.matrix(x.numpy(), None, self._settings)
        margins = made.predict(data, output_margin=True)
        if self._is_classes and not classes:
            margins = np.stack([np.zeros_like(margins), margins], axis=1)
        return torch.from_numpy(margins)

    @property
    def _is_classes(self) -> bool:
        return str(self._settings.get("objective", "")).startswith(("binary:", "multi:"))
