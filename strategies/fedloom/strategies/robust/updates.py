"""A round's updates in memory: for tests, for examples, and for cohorts whose updates are small."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.aggregation import Updates
from fedloom.strategies.exact.partial import Coverage, Floats, Full, Key, TensorSpec
from fedloom.strategies.robust.base import Covered

Part = tuple[Coverage, NDArray[Any]]
"""Coordinates, and their values in row-major order."""


@dataclass(frozen=True, slots=True, eq=False)
class ArrayUpdate:
    """One client's update.

    Attributes:
        parts: for each tensor that it holds, the coverage and the values.
        weight: > 0.
    """

    parts: Mapping[Key, Part]
    weight: float = 1.0


class ArrayUpdates(Updates):
    """Updates that are held in memory.

        updates = ArrayUpdates.of({"a": {"w": np.array([1.0])}, "b": {"w": np.array([3.0])}})

    Args:
        specs: the tensors that updates may hold.
        updates: by client, in any order; those without parts are left out.
        block_values: coordinates in a block; cannot change a bit of a result.
    """

    def __init__(
        self,
        specs: Mapping[Key, TensorSpec],
        updates: Mapping[str, ArrayUpdate],
        *,
        block_values: int = 1 << 16,
    ) -> None:
        self._specs = dict(specs)
        self._clients = sorted(name for name, update in updates.items() if update.parts)
        self._weights = np.array([updates[name].weight for name in self._clients], np.float64)
        self._block_values = block_values
        self._values: dict[Key, Floats] = {}
        self._covered: dict[Key, NDArray[np.bool_]] = {}
        for number, name in enumerate(self._clients):
            for key, (coverage, values) in updates[name].parts.items():
                self._put(number, key, coverage, values)

    @classmethod
    def of(
        cls, deltas: Mapping[str, Mapping[str, NDArray[Any]]], group: str = "delta", **settings: Any
    ) -> "ArrayUpdates":
        """Updates of equal weight that cover whole tensors: `{client: {tensor: delta}}`."""
        specs = {
            (group, name): TensorSpec(shape=np.shape(value), dtype=np.asarray(value).dtype)
            for tensors in deltas.values()
            for name, value in tensors.items()
        }
        updates = {
            client: ArrayUpdate({(group, n): (Full(), np.asarray(v)) for n, v in tensors.items()})
            for client, tensors in deltas.items()
        }
        return cls(specs, updates, **settings)

    def _put(self, number: int, key: Key, coverage: Coverage, values: NDArray[Any]) -> None:
        spec = self._specs[key]
        coverage.check(spec.shape)
        if key not in self._values:
            self._values[key] = np.zeros((len(self._clients), spec.size))
            self._covered[key] = np.zeros((len(self._clients), spec.size), np.bool_)
        flat = np.asarray(values, np.float64).reshape(-1)
        ones = np.zeros(spec.size, np.int64)
        coverage.add_constant(ones, spec.shape, 1, 1 << 16)
        (positions,) = ones.nonzero()
        if positions.size != flat.size:
            raise ValueError(f"Expected {positions.size} values for {key}, got {flat.size}.")
        self._values[key][number, positions] = flat
        self._covered[key][number, positions] = True

    @property
    def clients(self) -> Sequence[str]:
        """The senders, sorted."""
        return self._clients

    @property
    def weights(self) -> Floats:
        """The weight of each, float64 [n]."""
        return self._weights

    @property
    def specs(self) -> Mapping[Key, TensorSpec]:
        """The tensors that updates may hold."""
        return self._specs

    def covered(self, key: Key) -> bool:
        """Return whether any update covers this tensor."""
        return key in self._covered and bool(self._covered[key].any())

    def ranges(self, key: Key) -> Iterator[tuple[int, int]]:
        """Yield `(start, stop)` that tile the tensor."""
        size = self._specs[key].size
        for start in range(0, size, self._block_values):
            yield start, min(start + self._block_values, size)

    def block(self, key: Key, start: int, stop: int) -> tuple[Floats, Covered]:
        """Return the values of the flat coordinates `start:stop`, and which are covered."""
        covered = self._covered[key][:, start:stop]
        return self._values[key][:, start:stop].copy(), True if covered.all() else covered

    def one(self, number: int, key: Key) -> Floats | None:
        """Return a whole tensor of one update; see `Updates.one`."""
        if key not in self._covered or not self._covered[key][number].any():
            return None
        values: Floats = self._values[key][number].copy()
        return values
