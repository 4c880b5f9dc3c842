"""Shards: the interface to the examples of a device, independent of their storage.

Invariants: the examples of every batch and their order depend only on the number of examples, the
batch size and the seed; nothing here writes to the storage of the examples.

Legend: N examples.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.client.training.length import batches_of
from fedloom.protocol.errors import UsageError

Batch: TypeAlias = tuple[NDArray[Any], NDArray[Any]]
"""Inputs, one example per row, and their targets."""
Indices: TypeAlias = NDArray[np.int64]
EVALUATION_BATCH = 4096
"""Examples in a batch of an evaluation."""


class Shard(ABC):
    """Examples of one device. For your own storage, subclass it with `__len__` and `take`.

    It is also a map-style data set for PyTorch.
    """

    num_classes: int | None = None
    """Number of classes of the targets, if known."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of examples."""

    @abstractmethod
    def take(self, indices: Indices) -> Batch:
        """The examples at these indices, in this order, as new arrays.

        Args:
            indices: int64 [n], each from 0 to N - 1.
        """

    def fixed(self) -> "Shard":
        """A snapshot of the examples, which does not change during a task."""
        return self

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"Expected an index below {len(self)}, got {index}.")
        x, y = self.take(np.array([index % len(self)]))
        return x[0], y[0]

    def all(self) -> Batch:
        """Every example in order."""
        return self.take(np.arange(len(self)))

    def batches(self, seed: int, size: int) -> Iterator[Batch]:
        """Every example once, in an order given by the seed.

        Args:
            seed: at least 0.
            size: examples in a batch; the last may have fewer; 0: one batch of all, in order.
        """
        return self.training(seed, size, epochs=1)

    def training(
        self, seed: int, size: int, *, epochs: int | None = None, steps: int | None = None
    ) -> Iterator[Batch]:
        """The batches of a local training.

        Args:
            seed: of the order, which differs in each epoch.
            size: as in `batches`.
            epochs: passes over the examples; None if `steps` is set.
            steps: number of batches; takes precedence.
        """
        wanted = (epochs or 0) * batches_of(len(self), size) if steps is None else steps
        for indices in islice(self._places(seed, size), wanted):
            yield self.all() if indices is None else self.take(indices)

    def _places(self, seed: int, size: int) -> Iterator[Indices | None]:
        draws = np.random.default_rng(seed)
        while True:
            if not size:
                yield None
                continue
            order = draws.permutation(len(self))
            yield from (order[start : start + size] for start in range(0, len(self), size))

    def in_order(self, size: int = EVALUATION_BATCH) -> Iterator[Batch]:
        """Every example once, in order."""
        for start in range(0, len(self), size):
            yield self.take(np.arange(start, min(start + size, len(self))))

    def split(self, fraction: float, seed: int = 0) -> tuple["Shard", "Shard"]:
        """Split the examples into some to train on, at least one, and some to evaluate on.

        Args:
            fraction: share of the examples to evaluate on, from 0 to below 1.
            seed: of the split; the same seed gives the same split.

        Raises:
            UsageError: the fraction is out of range.
        """
        if not 0 <= fraction < 1:
            raise UsageError(f"Expected 0 <= fraction < 1 to evaluate on, got {fraction}.")
        count = min(round(fraction * len(self)), max(0, len(self) - 1))
        order = np.random.default_rng(seed).permutation(len(self))
        return Subset(self, np.sort(order[count:])), Subset(self, np.sort(order[:count]))


class Subset(Shard):
    """Some examples of another shard.

    Args:
        shard: the other shard.
        indices: int64 [n], of its examples, in the order of the new shard.
    """

    def __init__(self, shard: Shard, indices: Indices) -> None:
        self._shard, self._indices = shard, indices
        self.num_classes = shard.num_classes

    def __len__(self) -> int:
        return len(self._indices)

    def take(self, indices: Indices) -> Batch:
        """As `Shard.take`."""
        return self._shard.take(self._indices[indices])


class Arrays(Shard):
    """Examples in arrays, in memory or mapped from files; `take` converts only what it returns.

    >>> shard = Arrays(np.array([[0, 255], [255, 0]], np.uint8), np.array([1, 0]), scale=1 / 255)
    >>> shard.all()
    (array([[0., 1.],
           [1., 0.]], dtype=float32), array([1, 0]))

    Args:
        x: inputs, shape (N, …).
        y: targets, shape (N, …).
        dtype: of returned inputs; None: that of `x`.
        mean: subtracted from inputs; its shape must broadcast to one example's. Use the same value
            on every device.
        scale: factor of the inputs after `mean` is subtracted; shape and values as for `mean`.
        num_classes: number of classes of the targets, if they are class numbers.

    Raises:
        UsageError: inputs and targets differ in length.
    """

    def __init__(
        self,
        x: NDArray[Any],
        y: NDArray[Any],
        *,
        dtype: Any = np.float32,
        mean: Any = 0.0,
        scale: Any = 1.0,
        num_classes: int | None = None,
    ) -> None:
        if not x.ndim or not y.ndim or len(x) != len(y):
            raise UsageError(
                f"Expected one target for each input, got shapes {x.shape} and {y.shape}."
            )
        self._x, self._y = x, y
        self._dtype = x.dtype if dtype is None else np.dtype(dtype)
        self._mean, self._scale = (np.asarray(value, self._dtype) for value in (mean, scale))
        self._is_plain = not self._mean.any() and bool((self._scale == 1).all())
        self.num_classes = num_classes

    def __len__(self) -> int:
        return len(self._y)

    def take(self, indices: Indices) -> Batch:
        """As `Shard.take`."""
        x = np.asarray(self._x[indices]).astype(self._dtype, copy=False)
        if not self._is_plain:
            x = (x - self._mean) * self._scale
        return x, np.asarray(self._y[indices])


class Items(Shard):
    """Examples in a map-style data set, such as PyTorch's: (input, target) at each index.

    Args:
        dataset: with a length.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def take(self, indices: Indices) -> Batch:
        """As `Shard.take`."""
        pairs = [self._dataset[int(index)] for index in indices]
        return np.stack([np.asarray(x) for x, _ in pairs]), np.stack(
            [np.asarray(y) for _, y in pairs]
        )


def as_shard(data: Any) -> Shard:
    """Wrap data in a shard.

    Args:
        data: a shard; arrays (x, y), used in their own dtypes; or a map-style data set.

    Raises:
        UsageError: it is none of these, or inputs and targets differ in length.
    """
    if isinstance(data, Shard):
        return data
    if isinstance(data, tuple) and len(data) == 2:
        return Arrays(*(np.asarray(part) for part in data), dtype=None)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return Items(data)
    raise UsageError(
        "Expected arrays (x, y), a shard of fedloom.client.data or a data set with a length, "
        f"got {type(data).__name__}."
    )
