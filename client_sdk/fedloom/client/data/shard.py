"""What a device trains on, whatever it lies in: so many examples, and those at some places.

Invariants: the examples of every batch and their order depend only on the number of examples, the
batch size and the seed; nothing writes to what the examples lie in.

Legend: N examples.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.client.training.length import num_batches
from fedloom.protocol.errors import UsageError

Batch: TypeAlias = tuple[NDArray[Any], NDArray[Any]]
"""Inputs, one example per row, and their targets."""
Indices: TypeAlias = NDArray[np.int64]
EVALUATION_BATCH = 4096
"""Examples evaluated at a time."""


class Shard(ABC):
    """Examples of one device. Subclass it for storage of your own: `__len__` and `take` are enough.

    It is also a data set of map style for PyTorch.
    """

    num_classes: int | None = None
    """How many classes the targets number, where the shard was told."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of examples, N."""

    @abstractmethod
    def take(self, indices: Indices) -> Batch:
        """The examples at these places, in this order; arrays that are the caller's.

        Args:
            indices: int64 [n], each from 0 to N - 1.
        """

    def fixed(self) -> "Shard":
        """The examples as they are now, for one task: they do not change while it works on them."""
        return self

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """One example: its input and its target."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"Expected an index below {len(self)}, got {index}.")
        x, y = self.take(np.array([index % len(self)]))
        return x[0], y[0]

    def all(self) -> Batch:
        """Every example in order."""
        return self.take(np.arange(len(self)))

    def batches(self, seed: int, size: int) -> Iterator[Batch]:
        """Every example once, in an order that follows from the seed.

        Args:
            seed: at least 0.
            size: examples in a batch, the last one may have fewer; 0 for all in order in one.
        """
        return self.training(seed, size, epochs=1)

    def training(
        self, seed: int, size: int, *, epochs: int | None = None, steps: int | None = None
    ) -> Iterator[Batch]:
        """The batches of a local training.

        Args:
            seed: gives the order, another one in each pass.
            size: as in `batches`.
            epochs: passes over the examples, or None where `steps` counts.
            steps: batches, whatever that is in passes.
        """
        wanted = num_batches(len(self), epochs=epochs, steps=steps, batch_size=size)
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
        """Part the examples: those to train on, at least one, and those to evaluate on.

        Args:
            fraction: of the examples to evaluate on, from 0 to below 1.
            seed: the same one parts the same examples in the same way.

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
        shard: that has them.
        indices: int64 [n], which ones, in which order.
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
    """Examples in arrays, in memory or mapped from files: only what is taken is converted.

    >>> shard = Arrays(np.array([[0, 255], [255, 0]], np.uint8), np.array([1, 0]), scale=1 / 255)
    >>> shard.all()
    (array([[0., 1.],
           [1., 0.]], dtype=float32), array([1, 0]))

    Args:
        x: inputs, shape (N, …).
        y: targets, shape (N, …).
        dtype: of inputs as they are taken; None for that of `x`.
        mean: taken off inputs, of a shape that goes with one example's. The same on every device.
        scale: that inputs are then multiplied by, likewise.
        num_classes: how many classes the targets number, where they do.

    Raises:
        UsageError: inputs and targets are not of one length.
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
    """Examples in a data set of map style, such as PyTorch's: (input, target) at each place.

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
    """Wrap what a user holds data in.

    Args:
        data: a shard; arrays (x, y), used in their own dtypes; or a data set of map style.

    Raises:
        UsageError: it is none of these, or has no example.
    """
    if isinstance(data, Shard):
        shard = data
    elif isinstance(data, tuple) and len(data) == 2:
        shard = Arrays(*(np.asarray(part) for part in data), dtype=None)
    elif hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        shard = Items(data)
    else:
        raise UsageError(
            "Expected arrays (x, y), a shard of fedloom.client.data or a data set with a length, "
            f"got {type(data).__name__}."
        )
    return shard
