"""The exact sum of a round: weighted values and weights, added as integers.

A round's result is a weighted mean per coordinate. Each addend is rounded once, to
`rint(x · w · 2^s)`, and everything after that is integer addition, which is associative: order,
chunking, sharding over processes, merges and restarts cannot change a bit. docs/exactness.md has
the error bound and its measurement.

Legend: x a value, w a weight, u = w / WEIGHT_UNIT its integer units, s the round's exponent.

Invariants:
    - A `Partial` is a commutative monoid under `+`, for equal specs and exponent.
    - Only the accumulators are allocated as whole tensors.
    - While every |x| <= max_abs and the weights of all updates stay within max_weight_sum, with s
      from `exponent(max_abs, max_weight_sum)`, no sum can overflow. The caller checks both.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.exact.coverage import Coverage, Full, Mask, Slice
from fedloom.strategies.exact.fixed_point import (
    BLOCK,
    EXPONENT_LIMIT,
    MAX_UNITS,
    MAX_WEIGHT_SUM,
    UNIT_BITS,
    WEIGHT_UNIT,
    Ints,
    Scaler,
    exponent,
    weight_units,
)

__all__ = [
    "BLOCK",
    "DELTA",
    "MAX_UNITS",
    "MAX_WEIGHT_SUM",
    "SCALAR",
    "WEIGHT_UNIT",
    "Coverage",
    "Full",
    "Key",
    "Mask",
    "Params",
    "Partial",
    "Slice",
    "TensorSpec",
    "exponent",
    "weight_units",
]

Params: TypeAlias = Mapping[str, NDArray[Any]]
Key: TypeAlias = tuple[str, str]
"""(group, tensor)"""
DELTA: Final = "delta"
"""The group of updates to the parameters: trained minus received."""
SCALAR: Final = "scalar"
"""The group of single numbers that clients send, by name."""
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """The shape of a tensor and the numpy dtype it is computed in."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return math.prod(self.shape)


class _Entry:
    """The sums of one tensor, allocated when it is first covered."""

    __slots__ = ("spec", "sums", "weight_all", "weights")

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.sums: Ints | None = None  # [size]
        self.weight_all = 0  # units that cover every coordinate
        self.weights: Ints | None = None  # [size], units per coordinate on top of weight_all

    def add_weight(self, coverage: Coverage, units: int) -> None:
        if isinstance(coverage, Full):
            self.weight_all += units
            return
        if self.weights is None:
            self.weights = np.zeros(self.spec.size, np.int64)
        coverage.add_constant(self.weights, self.spec.shape, units, BLOCK)

    def merge(self, other: "_Entry") -> None:
        self.sums = _sum(self.sums, other.sums)
        self.weights = _sum(self.weights, other.weights)
        self.weight_all += other.weight_all

    def same(self, other: "_Entry") -> bool:
        return (
            (self.spec, self.weight_all) == (other.spec, other.weight_all)
            and _equal(self.sums, other.sums)
            and _equal(self.weights, other.weights)
        )


class Partial:
    """The sum of some of a round's updates, closed under `+`.

    Not safe for concurrent `add` on one key; different keys may be folded in different threads.

    Args:
        specs: the tensors that updates may hold.
        exponent: s, from `exponent()`; the same for all partials of a round.

    Attributes:
        count: updates in it; the caller counts an update after adding its parts.
    """

    __slots__ = ("_draining", "_entries", "_exponent", "count")

    def __init__(self, specs: Mapping[Key, TensorSpec], exponent: int) -> None:
        if not -EXPONENT_LIMIT <= exponent <= EXPONENT_LIMIT:
            raise ValueError(f"Expected an exponent from -900 to 900, got {exponent}.")
        self._entries = {key: _Entry(spec) for key, spec in specs.items()}
        self._exponent = exponent
        self._draining = False
        self.count = 0

    @property
    def specs(self) -> dict[Key, TensorSpec]:
        """The tensors that updates may hold."""
        return {key: entry.spec for key, entry in self._entries.items()}

    @property
    def exponent(self) -> int:
        """The round's s."""
        return self._exponent

    def add(
        self,
        key: Key,
        coverage: Coverage,
        units: int,
        read: Callable[[int], NDArray[Any]],
        *,
        value_units: int | None = None,
    ) -> None:
        """Add one part of one update, reading its values block by block.

        The values must be finite and within the bounds of the exponent; that is checked on
        admission, not here. If `read` fails, the sums of this key contain part of an update: start
        again from a checkpoint.

        Args:
            key: the tensor.
            coverage: coordinates of the values, in row-major order.
            units: the weight, from `weight_units()`.
            read: called with n > 0, returns the next n values, 1-D, float16, 32 or 64, or ints.
            value_units: factor of the values, from 0 to `units`, below `units` for a stale update;
                None for `units`.

        Raises:
            ValueError: unknown key, coverage outside the tensor, units outside 1..`MAX_UNITS`,
                value_units outside 0..units, or `read` returned another number of values.
        """
        value_units = units if value_units is None else value_units
        if not 0 <= value_units <= units:
            raise ValueError(f"Expected value_units in 0..{units}, got {value_units}.")
        entry = self._checked(key, coverage, units)
        if entry is None:
            return
        shape, count = entry.spec.shape, coverage.count(entry.spec.shape)
        assert entry.sums is not None
        view = coverage.view(entry.sums, shape)
        scaler = Scaler(value_units, self._exponent, min(BLOCK, count))
        for index, block in coverage.blocks(shape, BLOCK):
            size = math.prod(block)
            coverage.accumulate(view, index, scaler.addends(read(size), size).reshape(block))
        entry.add_weight(coverage, units)

    def add_array(
        self,
        key: Key,
        coverage: Coverage,
        units: int,
        values: NDArray[Any],
        *,
        value_units: int | None = None,
    ) -> None:
        """Add one part of one update from an array of any shape of the right size.

        Raises:
            ValueError: as `add`, or `values` has the wrong number of values.
        """
        expected = coverage.count(self._entry(key).spec.shape)
        if values.size != expected:
            raise ValueError(f"Expected {expected} values for {key}, got {values.size}.")
        flat, position = np.ascontiguousarray(values).reshape(-1), 0

        def read(count: int) -> NDArray[Any]:
            nonlocal position
            position += count
            return flat[position - count : position]

        self.add(key, coverage, units, read, value_units=value_units)

    def add_zeros(self, key: Key, coverage: Coverage, units: int) -> None:
        """Add the weight of a part whose values are all zero, such as a frozen tensor.

        Raises:
            ValueError: as `add`.
        """
        entry = self._checked(key, coverage, units)
        if entry is not None:
            entry.add_weight(coverage, units)

    def merge(self, other: "Partial") -> None:
        """Add another partial of the same round into this one.

        Raises:
            ValueError: the specs or the exponents differ.
        """
        self._check_same_round(other)
        for key, entry in self._entries.items():
            entry.merge(other._entry(key))  # noqa: SLF001 - same class
        self.count += other.count

    def __add__(self, other: "Partial") -> "Partial":
        total = Partial(self.specs, self._exponent)
        total.merge(self)
        total.merge(other)
        return total

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Partial):
            return NotImplemented
        return (
            (self._exponent, self.count) == (other.exponent, other.count)
            and self.specs == other.specs
            and all(entry.same(other._entry(key)) for key, entry in self._entries.items())  # noqa: SLF001
        )

    __hash__ = None  # type: ignore[assignment]

    def covered(self, key: Key) -> bool:
        """Return whether any update covers this tensor."""
        return self._entry(key).sums is not None

    def mean_block(
        self, key: Key, start: int, stop: int
    ) -> tuple[Floats, NDArray[np.bool_] | bool]:
        """Return the weighted mean of the flat coordinates `start:stop`, and which are covered.

        Returns:
            float64 [stop - start], 0 where no update covers; and the covered coordinates: True or
            False for the whole block, or bool [stop - start].
        """
        entry = self._entry(key)
        if entry.sums is None:
            return np.zeros(stop - start), False
        mean = entry.sums[start:stop].astype(np.float64)
        if entry.weights is None:
            mean /= math.ldexp(entry.weight_all, self._exponent - UNIT_BITS)
            return mean, True
        weights = (entry.weights[start:stop] + entry.weight_all).astype(np.float64)
        covered = weights > 0
        weights *= math.ldexp(1.0, self._exponent - UNIT_BITS)
        np.divide(mean, weights, out=mean, where=covered)
        return mean, covered

    def sum_block(self, key: Key, start: int, stop: int) -> Ints:
        """Return the integer sums of the flat coordinates `start:stop`: Σ rint(x · w · 2^s).

        Returns:
            int64 [stop - start], a copy; 0 where no update covers.
        """
        sums = self._entry(key).sums
        return np.zeros(stop - start, np.int64) if sums is None else sums[start:stop].copy()

    def drain(self) -> "Partial":
        """Move the sums to a partial that frees each tensor's after `finish` has used it.

        This partial becomes empty. Without draining, `finish` leaves a partial unchanged.
        """
        drained = Partial(self.specs, self._exponent)
        fresh, drained._draining = drained._entries, True
        drained._entries, self._entries = self._entries, fresh
        drained.count, self.count = self.count, 0
        return drained

    def release(self, key: Key) -> None:
        """Release this tensor's sums; only a draining partial frees them."""
        if self._draining:
            self._entries[key] = _Entry(self._entry(key).spec)

    def arrays(self) -> tuple[dict[str, Ints], dict[str, str]]:
        """Return the content of a checkpoint: int64 arrays, and strings that describe them.

        The arrays are the live ones, not copies: write them before the next `add`. The strings
        can go into JSON or into the metadata of a safetensors file.
        """
        arrays: dict[str, Ints] = {}
        entries = []
        for number, (key, entry) in enumerate(self._entries.items()):
            if entry.sums is not None:
                arrays[f"sums.{number}"] = entry.sums
            if entry.weights is not None:
                arrays[f"weights.{number}"] = entry.weights
            spec = entry.spec
            entries.append([*key, list(spec.shape), spec.dtype.str, entry.weight_all])
        return arrays, {
            "exponent": str(self._exponent),
            "count": str(self.count),
            "entries": json.dumps(entries),
        }

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], header: Mapping[str, str]
    ) -> "Partial":
        """Rebuild a partial from `arrays()`, bit for bit; writable arrays are not copied.

        Raises:
            ValueError: an array's dtype, size or name does not match the header.
        """
        entries = json.loads(header["entries"])
        specs = {
            (group, tensor): TensorSpec(shape=tuple(shape), dtype=np.dtype(dtype))
            for group, tensor, shape, dtype, _ in entries
        }
        partial = cls(specs, int(header["exponent"]))
        partial.count = int(header["count"])
        rest = dict(arrays)
        for number, (entry, row) in enumerate(zip(partial._entries.values(), entries, strict=True)):
            entry.weight_all = row[-1]
            entry.sums = _taken(rest.pop(f"sums.{number}", None), entry.spec)
            entry.weights = _taken(rest.pop(f"weights.{number}", None), entry.spec)
        if rest:
            raise ValueError(f"Expected sums and weights of {len(specs)} tensors, got {[*rest]}.")
        return partial

    def _entry(self, key: Key) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            raise ValueError(
                f"Expected one of the round's {len(self._entries)} tensors, got {key}."
            )
        return entry

    def _checked(self, key: Key, coverage: Coverage, units: int) -> _Entry | None:
        """The entry for a valid part, with its sums allocated; None for an empty part."""
        entry = self._entry(key)
        coverage.check(entry.spec.shape)
        if not 1 <= units <= MAX_UNITS:
            raise ValueError(f"Expected units in 1..{MAX_UNITS}, got {units}.")
        if coverage.count(entry.spec.shape) == 0 and not isinstance(coverage, Full):
            return None
        if entry.sums is None:
            entry.sums = np.zeros(entry.spec.size, np.int64)
        return entry

    def _check_same_round(self, other: "Partial") -> None:
        if self.specs != other.specs or self._exponent != other.exponent:
            raise ValueError(
                f"Expected a partial of the same round ({len(self._entries)} tensors, exponent "
                f"{self._exponent}), got {len(other.specs)} tensors, exponent {other.exponent}."
            )


def _sum(a: Ints | None, b: Ints | None) -> Ints | None:
    if a is None or b is None:
        return a if b is None else b.copy()
    np.add(a, b, out=a)
    return a


def _equal(a: Ints | None, b: Ints | None) -> bool:
    """Compare; None means zeros."""
    if a is None or b is None:
        some = a if b is None else b
        return some is None or not some.any()
    return np.array_equal(a, b)


def _taken(array: NDArray[Any] | None, spec: TensorSpec) -> Ints | None:
    if array is None:
        return None
    if array.dtype != np.int64 or array.shape != (spec.size,):
        raise ValueError(f"Expected int64 ({spec.size},), got {array.dtype} {array.shape}.")
    return np.require(array, requirements=["C", "W"])
