"""Reads the packed sums of a tensor, and adds them to words."""

from collections.abc import Callable, Sequence

import numpy as np

from fedloom.strategies.exact.fixed_point import Ints
from fedloom.strategies.exact.packed import Bytes, Packing
from fedloom.strategies.exact.words import BLOCK, WORD_BITS, Floats, Words


def floats(words: Sequence[Ints]) -> Floats:
    """Return sums in units of word 0, each within a 2^-52nd part."""
    total = np.zeros(len(words[0]))
    for word in reversed(words):
        total = total * 2.0**-WORD_BITS + word
    return total


class Unpacking:
    """Reads packed sums; made by `Partial.unpacking` and `Partial.unpacking_weights`.

    Args:
        packing: of the sums.
        size: number of coordinates.
        base: word 0 has units of 2^-base.
        most: words that they may need.
        into: returns the words to which `add` adds them.

    Raises:
        ValueError: the sums do not fit the words.
    """

    __slots__ = ("_base", "_into", "_number", "_size", "packing")

    def __init__(
        self, packing: Packing, size: int, base: int, most: int, into: Callable[[], Words]
    ) -> None:
        self.packing = packing
        self._size, self._base, self._into = size, base, into
        self._number = packing.num_words(base, most)

    def words(self, packed: Bytes, size: int) -> list[Ints]:
        """Return the words of some sums; see `Packing.unpack`."""
        return self.packing.unpack(packed, size, self._base, self._number)

    def add(self, read: Callable[[int], Bytes]) -> None:
        """Add the sums of all coordinates.

        Args:
            read: called with n, returns the next n bytes.
        """
        into = self._into()
        for start in range(0, self._size, BLOCK):
            stop = min(start + BLOCK, self._size)
            packed = read(self.packing.num_bytes(stop - start))
            for number, found in enumerate(self.words(packed, stop - start)):
                if found.any():
                    into.word(number)[start:stop] += found
        into.added(1)
