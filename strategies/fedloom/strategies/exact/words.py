"""Sums of a tensor in words of 64 bits, so that no bit of an addend is lost.

Word k counts units of 2^-50k of word 0's unit. An addend is cut into one integer for each word: the
multiple of the word's unit that is nearest to what the words above leave. The integers of each word
are added. So the sum is exact, and does not depend on the order; only the last word rounds.

Invariants:
    - In each word but the first, a slice is at most 2^49 in magnitude, and carries are made before
      2^13 slices are added, so no word overflows.
    - Equal sums have equal arrays after `settle`.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import zip_longest
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.exact import compiled
from fedloom.strategies.exact.compiled import Compiled
from fedloom.strategies.exact.coverage import Coverage, Full, Shape
from fedloom.strategies.exact.fixed_point import Ints

Floats: TypeAlias = NDArray[np.float64]

BLOCK: Final = 65_536
"""Values folded at a time: 1.6 MB of buffers. From 32,768 to 262,144, speeds are within 10 %."""
AT_ONCE: Final = 4
"""Arrays that are added in one pass over the words, if they are alike."""
WORD_BITS: Final = 50
"""Bits of a slice; the other 13 of a word hold the sum of 2^13 slices, and one the sign."""
DENSE: Final = 2
"""Words that hold almost every float32 update exactly; others are allocated when needed."""
FLOOR_BITS: Final = 240
"""The last word's unit is at most 2^-240: the product of a float32 and a weight fits above it."""

MOST_WORDS: Final = 21
"""More would need units below 2^-1000 of word 0's, where float64 ends."""

_FEW: Final = 1 / 16
"""Share of a block below which indexes are faster than passes over all of it."""
_MOST_SLICES: Final = 1 << 12


def words_down_to_floor(exponent: int) -> int:
    """Return the number of words down to `FLOOR_BITS`, with word 0 in units of 2^-exponent."""
    return min(max(DENSE, 1 + math.ceil((FLOOR_BITS - exponent) / WORD_BITS)), MOST_WORDS)


@cache
def _magic(word: int) -> tuple[float, int]:
    """Return a constant that rounds to the word's unit when it is added, and the constant's bits.

    1.5 · 2^52 units: its sum with any |x| < 2^51 units is in one binade, where the spacing of
    float64 is the unit. The bits of the sum, read as int64, exceed the constant's by x / unit.
    """
    value = np.float64(math.ldexp(1.5, 52 - WORD_BITS * word))
    return float(value), int(value.view(np.int64))


def _bias(word: int, times: int) -> np.int64:
    """Return what the bits of a word's constant add up to, modulo 2^64."""
    return np.uint64(_magic(word)[1] * times % 2**64).view(np.int64)


class Words:
    """The sums of a tensor's coordinates.

    Args:
        size: number of coordinates.
        arrays: of the words, int64 [size], or None for zeros; they are not copied.
        memory: for the first words, int64 [size] with any content; others are allocated.
    """

    __slots__ = ("_biases", "_memory", "_size", "_slices", "arrays")

    def __init__(
        self, size: int, arrays: Sequence[Ints | None] = (), memory: Sequence[Ints] = ()
    ) -> None:
        self._size = size
        self._memory = memory
        self._biases = 0  # times that the bits of the constants are in every dense coordinate
        self._slices = 0  # since the last carry
        self.arrays = list(arrays)

    def word(self, number: int) -> Ints:
        """Return the array of a word; a new one has zeros."""
        array = self._known(number)
        if array is None and number < len(self._memory):
            array = self.arrays[number] = self._memory[number]
            array.fill(0)
        elif array is None:
            array = self.arrays[number] = np.zeros(self._size, np.int64)
        return array

    def _known(self, number: int) -> Ints | None:
        self.arrays += [None] * (number + 1 - len(self.arrays))
        return self.arrays[number]

    def added(self, slices: int, *, biases: int = 0) -> None:
        """Note that slices were added to every word, and the bits of constants to dense words."""
        self._biases += biases
        self._slices += slices
        if self._slices > _MOST_SLICES:
            self.settle()

    def settle(self) -> None:
        """Remove the bits of constants, and carry, so that equal sums have equal arrays."""
        biases, self._biases = self._biases, 0
        slices, self._slices = self._slices, 0
        if not slices:
            return
        used = [n for n, array in enumerate(self.arrays) if array is not None]
        if used == [0, 1] and (settle := self._compiled(compiled.settle)):
            both = _bias(0, biases), _bias(1, biases)
            settle(self.word(0), self.word(1), both, WORD_BITS)
            return
        for start in range(0, self._size, BLOCK):
            blocks = {n: self.word(n)[start : start + BLOCK] for n in used}
            for number in range(DENSE if biases else 0):
                blocks[number] -= _bias(number, biases)
            for number in reversed(used):
                if number:  # word 0 may still have no array
                    self._carry(number, blocks[number], start)

    def _compiled(self, get: Callable[[], Compiled | None]) -> Compiled | None:
        """A compiled function, for tensors that are large enough to load it."""
        return get() if compiled.is_faster(self._size) else None

    def _carry(self, number: int, block: Ints, start: int) -> None:
        carries = (block + (1 << (WORD_BITS - 1))) >> WORD_BITS
        if carries.any():
            block -= carries << WORD_BITS
            above = self.word(number - 1)[start : start + BLOCK]
            above += carries

    def merge(self, other: "Words") -> None:
        """Add other sums of the same coordinates, which are settled."""
        other.settle()
        for number, array in enumerate(other.arrays):
            if array is None:
                continue
            if self._known(number) is None and number >= len(self._memory):
                self.arrays[number] = array.copy()
            else:
                mine = self.word(number)
                mine += array
        self.added(1)

    def floats(self, start: int, stop: int) -> Floats:
        """Return the sums of the flat coordinates `start:stop` in units of word 0.

        Each differs from the exact sum by at most 2^-52 of the sum.
        """
        self.settle()
        if len(self.arrays) == DENSE and (floats := self._compiled(compiled.floats)):
            first, second = (self.word(number)[start:stop] for number in range(DENSE))
            found: Floats = floats(first, second, 2.0**-WORD_BITS)
            return found
        total = np.zeros(stop - start)
        for array in reversed(self.arrays):
            total *= 2.0**-WORD_BITS
            if array is not None:
                total += array[start:stop]
        return total

    def same(self, other: "Words") -> bool:
        """Return whether the sums are equal; both are settled."""
        self.settle()
        other.settle()
        return all(_equal(a, b) for a, b in zip_longest(self.arrays, other.arrays))


def _equal(a: Ints | None, b: Ints | None) -> bool:
    """Compare; None means zeros."""
    if a is None or b is None:
        some = a if b is None else b
        return some is None or not some.any()
    return np.array_equal(a, b)


class Slicer:
    """Adds the weighted values of one update to words, block by block, within reused buffers.

    Args:
        words: of the tensor.
        coverage: of the values.
        shape: of the tensor.
        most: words that may be used; the last one rounds.
    """

    def __init__(self, words: Words, coverage: Coverage, shape: Shape, most: int) -> None:
        capacity = min(BLOCK, coverage.count(shape))
        self._words, self._coverage, self._shape, self._most = words, coverage, shape, most
        self._rest, self._part = np.empty(capacity), np.empty(capacity)
        self._ints = np.empty(capacity, np.int64)
        self._differs = np.empty(capacity, np.bool_)
        self._raw = isinstance(coverage, Full)  # the bits of constants are removed when settled
        self._dense = [coverage.view(words.word(n), shape) for n in range(DENSE)]
        large = self._raw and most >= DENSE and compiled.is_faster(coverage.count(shape))
        self._fold = compiled.fold() if large else None

    def add(self, index: Any, block: Shape, addends: Sequence[tuple[NDArray[Any], float]]) -> None:
        """Add the sum of `values · scale` at an index of the coverage, in units of word 0.

        Args:
            index: from `coverage.blocks`.
            block: shape of the values there.
            addends: values, 1-D, and their scales; the products must be exact in float64, and below
                2^50.
        """
        while addends:
            some = addends[:AT_ONCE] if _are_alike(addends[:AT_ONCE]) else addends[:1]
            addends = addends[len(some) :]
            arrays, scales = zip(*some, strict=True)
            dtype = arrays[0].dtype
            if self._fold is None or dtype.kind != "f" or dtype.itemsize < 4:
                for values, scale in some:
                    self._add(index, block, values, scale)
                continue
            first, second = (words[index] for words in self._dense)
            if self._fold(first, second, arrays, scales, _magic(0)[0], _magic(1)[0]):
                for values, scale in some:
                    self._add_rest(index, values.astype(np.float64) * scale)

    def _add(self, index: Any, block: Shape, values: NDArray[Any], scale: float) -> None:
        """Add the products of one array, in passes of numpy."""
        rest, part, ints = (
            self._rest[: values.size], self._part[: values.size], self._ints[: values.size],
        )  # fmt: skip
        # Passes over a cached block: faster than ufuncs that cast.
        np.copyto(rest, values)
        np.multiply(rest, scale, out=rest)
        for number in range(self._most):
            value, bits = _magic(number)
            np.add(rest, value, out=part)
            if number < DENSE and self._raw:
                self._dense[number][index] += part.view(np.int64)
            else:
                np.subtract(part.view(np.int64), bits, out=ints)
                self._accumulate(number, index, ints.reshape(block))
            np.subtract(part, value, out=part)
            if number + 1 >= DENSE:
                # Cheaper than the difference and a look at it.
                differs = np.not_equal(part, rest, out=self._differs[: part.size])
                left = np.count_nonzero(differs)
                if not left:
                    break
                if left < _FEW * part.size and self._raw:
                    places = np.flatnonzero(differs)
                    self._add_few(number + 1, index, places, rest[places] - part[places])
                    break
            np.subtract(rest, part, out=rest)

    def _add_rest(self, index: Any, rest: Floats) -> None:
        """Add what the dense words leave of values in units of word 0."""
        for number in range(DENSE):
            value, _ = _magic(number)
            rest -= (rest + value) - value
        places = np.flatnonzero(rest)
        self._add_few(DENSE, index, places, rest[places])

    def _add_few(self, first: int, index: Any, places: Ints, rest: Floats) -> None:
        """Add what is left of a few values of a block to the words from `first` on."""
        for number in range(first, self._most):
            value, bits = _magic(number)
            part = rest + value
            ints = part.view(np.int64) - bits
            if ints.any():
                self._words.word(number)[index][places] += ints
            rest -= part - value
            if not rest.any():
                break

    def _accumulate(self, number: int, index: Any, ints: Ints) -> None:
        if number < DENSE:
            self._coverage.accumulate(self._dense[number], index, ints)
        elif ints.any():
            view = self._coverage.view(self._words.word(number), self._shape)
            self._coverage.accumulate(view, index, ints)

    def finish(self, times: int) -> None:
        """Note that every coordinate covered had `add` called this often."""
        self._words.added(times, biases=times if self._raw else 0)


def _are_alike(addends: Sequence[tuple[NDArray[Any], float]]) -> bool:
    """Whether these are as many arrays as are compiled together, and of one type."""
    dtype = addends[0][0].dtype
    return len(addends) == AT_ONCE and all(
        values.dtype == dtype and values.flags.carray for values, _ in addends
    )
