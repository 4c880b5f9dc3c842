"""Random numbers of examples, keyed by (seed, epoch, index, transform).

Philox is counter-based (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): block
(index, epoch, transform) of the stream of a seed is that example's, so its numbers depend on no
other example, not on the batch, and not on where the training was resumed.

Legend: B examples in a batch, N examples of the client.
"""

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_UNIFORM, _NORMAL, _SEED = 1, 2, 3
"""Purposes, the last word of a counter."""
_BLOCK = 4
"""Numbers of a Philox block."""
_WORD = (1 << 64) - 1


class Draws:
    """The numbers of one batch for one transform.

    >>> a, b = (Draws(7, 0, torch.tensor(i), 9).uniform(1).tolist() for i in ([3, 5], [5]))
    >>> a[1] == b[0]
    True

    Args:
        seed: of the task, from 0 to 2^64 − 1.
        epoch: number of the epoch in the task, from 0.
        indices: of the batch's examples among the client's, int64 [B].
        num_examples: N.
        place: number of the transform among all.
    """

    def __init__(
        self, seed: int, epoch: int, indices: Tensor, num_examples: int, place: int = 0
    ) -> None:
        self._seed, self._epoch, self._place = seed & _WORD, epoch, place
        self._indices, self._num_examples = indices, num_examples

    @property
    def indices(self) -> Tensor:
        """Of the batch's examples among the client's, int64 [B]."""
        return self._indices

    def at(self, place: int) -> "Draws":
        """The numbers of another transform for the same batch."""
        return Draws(self._seed, self._epoch, self._indices, self._num_examples, place)

    def uniform(self, count: int) -> Tensor:
        """Numbers in [0, 1), float64 [B, count], of at most 4 an example."""
        if not 1 <= count <= _BLOCK:
            raise ValueError(f"Expected 1 <= count <= {_BLOCK}, got {count}.")
        blocks = _blocks(self._seed, self._epoch, self._place, self._num_examples)
        return torch.from_numpy(blocks[self._indices.numpy(), :count])

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Standard normal numbers, float32 [B, *shape]."""
        out = np.empty((len(self._indices), *shape), np.float32)
        for row, index in zip(out, self._indices.tolist(), strict=True):
            counter = [0, index, self._epoch, self._place << 8 | _NORMAL]
            philox = np.random.Philox(key=self._seed, counter=counter)
            np.random.Generator(philox).standard_normal(out=row, dtype=np.float32)
        return torch.from_numpy(out)

    def seeds(self) -> list[int]:
        """A seed for each example, from 0 to 2^63 − 1."""
        counters = (
            [0, index, self._epoch, self._place << 8 | _SEED] for index in self._indices.tolist()
        )
        raw = (np.random.Philox(key=self._seed, counter=c).random_raw() for c in counters)
        return [int(value) >> 1 for value in raw]


@cache
def _last() -> dict[tuple[int, int, int, int], NDArray[np.float64]]:
    """The blocks of the epoch that is drawn from, for each of a few transforms."""
    return {}


def _blocks(seed: int, epoch: int, place: int, num_examples: int) -> NDArray[np.float64]:
    """Uniform numbers of all examples in an epoch, [N, 4]; row i is Philox's block i."""
    held, key = _last(), (seed, epoch, place, num_examples)
    if (found := held.get(key)) is None:
        if len(held) >= 16:
            held.clear()
        counter = [0, 0, epoch, place << 8 | _UNIFORM]
        raw = np.random.Philox(key=seed, counter=counter).random_raw(_BLOCK * num_examples)
        fractions = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
        found = held[key] = fractions.reshape(-1, _BLOCK)
    return found
