"""Seeded batches from tensors, data sets, data loaders and shards.

Invariant: the examples of every batch and their order depend only on the data, the batch size, and
the seed; torch.Generator gives the same permutation on every platform's CPU.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from fedloom.client.data import Shard
from fedloom.client.training.length import batches_of, steps_of
from fedloom.protocol.errors import UsageError
from fedloom.strategies import RoundSettings

Data = tuple[Tensor, Tensor] | Dataset[Any] | Shard
"""(x, y) with one example per row, a map-style data set of such pairs, or a shard of
`fedloom.client.data`."""

Batch = tuple[Any, Tensor]
Split = Callable[[Any], Batch]
Indices = Tensor | Sequence[Any]
EVALUATION_BATCH = 256
"""Examples per batch in evaluation."""


class ExampleSource(ABC):
    """A source of batches.

    Attributes:
        is_drawn_here: whether every epoch has all examples, in an order of the task's seed.
    """

    is_drawn_here = True

    def fix(self) -> None:  # noqa: B027 - most sources do not grow
        """Use only the examples that a growing source has now."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of examples."""

    @abstractmethod
    def all(self) -> Batch:
        """Every example in order, as one batch."""

    @abstractmethod
    def take(self, indices: Indices) -> Batch:
        """The examples at these indices, as one batch."""

    def per_epoch(self, batch_size: int) -> int:
        """Number of batches of an epoch; `batch_size` 0 stands for all examples."""
        return batches_of(len(self), batch_size)

    def num_trained(self, batch_size: int) -> int:  # noqa: ARG002 - of some loaders
        """Number of examples of an epoch."""
        return len(self)

    def in_order(self, batch_size: int) -> Iterator[Indices]:
        """The batches of indices in which every example comes once."""
        return iter(torch.split(torch.arange(len(self)), batch_size))

    def fetched(self, wanted: Iterable[Indices]) -> Iterator[Batch]:
        """The batches of these indices."""
        return map(self.take, wanted)

    def drawn(self, batch_size: int, seed: int, skip: int, stop: int) -> Iterator[Batch]:
        """The batches from `skip` to `stop` of endless epochs.

        Args:
            batch_size: 0 for all examples in each batch.
            seed: of the task.
            skip: batches that were trained on before.
            stop: batches in total.
        """
        if not batch_size:
            for _ in range(skip, stop):
                yield self.all()  # without a copy in another order, which would not matter
            return
        for indices in islice(shuffled(len(self), batch_size, seed), skip, stop):
            yield self.take(indices)


class _Tensors(ExampleSource):
    """Examples in tensors: a batch is one indexing operation."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        if len(x) != len(y):
            raise UsageError(f"Expected one target for each of {len(x)} inputs, got {len(y)}.")
        self._x, self._y = x, y

    def __len__(self) -> int:
        return len(self._y)

    def all(self) -> Batch:
        return self._x, self._y

    def take(self, indices: Indices) -> Batch:
        assert isinstance(indices, Tensor)
        # index_select is twice as fast as indexing for batches of 10 rows of 784 numbers.
        here = indices.to(self._y.device)
        return self._x.index_select(0, indices.to(self._x.device)), self._y.index_select(0, here)


class DatasetItems(ExampleSource):
    """Examples in a map-style data set: a batch is collated from its items.

    Args:
        dataset: of items.
        collate: joins a list of items into a batch.
        split: a batch into inputs and targets.
    """

    def __init__(
        self, dataset: Dataset[Any], collate: Callable[[list[Any]], Any], split: Split
    ) -> None:
        self._dataset, self._collate, self._split = dataset, collate, split

    def __len__(self) -> int:
        return len(cast("Sized", self._dataset))

    def all(self) -> Batch:
        """Every example in order, as one batch."""
        return self.take(range(len(self)))

    def take(self, indices: Indices) -> Batch:
        """The items at these indices, as one batch."""
        return self._split(joined(self._dataset, self._collate, indices))


def joined(dataset: Dataset[Any], collate: Callable[[list[Any]], Any], indices: Indices) -> Any:
    """A batch of a data set, as torch's loaders make it."""
    listed = indices.tolist() if isinstance(indices, Tensor) else list(indices)
    several = getattr(dataset, "__getitems__", None)
    return collate(several(listed) if several else [dataset[index] for index in listed])


def pair(batch: Any) -> Batch:
    """A batch of inputs and targets.

    Raises:
        UsageError: it is something else.
    """
    if isinstance(batch, list | tuple) and len(batch) == 2 and isinstance(batch[1], Tensor):
        return batch[0], batch[1]
    of = f" of {len(batch)}" if isinstance(batch, list | tuple) else ""
    raise UsageError(
        f"Expected batches of (inputs, targets), got {type(batch).__name__}{of}: say which is "
        "which with `split`, such as split=lambda batch: (batch, batch['labels'])."
    )


class _OfShard(ExampleSource):
    def __init__(self, shard: Shard) -> None:
        self._whole = self._shard = shard

    def fix(self) -> None:
        """Use only the examples that the shard has now."""
        self._shard = self._whole.fixed()

    def __len__(self) -> int:
        return len(self._shard)

    def all(self) -> Batch:
        return self._tensors(*self._shard.all())

    def take(self, indices: Indices) -> Batch:
        return self._tensors(*self._shard.take(np.asarray(indices)))

    @staticmethod
    def _tensors(*arrays: NDArray[Any]) -> Batch:
        x, y = (torch.from_numpy(np.require(array, requirements=["C", "W"])) for array in arrays)
        return x, y


def examples(data: Data, split: Split | None = None) -> ExampleSource:
    """Wrap data so that batches can be drawn from it; `loaders.examples` also wraps loaders.

    Args:
        data: of one client.
        split: a batch into inputs and targets; None for pairs.

    Raises:
        UsageError: the data has no length, such as an iterable data set.
    """
    if isinstance(data, Shard):
        return _OfShard(data)
    if split is None and isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return tensors(*data.tensors)
    if isinstance(data, tuple):
        return tensors(*data)
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise UsageError(
            "Expected (x, y) tensors, a data set with a length, or a loader of one, "
            f"got {type(data).__name__}. Read a stream into a list of examples first."
        )
    return DatasetItems(data, default_collate, split or pair)


def tensors(x: Tensor, y: Tensor) -> ExampleSource:
    """Examples in the rows of two tensors."""
    return _Tensors(x, y)


NONE: ExampleSource = DatasetItems(cast("Dataset[Any]", []), default_collate, pair)
"""No examples."""


def fix(source: ExampleSource) -> None:
    """Fix the examples of a growing source for the duration of a task."""
    source.fix()


def orders(num_examples: int, seed: int) -> Iterator[Tensor]:
    """Endless permutations of the examples, one per epoch, int64."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randperm(num_examples, generator=generator)


def shuffled(num_examples: int, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Endless batches of indices, epoch by epoch.

    Args:
        num_examples: at least 1.
        batch_size: at least 1; the last batch of an epoch may be smaller.
        seed: from 0 to 2^64 − 1.
    """
    for order in orders(num_examples, seed):
        yield from torch.split(order, batch_size)


def in_order(
    source: ExampleSource, batch_size: int = EVALUATION_BATCH, *, rank: int = 0, size: int = 1
) -> Iterator[Batch]:
    """Every example once, in order; each of several ranks gets every `size`-th batch."""
    return source.fetched(islice(source.in_order(batch_size), rank, None, size))


def training(
    source: ExampleSource, settings: RoundSettings, seed: int, skip: int = 0
) -> Iterator[Batch]:
    """The batches of a local training on at least one example, after the first `skip`.

    The seed determines their order.
    """
    wanted = steps_of(source.per_epoch(settings.batch_size), settings)
    return source.drawn(settings.batch_size, seed, skip, wanted)
