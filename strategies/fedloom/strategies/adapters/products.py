"""The step of a round whose adapters are averaged by their products B A.

For each layer, with w_k the weights of the updates that cover it, and A_k and B_k the factors that
a client trained (one of a lower rank sends the leading ranks; others keep the received values):

    T = R + Σ w_k B_k A_k / Σ w_k                             the mean of the clients' functions
    product:  B, A ← the best approximation of T, of the model's rank;   R ← T − B A, if it is kept
    stack:    R ← T;   A ← new random numbers, B ← 0

R is the difference to the frozen weight; zero where the settings keep none. References: `settings`.

Invariants:
    - Clients are in the order of their names, in float64: the order of arrival cannot change a bit.
    - One layer's T is in memory at a time, and a few updates' factors of it, for any number of
      clients.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.adapters.settings import AdaptedLayer, Adapters, layers
from fedloom.strategies.adapters.truncation import leading
from fedloom.strategies.aggregation import Means, Updates
from fedloom.strategies.exact.lazy_arrays import Values, pieces_of
from fedloom.strategies.exact.partial import DELTA, Floats, Key, TensorSpec

_STACKED: Final = 256
"""Ranks of several updates that are multiplied at once."""
_ROWS: Final = 512
"""Rows of a product computed at a time."""
NOTED: Final = 0.01
"""The share of a round's adapters from which on a loss is reported to operators."""


class Others:
    """The means of the tensors that no adapter has; see `Means`."""

    def __init__(self, means: Means) -> None:
        self.means = means
        self.count = means.count

    @property
    def specs(self) -> Mapping[Key, TensorSpec]:
        """The tensors that may have means."""
        specs = self.means.specs
        factors = {name for each in layers(name for _, name in specs) for name in (each.a, each.b)}
        return {key: spec for key, spec in specs.items() if key[1] not in factors}

    def covered(self, key: Key) -> bool:
        """Return whether any update covers this tensor."""
        return self.means.covered(key)

    def mean_block(
        self, key: Key, start: int, stop: int
    ) -> tuple[Floats, NDArray[np.bool_] | bool]:
        """Return the means of the flat coordinates `start:stop`, and which have one."""
        return self.means.mean_block(key, start, stop)

    def release(self, key: Key) -> None:
        """Release this tensor's means."""
        self.means.release(key)


def average(
    updates: Updates,
    model: Mapping[str, Values],
    adapters: Adapters,
    seed: str,
    keep: Callable[[Values], Values] = lambda values: values,
) -> tuple[dict[str, Values], str]:
    """Return the next tensors of all adapters that an update covers, and a note for operators.

    Args:
        updates: of the round.
        model: that the clients received; differences to frozen weights may be lazy.
        adapters: settings that average by products.
        seed: of new adapters, different in each round.
        keep: stores a difference to a frozen weight, and returns it.

    Raises:
        ValueError: an update covers one factor of a layer without the other.
    """
    step = _Step(updates, model, adapters, seed)
    new: dict[str, Values] = {}
    for layer in layers(model):
        if not any(updates.covered((DELTA, name)) for name in (layer.a, layer.b)):
            continue
        new[layer.a], new[layer.b], rest = step.next(layer)
        if rest is not None:
            new[layer.rest] = keep(rest)
        del rest  # the next layer needs its memory
    return new, step.note


@dataclass(slots=True)
class _Step:
    """The step of a round, layer by layer."""

    updates: Updates
    model: Mapping[str, Values]
    adapters: Adapters
    seed: str
    lost: float = field(default=0.0, init=False)
    total: float = field(default=0.0, init=False)

    @property
    def note(self) -> str:
        """What was lost, as squared norms of all layers; empty for little or nothing."""
        share = math.sqrt(self.lost / self.total) if self.total else 0.0
        if share < NOTED:
            return ""
        return (
            f"the adapters' rank lost {share:.1%} of the mean product's norm: for another run, "
            'raise the rank, or set adapters.rest = "send"'
        )

    def next(
        self, layer: AdaptedLayer
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32] | None]:
        """The next A, B and difference to the frozen weight; None if the run keeps none."""
        total = self._mean_product(layer)
        keeps = self.adapters.keeps_rest
        if keeps:
            _add(total, self.model[layer.rest])
        with np.errstate(over="raise"):
            if self.adapters.aggregate == "stack":
                return *self._fresh(layer), total.astype(np.float32)
            left, right = leading(total, self.model[layer.a].shape[0])
            stored = self.model[layer.a].dtype, self.model[layer.b].dtype
            a, b = right.astype(stored[0]), left.astype(stored[1])
            norm = float(np.vdot(total, total))
            _add_product(total, -b.astype(np.float64), a.astype(np.float64))
            if keeps:
                return a, b, total.astype(np.float32)
            self.total += norm
            self.lost += float(np.vdot(total, total))
            return a, b, None

    def _mean_product(self, layer: AdaptedLayer) -> Floats:
        """Σ w_k B_k A_k / Σ w_k over the updates that cover the layer, float64 [m, n]."""
        given_a = np.asarray(self.model[layer.a], np.float64)
        given_b = np.asarray(self.model[layer.b], np.float64)
        total = np.zeros((given_b.shape[0], given_a.shape[1]))
        mass, lefts, rights = 0.0, [], []  # type: float, list[Floats], list[Floats]
        most = max(1, _STACKED // given_a.shape[0])
        for number, weight in enumerate(self.updates.weights):
            step_a = self.updates.one(number, (DELTA, layer.a))
            step_b = self.updates.one(number, (DELTA, layer.b))
            if step_a is None or step_b is None:
                continue
            mass += float(weight)
            lefts.append(weight * (given_b + step_b.reshape(given_b.shape)))
            rights.append(given_a + step_a.reshape(given_a.shape))
            if len(lefts) == most:
                _add_product(total, np.hstack(lefts), np.vstack(rights))
                lefts, rights = [], []
        if lefts:
            _add_product(total, np.hstack(lefts), np.vstack(rights))
        if not mass:
            raise ValueError(f"Expected both factors of {layer.name} in an update, got one.")
        total /= mass
        return total

    def _fresh(self, layer: AdaptedLayer) -> tuple[NDArray[Any], NDArray[Any]]:
        """A new adapter as peft makes it: A uniform in ±1/√n, B zero."""
        a, b = self.model[layer.a], self.model[layer.b]
        digest = blake2b(f"{self.seed}\0{layer.name}".encode(), digest_size=16).digest()
        generator = np.random.default_rng(int.from_bytes(digest, "little"))
        drawn = generator.random(a.shape, np.float32) * np.float32(2) - np.float32(1)
        return drawn / np.float32(math.sqrt(a.shape[1])), np.zeros(b.shape, np.float32)


def _add_product(total: Floats, left: Floats, right: Floats) -> None:
    """Add left · right to a matrix, rows at a time."""
    for start in range(0, len(total), _ROWS):
        rows = slice(start, start + _ROWS)
        total[rows] += left[rows] @ right


def _add(total: Floats, values: Values) -> None:
    """Add values to a matrix, piece by piece."""
    flat = total.reshape(-1)
    for start, piece in pieces_of(values):
        flat[start : start + piece.size] += piece
