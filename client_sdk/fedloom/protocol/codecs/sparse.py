"""top_k and random_k: a fraction of the values, and zeros for the rest.

`top_k` sends the largest magnitudes and their places; the rest is lost without error feedback.
`random_k` sends one value drawn from each of k equal runs of the tensor, and the receiver draws the
same places; scaled by the run's length its expectation is the tensor.

References:
    Stich et al. 2018, Sparsified SGD with Memory, https://arxiv.org/abs/1809.07599, section 2
    (both operators, and error feedback). Random_k here is stratified: each value has the same
    probability as there, and the places need neither bytes nor memory.
    Stich and Karimireddy 2020, The Error-Feedback Framework, https://arxiv.org/abs/1909.05350 (the
    step sizes for which memory converges).
    Lemire 2019, Fast Random Integer Generation in an Interval, https://arxiv.org/abs/1805.10941,
    section 3 (a product's upper half instead of a remainder).

Memory is proved for the unscaled form of both, which contracts, and for steps that shrink with the
fraction. With `random_k` a value waits 1/fraction rounds on average, and what local training moves
it in a round is added up meanwhile: with usual local training the sum overshoots. `top_k` sends
large sums first. Digits, 60 rounds, 1 % of the values: 0.79 with random_k and memory, 0.95 with
top_k and memory, 0.96 with the scaled random_k and without compression. So `random_k` has none.

Invariants: exactly k = ⌈fraction · size⌉ values are sent; places rise strictly, within the tensor.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.codecs.base import (
    WORK,
    ArrayInfo,
    Codec,
    Encoded,
    Floats,
    Read,
    Shape,
    expect,
    malformed,
    size_of,
)
from fedloom.protocol.codecs.draws import Words64
from fedloom.strategies.checks import check_number

_GAPS = ("U8", "U16", "U32")
BLOCK = 1 << 16
"""Values searched together for the largest ones; a multiple of 8."""
_MAGNITUDE_BITS = 31
_DIGITS = ((19, 12), (7, 12), (0, 7))
"""The digits of a magnitude's bits, highest first: shift and width of each."""
_NAN = np.uint32(0x7F800001)
"""All NaN are equal, and larger than infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sparse(Codec):
    """Base of top_k and random_k."""

    fraction: float

    def __post_init__(self) -> None:
        check_number("fraction", self.fraction, above=0)
        if not self.fraction < 1:
            raise ValueError(f"Expected fraction below 1, got {self.fraction}.")

    def kept(self, size: int) -> int:
        """Return how many of so many values are sent."""
        return min(size, math.ceil(self.fraction * size))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK(_Sparse):
    """The values of the largest magnitude; the first of equal ones.

    Their places are sent as gaps from the previous one (the first from −1), in the narrowest type
    that holds every gap, or as one bit per value, whichever is shorter.

    Attributes:
        fraction: of a tensor's values that are sent, above 0 and below 1.

    Raises:
        TypeError: fraction is not a number.
        ValueError: fraction is out of range.
    """

    name: ClassVar[str] = "top_k"
    varies: ClassVar[bool] = True
    biased: ClassVar[bool] = True
    forms: ClassVar[tuple[tuple[str, ...], ...]] = (("values", "gaps"), ("values", "bits"))

    def applies(self, shape: Shape) -> bool:
        """Return whether encoding makes it smaller, with gaps of two bytes or bits."""
        size = size_of(shape)
        count = self.kept(size)
        return 4 * count + min(2 * count, (size + 7) // 8) < 4 * size

    def layout(self, shape: Shape) -> dict[str, ArrayInfo]:
        """Values, and the shorter of bits and of gaps as wide as places at random have."""
        size = size_of(shape)
        count, bits = self.kept(size), (size + 7) // 8
        values = ArrayInfo("F32", (count,))
        # Of `count` places at random, a gap beyond g has the probability (1 - count/size)^g.
        widest = min(size, math.log(max(count, 2)) * size / max(count, 1))
        width = next((width for width in (1, 2) if widest < 1 << 8 * width), 4)
        if bits < count * width:
            return {"values": values, "bits": ArrayInfo("U8", (bits,))}
        return {"values": values, "gaps": ArrayInfo(f"U{8 * width}", (count,))}

    def encode(
        self, values: Floats, shape: Shape, seed: int, memory: Mapping[str, NDArray[Any]]
    ) -> Encoded:
        """Select."""
        count = self.kept(values.size)
        sent = np.empty(count, np.float32)
        bits = np.empty((values.size + 7) // 8, np.uint8)
        done, last, widest = 0, -1, 0
        for start, chosen in _largest(values, count):
            bits[start // 8 : (start + chosen.size + 7) // 8] = np.packbits(
                chosen, bitorder="little"
            )
            places = np.flatnonzero(chosen) + start
            if places.size:
                sent[done : done + places.size] = values[places]
                widest = max(widest, int(np.diff(places, prepend=last).max()))
                done, last = done + places.size, int(places[-1])
        width = np.min_scalar_type(widest).itemsize
        if bits.size < count * width:
            return Encoded({"values": sent, "bits": bits})
        return Encoded({"values": sent, "gaps": _gaps(bits, count, f"<u{width}")})

    def check(self, shape: Shape, arrays: Mapping[str, ArrayInfo]) -> None:
        """Check sizes, which follow from the shape."""
        size = size_of(shape)
        expect("values", arrays["values"], ("F32",), (self.kept(size),))
        if "gaps" in arrays:
            expect("gaps", arrays["gaps"], _GAPS, (self.kept(size),))
        else:
            expect("bits", arrays["bits"], ("U8",), ((size + 7) // 8,))

    def inspector(self, shape: Shape, arrays: Mapping[str, ArrayInfo]) -> "_Inspector":
        """Return a checker of the values and of their places."""
        return _Inspector(size_of(shape), self.kept(size_of(shape)))

    def decoder(self, shape: Shape, seed: int, read: Mapping[str, Read]) -> "_Decoder":
        """Return a decoder."""
        size = size_of(shape)
        places = _Gaps(read["gaps"], self.kept(size)) if "gaps" in read else _Bits(read["bits"])
        return _Decoder(places, read["values"])


def _largest(values: Floats, count: int) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """A mask of the largest magnitudes, block by block; the first of equal ones.

    Magnitudes are compared as integers, the bits of a float without its sign, which have the same
    order; NaN is the largest. So blocks are independent, and no second array is needed.
    """
    least, equal = _threshold(values, count)
    for start in range(0, values.size, BLOCK):
        magnitudes = _magnitudes(values[start : start + BLOCK])
        chosen = magnitudes > least
        if equal:
            places = np.flatnonzero(magnitudes == least)[:equal]
            chosen[places] = True
            equal -= places.size
        yield start, chosen


def _threshold(values: Floats, count: int) -> tuple[int, int]:
    """The count-th largest magnitude, and the number of equal ones among the largest."""
    if values.size <= BLOCK:
        magnitudes = _magnitudes(values)
        found = int(np.partition(magnitudes, values.size - count)[values.size - count])
        return found, count - int(np.count_nonzero(magnitudes > found))
    above, left = 0, count  # its upper bits, and how many values with these bits are wanted
    for shift, width in _DIGITS:
        counts = np.zeros(1 << width, np.int64)
        for start in range(0, values.size, BLOCK):
            magnitudes = _magnitudes(values[start : start + BLOCK])
            if shift + width < _MAGNITUDE_BITS:
                magnitudes = magnitudes[magnitudes >> np.uint32(shift + width) == above]
            digits = (magnitudes >> np.uint32(shift)) & np.uint32((1 << width) - 1)
            counts += np.bincount(digits, minlength=1 << width)
        reached = np.cumsum(counts[::-1])
        steps = int(np.searchsorted(reached, left))  # down from the largest digit
        left -= int(reached[steps] - counts[::-1][steps])
        above = above << width | (1 << width) - 1 - steps
    return above, left


def _magnitudes(values: Floats) -> NDArray[np.uint32]:
    """Magnitudes as integers of the same order."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32) & np.uint32(0x7FFFFFFF)
    return np.asarray(np.minimum(bits, _NAN, out=bits))


def _gaps(bits: NDArray[np.uint8], count: int, dtype: str) -> NDArray[Any]:
    """The gap from each set bit to the next, the first from -1."""
    gaps, done, last = np.empty(count, dtype), 0, -1
    for start in range(0, bits.size, WORK):
        block = np.unpackbits(bits[start : start + WORK], bitorder="little")
        places = np.flatnonzero(block) + 8 * start
        if places.size:
            gaps[done : done + places.size] = np.diff(places, prepend=last)
            done, last = done + places.size, int(places[-1])
    return gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomK(_Sparse):
    """One value of each of k runs.

    Run i has the places from ⌊i·size/k⌋ to ⌊(i+1)·size/k⌋; the sent place is the first plus
    ⌊length · u / 2^32⌋, with u the upper half of the i-th output of the seed's SplitMix64.

    Attributes:
        fraction: of a tensor's values that are sent, above 0 and below 1.
        scaled: multiply each value by its run's length, so that the expectation is the tensor, and
            not a fraction of it.

    Raises:
        TypeError: fraction is not a number, or scaled not a boolean.
        ValueError: fraction is out of range.
    """

    name: ClassVar[str] = "random_k"
    draws: ClassVar[bool] = True
    forms: ClassVar[tuple[tuple[str, ...], ...]] = (("values",),)
    scaled: bool = True

    def __post_init__(self) -> None:
        _Sparse.__post_init__(self)
        if type(self.scaled) is not bool:
            raise TypeError(f"Expected scaled as true or false, got {self.scaled!r}.")

    @property
    def contracts(self) -> bool:
        """No: see the module."""
        return False

    def layout(self, shape: Shape) -> dict[str, ArrayInfo]:
        """Values alone."""
        return {"values": ArrayInfo("F32", (self.kept(size_of(shape)),))}

    def encode(
        self, values: Floats, shape: Shape, seed: int, memory: Mapping[str, NDArray[Any]]
    ) -> Encoded:
        """Draw."""
        count = self.kept(values.size)
        drawn = _Drawn(values.size, count, seed)
        sent = np.empty(count, np.float32)
        for start in range(0, count, WORK):
            stop = min(count, start + WORK)
            places, lengths = drawn.between(start, stop)
            sent[start:stop] = values[places]
            if self.scaled:
                with np.errstate(over="ignore"):  # the checks refuse infinity
                    sent[start:stop] *= lengths.astype(np.float32)
        return Encoded({"values": sent})

    def inspector(self, shape: Shape, arrays: Mapping[str, ArrayInfo]) -> "_Inspector":
        """Return a checker of the values."""
        return _Inspector(size_of(shape), 0)

    def decoder(self, shape: Shape, seed: int, read: Mapping[str, Read]) -> "_Decoder":
        """Return a decoder."""
        size = size_of(shape)
        return _Decoder(_Drawn(size, self.kept(size), seed), read["values"])


class _Inspector:
    """Yields the values; checks the gaps, or the number of set bits against `count`."""

    def __init__(self, size: int, count: int) -> None:
        self._size = size
        self._count = count
        self._last = -1
        self._bits = 0
        self._bytes = 0
        self._counting = False

    def feed(self, role: str, items: NDArray[Any]) -> Iterator[Floats]:
        if role == "values":
            yield items
        elif role == "gaps":
            for start in range(0, items.size, WORK):
                self._follow(items[start : start + WORK])
        else:
            self._add_bits(items)

    def _follow(self, gaps: NDArray[Any]) -> None:
        if not gaps.all():
            raise malformed("places that rise", "one twice")
        self._last += int(gaps.sum(dtype=np.uint64))  # at most 2^15 of 2^32
        if self._last >= self._size:
            raise malformed(f"places below {self._size}", self._last)

    def _add_bits(self, packed: NDArray[Any]) -> None:
        self._counting = True
        self._bits += int(np.unpackbits(packed).sum(dtype=np.int64))
        self._bytes += packed.size
        used = self._size % 8
        if used and self._bytes == (self._size + 7) // 8 and int(packed[-1]) >> used:
            raise malformed("zeros after the last bit", f"{packed[-1]:#04x}")

    def finish(self) -> Iterator[Floats]:
        if self._counting and self._bits != self._count:
            raise malformed(f"{self._count} bits set", self._bits)
        return iter(())


class _Gaps:
    """Places from gaps, read in order; going back restarts at the first."""

    def __init__(self, read: Read, count: int) -> None:
        self._read = read
        self._count = count
        self._restart()

    def _restart(self) -> None:
        self._next = 0  # gaps read
        self._after = -1  # the last place read
        self._first = 0  # index of the first place held
        self._held: NDArray[np.int64] = np.empty(0, np.int64)

    def within(self, start: int, stop: int) -> tuple[int, NDArray[np.int64]]:
        """How many places come before `start`, and those up to `stop`."""
        if self._first and (not self._held.size or self._held[0] > start):
            self._restart()
        pieces = [self._held]
        while self._next < self._count and self._after < stop:
            end = min(self._count, self._next + WORK)
            places = np.cumsum(self._read(self._next, end), dtype=np.int64) + self._after
            pieces.append(places)
            self._after, self._next = int(places[-1]), end
        held = np.concatenate(pieces)
        before, after = np.searchsorted(held, (start, stop))
        # Keep one place before the range, which shows that none in it was dropped.
        drop = max(0, int(before) - 1)
        self._first, self._held = self._first + drop, held[drop:]
        return self._first + int(before) - drop, held[before:after]


class _Bits:
    """Places from bits, with a running count of those before."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._upto, self._before = 0, 0

    def within(self, start: int, stop: int) -> tuple[int, NDArray[np.int64]]:
        if start < self._upto:
            self._upto, self._before = 0, 0
        while self._upto < start:
            end = min(start, self._upto + WORK)
            self._before += self._places(self._upto, end).size
            self._upto = end
        places = self._places(start, stop)
        before, self._before, self._upto = self._before, self._before + places.size, stop
        return before, places

    def _places(self, start: int, stop: int) -> NDArray[np.int64]:
        first = start // 8
        bits = np.unpackbits(self._read(first, (stop + 7) // 8), bitorder="little")
        return np.flatnonzero(bits[start - 8 * first : stop - 8 * first]) + start


class _Drawn:
    """Places drawn by both sides."""

    def __init__(self, size: int, count: int, seed: int) -> None:
        self._size = size
        self._count = count
        self._words = Words64(seed, min(WORK, count))

    def between(self, first: int, after: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The places of runs `first:after`, at most WORK of them, and the runs' lengths."""
        ends = self._edges(np.arange(first, after + 1, dtype=np.int64))
        lengths = np.diff(ends)
        high = self._words.at(first, after - first) >> np.uint64(32)
        offsets = (high * lengths.astype(np.uint64)) >> np.uint64(32)
        return ends[:-1] + offsets.astype(np.int64), lengths

    def _edges(self, runs: NDArray[np.int64]) -> NDArray[np.int64]:
        whole, rest = divmod(self._size, self._count)  # runs · size could pass 2^63
        return runs * whole + runs * rest // self._count

    def within(self, start: int, stop: int) -> tuple[int, NDArray[np.int64]]:
        if not self._count or start >= stop:
            return 0, np.empty(0, np.int64)
        first = max(0, start * self._count // self._size - 1)
        after = min(self._count, -(-stop * self._count // self._size) + 1)
        pieces = [self.between(at, min(after, at + WORK))[0] for at in range(first, after, WORK)]
        places = np.concatenate(pieces)
        low, high = np.searchsorted(places, (start, stop))
        return first + int(low), places[low:high]


class _Decoder:
    def __init__(self, places: _Gaps | _Bits | _Drawn, read: Read) -> None:
        self._places = places
        self._read = read
        self._values = np.empty(0, np.float32)

    def block(self, start: int, stop: int) -> Floats:
        if stop - start > self._values.size:
            self._values = np.empty(stop - start, np.float32)
        out = self._values[: stop - start]
        out[:] = 0
        before, places = self._places.within(start, stop)
        if places.size:
            out[places - start] = self._read(before, before + places.size)
        return out
