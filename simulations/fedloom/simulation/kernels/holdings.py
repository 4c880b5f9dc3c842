"""A population's examples as tensors on a device, and each client's share of them.

Invariants: the population's arrays are shared, not copied, in main memory; what is gathered for a
client lasts only as long as the caller holds it.
"""

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.client.torch import batches
from fedloom.simulation.data.population import Examples, Population

Pair = tuple[Tensor, Tensor]


class Holdings:
    """What every client holds.

    Args:
        population: its arrays must not change.
        device: where examples are gathered; a GPU gets its own copy of the arrays.
    """

    def __init__(self, population: Population, device: torch.device) -> None:
        self._population = population
        self._device = device
        self._train = self._tensors(population.examples)
        self._test = None if population.test is None else self._tensors(population.test)

    def shard(self, client: int) -> NDArray[np.int64]:
        """Where in the population the examples lie that a client trains on."""
        return self._population.shards[client]

    def bytes_per_example(self) -> int:
        """Size of an example's input and target."""
        return sum(tensor.nbytes // max(1, len(tensor)) for tensor in self._train)

    def take(self, indices: Tensor) -> Pair:
        """Inputs and targets at indices of any shape on the device: [*indices.shape, …]."""
        x, y = self._train
        return x[indices], y[indices]

    def train(self, client: int, order: Tensor | None = None) -> Pair:
        """Inputs and targets that a client trains on; targets of integers are int64.

        Args:
            client: its index.
            order: which of them, by place in its shard; None for all.
        """
        shard = self._population.shards[client]
        return self._gather(shard if order is None else shard[order.numpy()])

    def held_out(self, client: int) -> batches.ExampleSource | None:
        """What a client evaluates on; None where it holds out nothing."""
        shards = self._population.held_out_shards
        if shards is None or not len(shards[client]):
            return None
        return batches.examples(self._gather(shards[client]))

    def test(self, start: int, stop: int) -> batches.ExampleSource | None:
        """Some of the population's test examples; None where it has none there."""
        if self._test is None or not len(self._test[1][start:stop]):
            return None
        x, y = self._test
        return batches.examples((x[start:stop], y[start:stop]))

    def _gather(self, shard: NDArray[np.int64]) -> Pair:
        indices = torch.from_numpy(np.array(shard)).to(self._device)
        x, y = self._train
        return x.index_select(0, indices), y.index_select(0, indices)

    def _tensors(self, examples: Examples) -> Pair:
        y = _shared(examples.y)
        if not (y.is_floating_point() or y.dtype == torch.bool):
            y = y.long()
        return _shared(examples.x).to(self._device), y.to(self._device)


def _shared(array: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        # Arrays of other processes are read-only; nothing here writes to the tensor.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(array))
