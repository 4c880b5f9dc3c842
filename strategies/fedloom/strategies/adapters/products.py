"""The means of a round whose adapters are averaged by their products B A.

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
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.adapters.settings import AdaptedLayer, Adapters, layers
from fedloom.strategies.adapters.truncation import leading
from fedloom.strategies.aggregation import Means, Updates
from fedloom.strategies.exact.partial import DELTA, Floats, Key, Params, TensorSpec

_STACKED: Final = 256
"""Ranks of several updates that are multiplied at once."""
_ROWS: Final = 512
"""Rows of a product computed at a time."""
NOTED: Final = 0.01
"""The share of a round's adapters from which on a loss is reported to operators."""


@dataclass(slots=True)
class _Made:
    """The next tensors of a layer; `rest` is None where the model has none, or after its use."""

    a: NDArray[np.float32]
    b: NDArray[np.float32]
    rest: NDArray[np.float32] | None


class ProductMeans:
    """Means whose steps lead to the factors of the mean product; other tensors keep their means.

    Args:
        means: of all tensors.
        updates: of the round.
        model: that the clients received.
        adapters: settings that average by products.
        seed: of new adapters, different in each round.
    """

    def __init__(
        self, means: Means, updates: Updates, model: Params, adapters: Adapters, seed: str
    ) -> None:
        self._means = means
        self._updates = updates
        self._model = model
        self._adapters = adapters
        self._seed = seed
        self._layers: dict[str, AdaptedLayer] = {}
        for layer in layers(model):
            rest = (layer.rest,) if adapters.keeps_rest else ()
            self._layers |= dict.fromkeys((layer.a, layer.b, *rest), layer)
        self._made: dict[AdaptedLayer, _Made] = {}
        self._lost = self._all = 0.0
        self.count = means.count

    @property
    def note(self) -> str:
        """What was lost of the layers so far; empty for little or nothing."""
        share = math.sqrt(self._lost / self._all) if self._all else 0.0
        if share < NOTED:
            return ""
        return (
            f"the adapters' rank lost {share:.1%} of the mean product's norm: for another run, "
            'raise the rank, or set adapters.rest = "send"'
        )

    @property
    def specs(self) -> Mapping[Key, TensorSpec]:
        """The tensors that may have means."""
        changed = (name for name in self._layers if name in self._model)
        arrays = {(DELTA, name): self._model[name] for name in changed}
        specs = {key: TensorSpec(shape=a.shape, dtype=a.dtype) for key, a in arrays.items()}
        return {**self._means.specs, **specs}

    def covered(self, key: Key) -> bool:
        """Return whether any update covers this tensor's layer, or else this tensor."""
        layer = self._layers.get(key[1])
        if layer is None:
            return self._means.covered(key)
        return any(self._updates.covered((key[0], name)) for name in (layer.a, layer.b))

    def mean_block(
        self, key: Key, start: int, stop: int
    ) -> tuple[Floats, NDArray[np.bool_] | bool]:
        """Return the steps of the flat coordinates `start:stop`; see `Means`."""
        layer = self._layers.get(key[1])
        if layer is None or not self.covered(key):
            return self._means.mean_block(key, start, stop)
        made = self._layer(layer, with_rest=key[1] == layer.rest)
        new = {layer.a: made.a, layer.b: made.b, layer.rest: made.rest}[key[1]]
        assert new is not None
        before = np.asarray(self._model[key[1]]).reshape(-1)[start:stop]
        return new.reshape(-1)[start:stop].astype(np.float64) - before, True

    def release(self, key: Key) -> None:
        """Release this tensor's means: the difference to a frozen weight is the large one."""
        layer = self._layers.get(key[1])
        if layer is None:
            self._means.release(key)
        elif key[1] == layer.rest and layer in self._made:
            self._made[layer].rest = None

    def _layer(self, layer: AdaptedLayer, *, with_rest: bool) -> _Made:
        """The next tensors of a layer; they are computed again if the rest is gone."""
        made = self._made.get(layer)
        if made is None or (with_rest and made.rest is None):
            for other in self._made.values():
                other.rest = None
            made = self._made[layer] = self._make(layer)
        return made

    def _make(self, layer: AdaptedLayer) -> _Made:
        total = self._mean_product(layer)
        keeps = self._adapters.keeps_rest
        if keeps:
            total += self._model[layer.rest]
        with np.errstate(over="raise"):
            if self._adapters.aggregate == "stack":
                return _Made(*self._fresh(layer), total.astype(np.float32))
            left, right = leading(total, self._model[layer.a].shape[0])
            a, b = right.astype(np.float32), left.astype(np.float32)
            norm = float(np.vdot(total, total))
            _add_product(total, -b.astype(np.float64), a.astype(np.float64))
            if keeps:
                return _Made(a, b, total.astype(np.float32))
            self._all += norm
            self._lost += float(np.vdot(total, total))
            return _Made(a, b, None)

    def _mean_product(self, layer: AdaptedLayer) -> Floats:
        """Σ w_k B_k A_k / Σ w_k over the updates that cover the layer, float64 [m, n]."""
        given_a = np.asarray(self._model[layer.a], np.float64)
        given_b = np.asarray(self._model[layer.b], np.float64)
        total = np.zeros((given_b.shape[0], given_a.shape[1]))
        mass, lefts, rights = 0.0, [], []  # type: float, list[Floats], list[Floats]
        most = max(1, _STACKED // given_a.shape[0])
        for number, weight in enumerate(self._updates.weights):
            step_a = self._updates.one(number, (DELTA, layer.a))
            step_b = self._updates.one(number, (DELTA, layer.b))
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
        a, b = self._model[layer.a], self._model[layer.b]
        digest = blake2b(f"{self._seed}\0{layer.name}".encode(), digest_size=16).digest()
        generator = np.random.default_rng(int.from_bytes(digest, "little"))
        drawn = generator.random(a.shape, np.float32) * np.float32(2) - np.float32(1)
        return drawn / np.float32(math.sqrt(a.shape[1])), np.zeros(b.shape, np.float32)


def _add_product(total: Floats, left: Floats, right: Floats) -> None:
    """Add left · right to a matrix, rows at a time."""
    for start in range(0, len(total), _ROWS):
        rows = slice(start, start + _ROWS)
        total[rows] += left[rows] @ right
