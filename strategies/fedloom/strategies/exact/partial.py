"""The exact sum of a round: weighted values and weights, added as integers.

A round's result is a weighted mean per coordinate. Each product of a value and a weight becomes
integers, in as many words as its bits need, and everything after that is integer addition, which is
associative: order, chunking, sharding over processes, merges and restarts cannot change a bit. A
narrow sum has one word, and rounds each product to `rint(x · w · 2^s)`. docs/exactness.md has the
error bounds and measurements.

Legend: x a value, w a weight, u = w / WEIGHT_UNIT its integer units, s the round's exponent.

Invariants:
    - A `Partial` is a commutative monoid under `+`, for equal specs, exponent and width.
    - Only the accumulators are allocated as whole tensors.
    - While every |x| <= max_abs and the weights of all updates stay within max_weight_sum, with s
      from `exponent(max_abs, max_weight_sum)`, no sum can overflow. The caller checks both.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.exact.coverage import Coverage, Full, Mask, Slice
from fedloom.strategies.exact.fixed_point import (
    EXPONENT_LIMIT,
    MAX_UNITS,
    MAX_WEIGHT_SUM,
    UNIT_BITS,
    WEIGHT_UNIT,
    Draws,
    Ints,
    Scaler,
    exact_scales,
    exponent,
    halves,
    is_wide,
    weight_units,
)
from fedloom.strategies.exact.packed import Bytes, Packing, pack
from fedloom.strategies.exact.unpacking import Unpacking
from fedloom.strategies.exact.words import (
    AT_ONCE,
    BLOCK,
    DENSE,
    MOST_WORDS,
    WORD_BITS,
    Floats,
    Slicer,
    Words,
    words_down_to_floor,
)

__all__ = [
    "AT_ONCE",
    "BLOCK",
    "DELTA",
    "MAX_UNITS",
    "MAX_WEIGHT_SUM",
    "SCALAR",
    "WEIGHT_UNIT",
    "Addend",
    "Coverage",
    "Floats",
    "Full",
    "Key",
    "Mask",
    "Params",
    "Partial",
    "Slice",
    "TensorSpec",
    "dense_arrays",
    "exponent",
    "weight_units",
]

Params: TypeAlias = Mapping[str, NDArray[Any]]
Read: TypeAlias = Callable[[int], NDArray[Any]]
Key: TypeAlias = tuple[str, str]
"""(group, tensor)"""
DELTA: Final = "delta"
"""The group of updates to the parameters: trained minus received."""
SCALAR: Final = "scalar"
"""The group of single numbers that clients send, by name."""
MOST_ADDENDS: Final = 64
"""Updates that can be added at once: carries are made in time, as each adds at most ten slices."""
_HEADROOM: Final = 12
"""Bits by which word 0 of an exact sum is coarser than 2^-s, so that addends are below 2^50."""
WEIGHT_EXPONENT: Final = 20
"""Of word 0 of the weights per coordinate, in which whole numbers of examples fit."""
_WEIGHT_WORDS: Final = 1 + math.ceil((UNIT_BITS - WEIGHT_EXPONENT) / WORD_BITS)
"""Words that hold every sum of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """The shape of a tensor and the numpy dtype it is computed in."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Addend:
    """What one update adds to a tensor.

    Attributes:
        units: the weight, from `weight_units()`.
        read: called with n > 0, returns the next n values, 1-D, float16, 32 or 64, or ints; they
            are used before the next call, and before that of the addend `AT_ONCE` places later.
        value_units: factor of the values, from 0 to `units`, below `units` for a stale update;
            None for `units`.
        draws: round the values of a narrow sum stochastically by these; None for to nearest.
    """

    units: int
    read: Read
    value_units: int | None = None
    draws: Draws | None = None

    @property
    def factor(self) -> int:
        """The units by which values are multiplied."""
        return self.units if self.value_units is None else self.value_units


class _Entry:
    """The sums of one tensor, allocated when it is first covered."""

    __slots__ = ("memory", "spec", "sums", "weight_all", "weights")

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.memory: Sequence[Ints] = ()  # for the first words of the sums
        self.sums: Words | None = None
        self.weight_all = 0  # units that cover every coordinate
        self.weights: Words | None = None  # weights per coordinate on top of weight_all

    def add_weight(self, coverage: Coverage, units: int) -> None:
        if isinstance(coverage, Full):
            self.weight_all += units
            return
        weights = self.weight_words()
        for number, value in enumerate(_weight_slices(units)):
            if value:
                coverage.add_constant(weights.word(number), self.spec.shape, value, BLOCK)
        weights.added(1)

    def is_even(self, units: int) -> bool:
        if self.weights is None:
            return self.weight_all in (0, units)
        rest = units - self.weight_all >> UNIT_BITS - WEIGHT_EXPONENT
        return bool(np.isin(self.weights.word(0), [rest] if self.weight_all else [0, rest]).all())

    def words(self) -> Words:
        """The sums, of zeros if there are none yet."""
        if self.sums is None:
            self.sums = Words(self.spec.size, memory=self.memory)
        return self.sums

    def weight_words(self) -> Words:
        """The weights per coordinate, of zeros if there are none yet."""
        if self.weights is None:
            self.weights = Words(self.spec.size)
        return self.weights

    def merge(self, other: "_Entry") -> None:
        if other.sums is not None:
            self.words().merge(other.sums)
        if other.weights is not None:
            self.weight_words().merge(other.weights)
        self.weight_all += other.weight_all

    def same(self, other: "_Entry") -> bool:
        empty = Words(self.spec.size)
        return (
            (self.spec, self.weight_all) == (other.spec, other.weight_all)
            and (self.sums or empty).same(other.sums or empty)
            and (self.weights or empty).same(other.weights or empty)
        )


class Partial:
    """The sum of some of a round's updates, closed under `+`.

    Not safe for concurrent `add` on one key. Threads may add to different keys of an exact partial,
    but not of a narrow one, which counts the values of all keys.

    Args:
        specs: the tensors that updates may hold.
        exponent: s, from `exponent()`; the same for all partials of a round.
        narrow: round each addend to a multiple of 2^-s, in one word; by default sums are exact.

    Attributes:
        count: updates in it; the caller counts an update after adding its parts.
        nonzero: values of a narrow sum that were not zero.
        vanished: those of them that were rounded to zero.
    """

    __slots__ = (
        *("_base", "_draining", "_entries", "_exponent", "_most", "count", "narrow"),
        *("nonzero", "vanished"),
    )

    def __init__(
        self, specs: Mapping[Key, TensorSpec], exponent: int, *, narrow: bool = False
    ) -> None:
        if not -EXPONENT_LIMIT <= exponent <= EXPONENT_LIMIT:
            raise ValueError(f"Expected an exponent from -900 to 900, got {exponent}.")
        self._entries = {key: _Entry(spec) for key, spec in specs.items()}
        self._exponent = exponent
        self.narrow = narrow
        self._base = exponent if narrow else exponent - _HEADROOM  # word 0 has units of 2^-base
        self._most = 1 if narrow else words_down_to_floor(self._base)
        self._draining = False
        self.count = self.nonzero = self.vanished = 0

    def empty(self) -> "Partial":
        """Return an empty partial of the same round."""
        return Partial(self.specs, self._exponent, narrow=self.narrow)

    def use_memory(self, arrays: Mapping[str, Ints]) -> None:
        """Store sums here from now on, instead of in memory of their own.

        Args:
            arrays: int64 [size] with any content, by the names of `dense_arrays`.
        """
        for number, entry in enumerate(self._entries.values()):
            names = dense_arrays(number, narrow=self.narrow)
            entry.memory = [arrays[name] for name in names]

    @property
    def specs(self) -> dict[Key, TensorSpec]:
        """The tensors that updates may hold."""
        return {key: entry.spec for key, entry in self._entries.items()}

    @property
    def exponent(self) -> int:
        """The round's s."""
        return self._exponent

    @property
    def underflow(self) -> float | None:
        """The share of values other than zero that a narrow sum rounded to zero.

        None for an exact sum, which rounds no float32 value, and without such values.
        """
        return self.vanished / self.nonzero if self.nonzero else None

    def add(
        self,
        key: Key,
        coverage: Coverage,
        units: int,
        read: Read,
        *,
        value_units: int | None = None,
        draws: Draws | None = None,
    ) -> None:
        """Add one part of one update, reading its values block by block; see `add_each`.

        Args:
            key: the tensor.
            coverage: coordinates of the values, in row-major order.
            units: see `Addend`, as for the other arguments.
            read: of the values.
            value_units: factor of the values.
            draws: round stochastically.

        Raises:
            ValueError: as `add_each`.
        """
        self.add_each(key, coverage, [Addend(units, read, value_units, draws)])

    def add_each(self, key: Key, coverage: Coverage, addends: Sequence[Addend]) -> None:
        """Add the parts of some updates that cover the same coordinates, block by block.

        A block of the sum is then in the processor's cache for all of them. The values must be
        finite and within the bounds of the exponent; that is checked on admission, not here. If a
        `read` fails, the sums of this key contain parts of updates: start again from a checkpoint.

        Args:
            key: the tensor.
            coverage: coordinates of the values, in row-major order.
            addends: one of each update, at most `MOST_ADDENDS`.

        Raises:
            ValueError: unknown key, coverage outside the tensor, units outside 1..`MAX_UNITS`,
                value_units outside 0..units, too many addends, or a `read` returned another number
                of values.
        """
        if len(addends) > MOST_ADDENDS:
            raise ValueError(f"Expected at most {MOST_ADDENDS} addends, got {len(addends)}.")
        entry = None
        for each in addends:
            if not 0 <= each.factor <= each.units:
                raise ValueError(f"Expected value_units in 0..{each.units}, got {each.factor}.")
            entry = self._checked(key, coverage, each.units)
        if entry is None:
            return
        assert entry.sums is not None
        add = self._add_rounded if self.narrow else self._add_exactly
        add(entry.sums, coverage, entry.spec.shape, addends)
        for each in addends:
            entry.add_weight(coverage, each.units)

    def _add_rounded(
        self, words: Words, coverage: Coverage, shape: tuple[int, ...], addends: Sequence[Addend]
    ) -> None:
        view = coverage.view(words.word(0), shape)
        capacity = min(BLOCK, coverage.count(shape))
        scalers = [Scaler(each.factor, self._base, capacity, each.draws) for each in addends]
        for index, block in coverage.blocks(shape, BLOCK):
            for each, scaler in zip(addends, scalers, strict=True):
                values = _checked_values(each.read, math.prod(block))
                ints = scaler.addends(values)
                coverage.accumulate(view, index, ints.reshape(block))
                if each.factor:  # a weight of zero is no rounding
                    self._count_zeros(values, ints)

    def _count_zeros(self, values: NDArray[Any], addends: Ints) -> None:
        kept = int(np.count_nonzero(addends))
        # Usually all are kept. A count of bool is faster than one of floats.
        nonzero = kept if kept == values.size else int(np.count_nonzero(values != 0))
        self.nonzero += nonzero
        self.vanished += nonzero - kept

    def _add_exactly(
        self, words: Words, coverage: Coverage, shape: tuple[int, ...], addends: Sequence[Addend]
    ) -> None:
        slicer, times = Slicer(words, coverage, shape, self._most), 0
        for index, block in coverage.blocks(shape, BLOCK):
            times = 0
            for first in range(0, len(addends), AT_ONCE):
                scaled: list[tuple[NDArray[Any], float]] = []
                for each in addends[first : first + AT_ONCE]:
                    values = _checked_values(each.read, math.prod(block))
                    parts = halves(values) if is_wide(values.dtype) else (values,)
                    scales = exact_scales(each.factor, self._base, values.dtype)
                    scaled += [(part, scale) for part in parts for scale in scales]
                slicer.add(index, block, scaled)
                times += len(scaled)
        slicer.finish(times)

    def add_array(
        self,
        key: Key,
        coverage: Coverage,
        units: int,
        values: NDArray[Any],
        *,
        value_units: int | None = None,
        draws: Draws | None = None,
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

        self.add(key, coverage, units, read, value_units=value_units, draws=draws)

    def add_sums(self, key: Key, coverage: Coverage, units: int, sums: Ints) -> None:
        """Add what a session of several updates gives for one part: the sums of their addends.

        Args:
            key: the tensor.
            coverage: coordinates of the sums, the same for all updates of the session.
            units: the sum of their weights.
            sums: Σ rint(x · w · 2^s), int64, 1-D, in row-major order.

        Raises:
            ValueError: unknown key, coverage outside the tensor, units below 1, another number of
                sums, or the partial is not narrow.
        """
        self._check_narrow()
        shape = self._entry(key).spec.shape
        if sums.size != (expected := coverage.count(shape)):
            raise ValueError(f"Expected {expected} sums for {key}, got {sums.size}.")
        entry = self._checked(key, coverage, min(units, MAX_UNITS))
        if entry is None:
            return
        assert entry.sums is not None
        view, start = coverage.view(entry.sums.word(0), shape), 0
        for index, block in coverage.blocks(shape, BLOCK):
            stop = start + math.prod(block)
            coverage.accumulate(view, index, sums[start:stop].reshape(block))
            start = stop
        entry.add_weight(coverage, units)

    def add_noise(self, key: Key, block: Callable[[int, int], Ints]) -> None:
        """Add whole steps to the sums of a tensor, without weight, covered or not.

        Args:
            key: the tensor.
            block: called with flat coordinates `start, stop`, returns their noise, int64.

        Raises:
            ValueError: unknown key, or the partial is not narrow.
        """
        self._check_narrow()
        entry = self._entry(key)
        word = entry.words().word(0)
        for start in range(0, entry.spec.size, BLOCK):
            stop = min(start + BLOCK, entry.spec.size)
            word[start:stop] += block(start, stop)

    def wrap(self, bits: int) -> None:
        """Take every sum modulo 2^bits, as a number with a sign of that width.

        Sums that fit stay as they are: this is what is left of a sum of words of `bits` bits.

        Raises:
            ValueError: the partial is not narrow.
        """
        self._check_narrow()
        for entry in self._entries.values():
            if entry.sums is not None:
                word = entry.sums.word(0)
                word <<= 64 - bits
                word >>= 64 - bits

    def is_even(self, units: int) -> bool:
        """Return whether each coordinate is covered by all updates or by none.

        Args:
            units: the sum of the weights of all updates, which are multiples of 2^-20.
        """
        return all(e.is_even(units) for e in self._entries.values() if e.sums is not None)

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
        self._count(other)

    def __add__(self, other: "Partial") -> "Partial":
        total = self.empty()
        total.merge(self)
        total.merge(other)
        return total

    def _count(self, other: "Partial") -> None:
        self.count += other.count
        self.nonzero += other.nonzero
        self.vanished += other.vanished

    def _counts(self) -> tuple[int, int, int]:
        return self.count, self.nonzero, self.vanished

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Partial):
            return NotImplemented
        return (
            (self._exponent, self.narrow) == (other.exponent, other.narrow)
            and self._counts() == other._counts()
            and self.specs == other.specs
            and all(entry.same(other._entry(key)) for key, entry in self._entries.items())  # noqa: SLF001
        )

    __hash__ = None  # type: ignore[assignment]

    def packed(self, key: Key) -> tuple[int, Packing, Iterator[Bytes]] | None:
        """Pack the sums of a tensor.

        Returns:
            The units of the weights that cover the whole tensor, how the sums are packed, and their
            bytes in blocks, uint8; None if no update covers the tensor.

        Raises:
            ValueError: unknown key.
        """
        entry = self._entry(key)
        if entry.sums is None:
            return None
        entry.sums.settle()
        packing, blocks = pack(entry.sums.arrays, entry.spec.size, self._base)
        return entry.weight_all, packing, blocks

    def packed_weights(self, key: Key) -> tuple[Packing, Iterator[Bytes]] | None:
        """Pack the weights per coordinate of a tensor, in addition to those of the whole tensor.

        Returns:
            How they are packed, and their bytes in blocks, uint8; None if every update covers the
            tensor whole or not at all.

        Raises:
            ValueError: unknown key.
        """
        entry = self._entry(key)
        if entry.weights is None:
            return None
        entry.weights.settle()
        return pack(entry.weights.arrays, entry.spec.size, WEIGHT_EXPONENT)

    def unpacking(self, key: Key, packing: Packing) -> Unpacking:
        """Return what adds the packed sums of a tensor to this partial, or only reads them.

        Raises:
            ValueError: unknown key, or the sums do not fit this partial's words.
        """
        entry = self._entry(key)
        return Unpacking(packing, entry.spec.size, self._base, self._most, entry.words)

    def unpacking_weights(self, key: Key, packing: Packing) -> Unpacking:
        """Return what adds the packed weights per coordinate of a tensor, or only reads them.

        Raises:
            ValueError: unknown key, or no sum of weights is packed so.
        """
        entry = self._entry(key)
        size = entry.spec.size
        return Unpacking(packing, size, WEIGHT_EXPONENT, _WEIGHT_WORDS, entry.weight_words)

    def count_units(self, key: Key, units: int) -> None:
        """Count the weights that cover a whole tensor of a sum that is added by `unpacking`."""
        self._entry(key).weight_all += units

    def count_all(self, count: int, nonzero: int = 0, vanished: int = 0) -> None:
        """Count the updates of a sum that was added by `unpacking`, and what it rounded."""
        self.count += count
        self.nonzero += nonzero
        self.vanished += vanished

    def bound(
        self,
        max_abs: float,
        weights: Floats | float,
        count: int,
        *,
        rounding: float | None = None,
        noise: float = 0.0,
    ) -> Floats:
        """Return the largest magnitudes of valid sums, in units of word 0.

        They may be larger by a 2^-49th part, for the rounding of weights and of sums.

        Args:
            max_abs: bound of the values.
            weights: sums of weights, float64: of coordinates, or one of all of them.
            count: most addends.
            rounding: of an addend, in those units; None for to nearest.
            noise: of all addends, likewise.
        """
        reach = np.ldexp(max_abs * (1 + 2.0**-49) * np.asarray(weights), self._base)
        if rounding is None:
            rounding = 0.5 if self.narrow else 2.0 ** (-WORD_BITS * (self._most - 1))
        found: Floats = np.where(reach > 0, reach + count * rounding + noise, 0.0)
        return found

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
        mean = entry.sums.floats(start, stop)
        if entry.weights is None:
            mean /= math.ldexp(entry.weight_all, self._base - UNIT_BITS)
            return mean, True
        weights = entry.weights.floats(start, stop)
        weights += math.ldexp(entry.weight_all, WEIGHT_EXPONENT - UNIT_BITS)
        covered = weights > 0
        weights *= math.ldexp(1.0, self._base - WEIGHT_EXPONENT)
        np.divide(mean, weights, out=mean, where=covered)
        return mean, covered

    def sum_block(self, key: Key, start: int, stop: int) -> Ints:
        """Return the integer sums of a narrow partial: Σ rint(x · w · 2^s) for `start:stop`.

        Returns:
            int64 [stop - start], a copy; 0 where no update covers.

        Raises:
            ValueError: the partial is not narrow.
        """
        self._check_narrow()
        sums = self._entry(key).sums
        return np.zeros(stop - start, np.int64) if sums is None else sums.word(0)[start:stop].copy()

    def drain(self) -> "Partial":
        """Move the sums to a partial that frees each tensor's after `finish` has used it.

        This partial becomes empty. Without draining, `finish` leaves a partial unchanged.
        """
        drained = Partial(self.specs, self._exponent, narrow=self.narrow)
        fresh, drained._draining = drained._entries, True
        drained._entries, self._entries = self._entries, fresh
        drained._count(self)
        self.count = self.nonzero = self.vanished = 0
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
            for name, words in (
                (f"sums.{number}", entry.sums),
                (f"weights.{number}", entry.weights),
            ):
                if words is not None:
                    words.settle()
                    found = {_name(name, n): a for n, a in enumerate(words.arrays) if a is not None}
                    arrays.update(found)
            spec = entry.spec
            entries.append([*key, list(spec.shape), spec.dtype.str, entry.weight_all])
        return arrays, {
            "exponent": str(self._exponent),
            "width": "narrow" if self.narrow else "exact",
            "unit_bits": str(UNIT_BITS),
            "count": str(self.count),
            "nonzero": str(self.nonzero),
            "vanished": str(self.vanished),
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
        # Before exact sums, all were narrow, and weights had units of 2^-20.
        narrow = header.get("width", "narrow") == "narrow"
        finer = UNIT_BITS - int(header.get("unit_bits", 20))
        partial = cls(specs, int(header["exponent"]), narrow=narrow)
        partial.count = int(header["count"])
        partial.nonzero = int(header.get("nonzero", 0))  # earlier versions did not count them
        partial.vanished = int(header.get("vanished", 0))
        rest = dict(arrays)
        for number, (entry, row) in enumerate(zip(partial._entries.values(), entries, strict=True)):
            entry.weight_all = row[-1] << finer
            entry.sums = _taken(rest, f"sums.{number}", entry.spec)
            entry.weights = _taken(rest, f"weights.{number}", entry.spec)
            if entry.weight_all or entry.weights is not None:
                entry.words()  # covered, if only by zeros
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
        entry.words()
        return entry

    def _check_narrow(self) -> None:
        if not self.narrow:
            raise ValueError(
                "Expected a narrow partial, whose sums are integers; got an exact one."
            )

    def _check_same_round(self, other: "Partial") -> None:
        mine, its = (self._exponent, self.narrow), (other.exponent, other.narrow)
        if self.specs != other.specs or mine != its:
            raise ValueError(
                f"Expected a partial of the same round ({len(self._entries)} tensors, exponent and "
                f"narrow {mine}), got {len(other.specs)} tensors, {its}."
            )


def _checked_values(read: Read, count: int) -> NDArray[Any]:
    values = read(count)
    if values.shape != (count,):
        raise ValueError(f"Expected the next {count} values, 1-D, got shape {values.shape}.")
    return values


def _weight_slices(units: int) -> Iterator[int]:
    """Yield a weight's integer for each word of the sums of weights per coordinate."""
    rest, unit = Fraction(units) * Fraction(WEIGHT_UNIT), Fraction(1, 1 << WEIGHT_EXPONENT)
    while rest:
        nearest = round(rest / unit)
        yield nearest
        rest -= nearest * unit
        unit /= 1 << WORD_BITS


def dense_arrays(number: int, *, narrow: bool) -> list[str]:
    """Return the names that `arrays` gives the words that every tensor covered has.

    Args:
        number: of the tensor among the partial's.
        narrow: whether sums are narrow.
    """
    return [_name(f"sums.{number}", word) for word in range(1 if narrow else DENSE)]


def _name(of: str, word: int) -> str:
    """The name of a word's array in a checkpoint: that of word 0 is as before exact sums."""
    return f"{of}.{word}" if word else of


def _taken(arrays: dict[str, NDArray[Any]], of: str, spec: TensorSpec) -> Words | None:
    """Take a tensor's words out of `arrays`; None if there are none."""
    numbers = [n for n in range(MOST_WORDS) if _name(of, n) in arrays]
    if not numbers:
        return None
    words: list[Ints | None] = [None] * (numbers[-1] + 1)
    for number in numbers:
        array = arrays.pop(_name(of, number))
        if array.dtype != np.int64 or array.shape != (spec.size,):
            raise ValueError(f"Expected int64 ({spec.size},), got {array.dtype} {array.shape}.")
        words[number] = np.require(array, requirements=["C", "W"])
    return Words(spec.size, words)
