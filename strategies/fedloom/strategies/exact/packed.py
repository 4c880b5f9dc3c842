"""Exact sums of a tensor as integers of as few bits as its largest sum needs, without loss.

A sum in words of 64 bits is one integer T in units of the last word. All sums of a tensor share the
zero bits at their end and the sign bits at their start, so T becomes the `bits` between, in two's
complement, bit after bit. Sums of float32 updates take 40 to 62 bits in place of two words.

Invariants:
    - Equal sums have equal bytes: `bits` and `low` follow from the sums alone, however many words
      hold them.
    - Eight coordinates take exactly `bits` bytes, so blocks of a multiple of eight are independent.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.exact.fixed_point import Ints
from fedloom.strategies.exact.words import BLOCK, WORD_BITS

Bytes: TypeAlias = NDArray[np.uint8]
Limbs: TypeAlias = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Packing:
    """How the sums of one tensor are packed.

    Attributes:
        bits: of an integer, its sign included; 0 if all sums are zero.
        low: a sum is its integer times 2^low.
    """

    bits: int
    low: int

    def num_bytes(self, size: int) -> int:
        """Bytes of so many sums."""
        return -(-size * self.bits // 8)

    def num_words(self, base: int, most: int) -> int:
        """Words that hold the sums, with word 0 in units of 2^-base.

        Raises:
            ValueError: the sums need more than `most` words, or more bits than those hold.
        """
        if not self.bits:
            return 1
        words = max(1, 1 + math.ceil((-self.low - base) / WORD_BITS))
        room = 64 + WORD_BITS * (words - 1)
        if words > most or self._zeros(base, words) + self.bits > room:
            raise ValueError(
                f"Expected sums in {most} words from 2^{63 - base} down, got {self.bits} bits from "
                f"2^{self.low} up."
            )
        return words

    def _zeros(self, base: int, words: int) -> int:
        """Zero bits at the end of an integer in units of the last word."""
        return self.low + base + WORD_BITS * (words - 1)

    def unpack(self, packed: Bytes, size: int, base: int, words: int) -> list[Ints]:
        """Return the words of some sums, as `Words.settle` leaves them.

        Args:
            packed: uint8 [num_bytes(size)], of a multiple of eight sums or the last ones.
            size: number of sums.
            base: word 0 has units of 2^-base.
            words: from `num_words`.

        Returns:
            For each word int64 [size].
        """
        if not self.bits:
            return [np.zeros(size, np.int64) for _ in range(words)]
        flat = np.unpackbits(packed, count=size * self.bits, bitorder="little")
        found, zeros = flat.reshape(size, self.bits), self._zeros(base, words)
        limbs = _num_limbs(words)
        spread = np.repeat(found[:, -1:], 64 * limbs, axis=1)  # the sign
        spread[:, :zeros] = 0
        spread[:, zeros : zeros + self.bits] = found
        return _split(np.packbits(spread, axis=1, bitorder="little").view("<u8").T, words)


def pack(arrays: Sequence[Ints | None], size: int, base: int) -> tuple[Packing, Iterator[Bytes]]:
    """Pack settled words.

    Args:
        arrays: of `Words`: int64 [size], or None for zeros.
        size: number of coordinates.
        base: word 0 has units of 2^-base.

    Returns:
        The packing, and the bytes of `BLOCK` sums after another.
    """
    words = max((n + 1 for n, array in enumerate(arrays) if array is not None), default=0)
    if not words:
        return Packing(0, 0), iter(())
    blocks = [slice(start, start + BLOCK) for start in range(0, size, BLOCK)]
    some, magnitudes = np.zeros((2, _num_limbs(words)), np.uint64)
    for block in blocks:
        limbs = _join(arrays, words, block)
        some |= np.bitwise_or.reduce(limbs, axis=1)
        magnitudes |= np.bitwise_or.reduce(limbs ^ _signs(limbs), axis=1)
    ones = _integer(some)
    if not ones:
        return Packing(0, 0), iter(())
    zeros = (ones & -ones).bit_length() - 1
    bits = _integer(magnitudes).bit_length() + 1 - zeros

    def packed() -> Iterator[Bytes]:
        for block in blocks:
            limbs = np.ascontiguousarray(_join(arrays, words, block).T, "<u8")
            every = np.unpackbits(limbs.view(np.uint8), axis=1, bitorder="little")
            yield np.packbits(every[:, zeros : zeros + bits], bitorder="little")

    return Packing(bits, zeros - base - WORD_BITS * (words - 1)), packed()


def _num_limbs(words: int) -> int:
    return -(-(64 + WORD_BITS * (words - 1)) // 64)


def _join(arrays: Sequence[Ints | None], words: int, block: slice) -> Limbs:
    """Return integers in units of the last word: uint64 [limbs, n], two's complement."""
    first = arrays[0]
    size = next(len(a[block]) for a in arrays if a is not None)
    total = np.zeros((_num_limbs(words), size), np.uint64)
    if first is not None:
        _add(total, first[block])
    for number in range(1, words):
        total[1:] = total[1:] << np.uint64(WORD_BITS) | total[:-1] >> np.uint64(64 - WORD_BITS)
        total[0] <<= np.uint64(WORD_BITS)
        array = arrays[number]
        if array is not None:
            _add(total, array[block])
    return total


def _add(total: Limbs, addend: Ints) -> None:
    """Add numbers with a sign to integers of several limbs."""
    low, high = addend.view(np.uint64), (addend >> 63).view(np.uint64)
    carry = np.zeros(len(addend), np.uint64)
    for number, limb in enumerate(total):
        part = low if number == 0 else high
        np.add(limb, part, out=limb)
        over = limb < part
        np.add(limb, carry, out=limb)
        carry = (over | (limb < carry)).astype(np.uint64)


def _signs(limbs: Limbs) -> Limbs:
    """Return all ones for a negative integer, else zeros: uint64 [n]."""
    signs: Limbs = (limbs[-1].view(np.int64) >> 63).view(np.uint64)
    return signs


def _integer(limbs: Limbs) -> int:
    return int.from_bytes(limbs.astype("<u8").tobytes(), "little")


def _split(limbs: Limbs, words: int) -> list[Ints]:
    """Return words whose slices but the first are from -2^49 to below 2^49."""
    rest = np.ascontiguousarray(limbs, np.uint64)
    found: list[Ints] = []
    for _ in range(words - 1):
        slices = (rest[0] << np.uint64(64 - WORD_BITS)).view(np.int64) >> (64 - WORD_BITS)
        _add(rest, -slices)
        sign = _signs(rest)
        rest[:-1] = rest[:-1] >> np.uint64(WORD_BITS) | rest[1:] << np.uint64(64 - WORD_BITS)
        rest[-1] = rest[-1] >> np.uint64(WORD_BITS) | sign << np.uint64(64 - WORD_BITS)
        found.append(slices)
    return [rest[0].view(np.int64).copy(), *reversed(found)]
