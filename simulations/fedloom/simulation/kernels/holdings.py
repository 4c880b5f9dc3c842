"""A population's examples as tensors on a device, and each client's share of them.

Invariant: in main memory the population's arrays are shared, not copied.
"""

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.client.torch import batches
from fedloom.client.torch.augment import Draws, Transformed
from fedloom.simulation.data.mapped import MappedRows
from fedloom.simulation.data.population import Examples, Population

Pair = tuple[Tensor, Tensor]
Epoch = tuple[int, int]
"""The seed of a task, and the number of an epoch in it, from 0."""


class Holdings:
    """The examples of every client.

    Args:
        population: its arrays must not change.
        device: of the tensors; a GPU gets its own copy of the arrays.
    """

    def __init__(self, population: Population, device: torch.device) -> None:
        self._population = population
        self._device = device
        self._train = self._tensors(population.examples)
        self._test = None if population.test is None else self._tensors(population.test)

    def shard(self, client: int) -> NDArray[np.int64]:
        """Indices of the examples that a client trains on."""
        return self._population.shards[client]

    def bytes_per_example(self) -> int:
        """Bytes of an example's input and target."""
        x, y = self._train
        assert isinstance(x, Tensor)
        return sum(tensor.nbytes // max(1, len(tensor)) for tensor in (x, y))

    def take(self, indices: Tensor) -> Pair:
        """Inputs and targets at indices of any shape on the device: [*indices.shape, …]."""
        x, y = self._train
        assert isinstance(x, Tensor)  # `Batched.carries` refuses mapped inputs
        return x[indices], y[indices]

    def train(self, client: int, order: Tensor | None = None) -> Pair:
        """Inputs, not transformed, and targets that a client trains on; integer targets are int64.

        Args:
            client: its index.
            order: indices into its shard; None for all.
        """
        shard = self._population.shards[client]
        return self._gather(shard if order is None else shard[order.numpy()])

    def source(self, client: int) -> batches.ExampleSource:
        """What a client trains on, with its transforms."""
        return self._transformed(batches.examples(self.train(client)))

    def augmented(self, client: int, x: Tensor, epoch: Epoch, order: Tensor | None) -> Tensor:
        """Inputs of a client in training, of the examples of `order` in its shard; None for all."""
        pipeline = self._population.transform
        if pipeline is None:
            return x
        size = len(self._population.shards[client])
        indices = torch.arange(size) if order is None else order
        return pipeline.train(x, Draws(*epoch, indices, size))

    def held_out(self, client: int) -> batches.ExampleSource | None:
        """A client's held-out examples; None without any."""
        shards = self._population.held_out_shards
        if shards is None or not len(shards[client]):
            return None
        return self._transformed(batches.examples(self._gather(shards[client])))

    def test(self, start: int, stop: int) -> batches.ExampleSource | None:
        """The population's test examples `start:stop`; None without any."""
        if self._test is None or not len(self._test[1][start:stop]):
            return None
        x, y = self._test
        if isinstance(x, MappedRows):
            return self._transformed(
                batches.examples((torch.from_numpy(x[start:stop]).to(self._device), y[start:stop]))
            )
        return self._transformed(batches.examples((x[start:stop], y[start:stop])))

    def _transformed(self, source: batches.ExampleSource) -> batches.ExampleSource:
        pipeline = self._population.transform
        return source if pipeline is None else Transformed(source, pipeline)

    def _gather(self, shard: NDArray[np.int64]) -> Pair:
        indices = torch.from_numpy(np.array(shard)).to(self._device)
        x, y = self._train
        if isinstance(x, MappedRows):
            return torch.from_numpy(x[shard]).to(self._device), y.index_select(0, indices)
        return x.index_select(0, indices), y.index_select(0, indices)

    def _tensors(self, examples: Examples) -> tuple[Tensor | MappedRows, Tensor]:
        y = _shared(examples.y)
        if not (y.is_floating_point() or y.dtype == torch.bool):
            y = y.long()
        x: Any = examples.x
        if isinstance(x, MappedRows):
            return x, y.to(self._device)
        return _shared(x).to(self._device), y.to(self._device)


def _shared(array: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        # Arrays shared with other processes are read-only; the tensor is never written to.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(array))
