"""int8 and int4: each block of values as small integers times one scale, rounded at random.

A block's scale is its largest magnitude over 127 (or 7). A value between two multiples of the
scale becomes the upper one with the probability that keeps its expectation, so the mean over
clients is unbiased, with a little more variance.

References:
    Alistarh et al. 2017, QSGD: Communication-Efficient SGD via Gradient Quantization and
    Encoding, https://arxiv.org/abs/1610.02132, section 3.1: here with the maximum norm, by block.

Invariants: a decoded value is within one scale of the value; its expectation is the value to
within 2^-16 of a scale; zeros stay zeros.
"""

from abc import abstractmethod
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
    Inspector,
    Read,
    Shape,
    malformed,
    size_of,
)
from fedloom.protocol.codecs.draws import Words64
from fedloom.protocol.errors import Code, Refusal
from fedloom.strategies.checks import check_count

_ONE = 1 << 16  # the fixed point that values are rounded in: 16 random bits each
_SLACK = np.float32(1 + 2.0**-20)  # keeps the largest value of a block below levels + 1
_STEP = 2 * WORK
"""Values encoded at a time: a megabyte of buffers, and half as many calls as with WORK."""
_LEAST = np.float32(2.0**-100)
"""Blocks whose largest magnitude is below this are zeros: its inverse would not be finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quantised(Codec):
    """Base of int8 and int4."""

    forms: ClassVar[tuple[tuple[str, ...], ...]] = (("scales", "codes"),)
    levels: ClassVar[int]
    dtype: ClassVar[str]
    block: int

    def __post_init__(self) -> None:
        check_count("block", self.block)
        if self.block & (self.block - 1) or not 16 <= self.block <= WORK:
            raise ValueError(f"Expected block as a power of two, 16 to {WORK}, got {self.block}.")

    @abstractmethod
    def codes_in(self, count: int) -> int:
        """Return the number of items for the codes of so many values."""

    @abstractmethod
    def pack(self, codes: NDArray[np.int8], out: NDArray[Any]) -> None:
        """Write codes [rows, block] as items."""

    @abstractmethod
    def unpack(self, items: NDArray[Any], scales: Floats, out: Floats) -> None:
        """Write the values of items that begin and fill rows with these scales [rows]."""

    def rows(self, shape: Shape) -> int:
        return -(-size_of(shape) // self.block)

    def layout(self, shape: Shape) -> dict[str, ArrayInfo]:
        """Scales and codes, of a byte each."""
        return {
            "scales": ArrayInfo("F32", (self.rows(shape),)),
            "codes": ArrayInfo(self.dtype, (self.codes_in(size_of(shape)),)),
        }

    def encode(
        self, values: Floats, shape: Shape, seed: int, memory: Mapping[str, NDArray[Any]]
    ) -> Encoded:
        """Encode with 16 random bits per value."""
        scales = np.empty(self.rows(shape), np.float32)
        codes = np.empty(self.codes_in(values.size), np.dtype("i1" if self.levels > 7 else "u1"))
        rounding = _Rounding(self.levels, self.block, seed)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # the scales show it
            for start in range(0, values.size, _STEP):
                block = values[start : start + _STEP]
                whole = rounding.codes(block, start)
                first, rows = start // self.block, len(whole)
                scales[first : first + rows] = rounding.scales[:rows]
                at, after = self.codes_in(start), self.codes_in(start + block.size)
                self.pack(whole, codes[at:after])
        return Encoded({"scales": scales, "codes": codes})

    def inspector(self, shape: Shape, arrays: Mapping[str, ArrayInfo]) -> "_Inspector":
        """Return a checker of scales and of every decoded value."""
        return _Inspector(self, shape)

    def decoder(self, shape: Shape, seed: int, read: Mapping[str, Read]) -> "_Decoder":
        return _Decoder(self, shape, read)


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8(_Quantised):
    """Whole numbers from −127 to 127: a quarter of the bytes, and a 256th for the scales.

    Attributes:
        block: values that share a scale; a power of two from 16 to 2^15.

    Raises:
        TypeError: block is not a whole number.
        ValueError: block is out of range.
    """

    name: ClassVar[str] = "int8"
    levels: ClassVar[int] = 127
    dtype: ClassVar[str] = "I8"
    block: int = 1024

    def codes_in(self, count: int) -> int:
        """One for each value."""
        return count

    def pack(self, codes: NDArray[np.int8], out: NDArray[Any]) -> None:
        """Leave out the padding of the last row."""
        out[:] = codes.reshape(-1)[: out.size]

    def unpack(self, items: NDArray[Any], scales: Floats, out: Floats) -> None:
        """Multiply; the last row may be short."""
        np.copyto(out, items)
        whole = items.size // self.block
        rows = out[: whole * self.block].reshape(whole, self.block)
        with np.errstate(over="ignore"):  # the checks refuse infinity
            np.multiply(rows, scales[:whole, None], out=rows)
            if whole < scales.size:
                out[whole * self.block :] *= scales[whole]


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4(_Quantised):
    """Whole numbers from −7 to 7, two in a byte: an eighth of the bytes, and the scales.

    Byte j of a block holds value j in its low half and value j + block/2 in its high half, in two's
    complement; the last block is padded with zeros.

    Attributes:
        block: values that share a scale; a power of two from 16 to 2^15.

    Raises:
        TypeError: block is not a whole number.
        ValueError: block is out of range.
    """

    name: ClassVar[str] = "int4"
    levels: ClassVar[int] = 7
    dtype: ClassVar[str] = "U8"
    block: int = 256

    def codes_in(self, count: int) -> int:
        """Half a block of bytes for each block, also a partial one."""
        return -(-count // self.block) * (self.block // 2)

    def pack(self, codes: NDArray[np.int8], out: NDArray[Any]) -> None:
        """Pack the second half of each row into the high bits."""
        half, raw = self.block // 2, codes.view(np.uint8)
        packed = out.reshape(-1, half)
        np.left_shift(raw[:, half:], 4, out=packed)
        np.bitwise_or(packed, raw[:, :half] & 15, out=packed)

    def unpack(self, items: NDArray[Any], scales: Floats, out: Floats) -> None:
        """Extend the signs of both halves and multiply."""
        half = self.block // 2
        packed = items.reshape(-1, half)
        rows = out.reshape(-1, self.block)
        low = np.left_shift(packed, 4).view(np.int8)
        np.copyto(rows[:, :half], np.right_shift(low, 4, out=low))
        np.copyto(rows[:, half:], packed.view(np.int8) >> 4)
        with np.errstate(over="ignore"):  # as for int8
            np.multiply(rows, scales[:, None], out=rows)


class _Rounding:
    """From values to codes, within reused buffers."""

    def __init__(self, levels: int, block: int, seed: int) -> None:
        self._block = block
        self._step = _SLACK / np.float32(levels)
        self._words = Words64(seed, _STEP // 16)
        self._values = np.empty(_STEP, np.float32)
        self._fixed = np.empty(_STEP, np.int32)
        self._noise = np.empty(_STEP // 4, np.int32)
        self._codes = np.empty(_STEP, np.int8)
        self.scales = np.empty(_STEP // block, np.float32)

    def codes(self, values: Floats, start: int) -> NDArray[np.int8]:
        """The codes [rows, block] of the values from a multiple of _STEP on; sets `scales`."""
        size = -(-values.size // self._block) * self._block
        if values.size < size:
            values = np.concatenate([values, np.zeros(size - values.size, np.float32)])
        rows = values.reshape(-1, self._block)
        grid = self._values[:size].reshape(rows.shape)
        inverse = self._scale(np.abs(rows, out=grid).max(axis=1))
        fixed, codes = self._fixed[:size], self._codes[:size]
        # Fixed point with 16 fractional bits, about the precision of float32 there. Whole passes
        # within one dtype: a ufunc that casts is slower than a copy that casts.
        np.multiply(rows, inverse[:, None], out=grid)
        np.copyto(fixed, grid.reshape(-1), casting="unsafe")
        self._add_noise(fixed, start)
        np.right_shift(fixed, 16, out=fixed)
        np.copyto(codes, fixed, casting="unsafe")
        return codes.reshape(rows.shape)

    def _add_noise(self, fixed: NDArray[np.int32], start: int) -> None:
        """Add 16 random bits u to each value, at a quarter of the cost of independent ones.

        A quarter of the values gets u, the others 1 − u, 1/2 + u and 1/2 − u, modulo 1: each is
        uniform, so no value is biased, although four values share their bits.
        """
        quarter = fixed.size // 4
        noise, parts = self._noise[:quarter], fixed.reshape(4, quarter)
        np.copyto(noise, self._words.at(start // 16, quarter // 4).view(np.uint16))
        for part, flipped in zip(parts, (0xFFFF, 0x7FFF, 0xFFFF, 0), strict=True):
            np.add(part, noise, out=part)
            if flipped:
                np.bitwise_xor(noise, flipped, out=noise)

    def _scale(self, largest: Floats) -> Floats:
        """Set the scales of rows by their largest magnitudes; return the factors of the values."""
        scales = self.scales[: largest.size]
        np.multiply(largest, self._step, out=scales)
        inverse = np.float32(_ONE) / scales
        if not (largest.min() >= _LEAST and np.isfinite(inverse).all() and inverse.all()):
            np.copyto(scales, 0, where=largest < _LEAST)
            np.copyto(scales, np.nan, where=~np.isfinite(scales))
            np.copyto(inverse, 0, where=~(scales > 0))
        return inverse


class _Inspector(Inspector):
    def __init__(self, codec: _Quantised, shape: Shape) -> None:
        self._codec = codec
        self._scales = np.empty(codec.rows(shape), np.float32)
        self._come = 0
        self._row = codec.codes_in(codec.block)  # items
        self._spare = codec.codes_in(size_of(shape)), size_of(shape) % codec.block
        self._values = np.empty(WORK, np.float32)

    def feed(self, role: str, items: NDArray[Any]) -> Iterator[Floats]:
        if role == "scales":
            self._check_scales(items)
            self._scales[self._come : self._come + items.size] = items
            self._come += items.size
            if self._come == self._scales.size:
                self._come = 0  # from here on in codes
            return
        step = WORK // self._codec.block * self._row
        for start in range(0, items.size, step):
            yield from self._decoded(items[start : start + step])

    def _check_scales(self, scales: NDArray[Any]) -> None:
        low, high = float(scales.min()), float(scales.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            raise Refusal(Code.NOT_FINITE, "Expected finite scales, got NaN or infinity.")
        if low < 0:
            raise malformed("scales of at least 0", low)

    def _decoded(self, items: NDArray[Any]) -> Iterator[Floats]:
        """The values of the next items, in any order; rows cut by chunks are filled with zeros."""
        first, lead = divmod(self._come, self._row)
        self._come += items.size
        self._check_spare(items)
        rows = -(-(lead + items.size) // self._row)
        if lead or items.size % self._row:
            padded = np.zeros(rows * self._row, items.dtype)
            padded[lead : lead + items.size] = items
            items = padded
        most = WORK // self._codec.block
        for row in range(0, rows, most):
            scales = self._scales[first + row : min(first + rows, first + row + most)]
            out = self._values[: scales.size * self._codec.block]
            part = items[row * self._row : (row + scales.size) * self._row]
            self._codec.unpack(part, scales, out)
            yield out

    def _check_spare(self, items: NDArray[Any]) -> None:
        """The padding of the last int4 block must be zeros."""
        end, used = self._spare
        row = self._row
        if row == self._codec.block or not used or self._come <= end - row:
            return
        begin = self._come - items.size - (end - row)  # of these items, in the last row
        last = items[max(0, -begin) :]
        at = np.arange(max(0, begin), max(0, begin) + last.size)
        spare = ((at >= used) & (last & 15 != 0)) | ((at + row >= used) & (last >> 4 != 0))
        if spare.any():
            raise malformed("zeros after the last value", "others")


class _Decoder:
    def __init__(self, codec: _Quantised, shape: Shape, read: Mapping[str, Read]) -> None:
        self._codec = codec
        self._size = size_of(shape)
        self._read = read
        self._values = np.empty(0, np.float32)

    def block(self, start: int, stop: int) -> Floats:
        codec = self._codec
        first, after = start // codec.block, -(-stop // codec.block)
        begin, end = first * codec.block, min(after * codec.block, self._size)
        items = self._read["codes"](codec.codes_in(begin), codec.codes_in(end))
        count = items.size * codec.block // codec.codes_in(codec.block)
        if count > self._values.size:
            self._values = np.empty(count, np.float32)
        codec.unpack(items, self._read["scales"](first, after), self._values[:count])
        return self._values[start - begin : stop - begin]
