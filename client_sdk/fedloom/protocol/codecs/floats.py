"""fp16 and bf16: every value in two bytes.

fp16 keeps 11 significant bits of magnitudes from 6e-5 to 65504, rounded to nearest; larger values
become 65504, smaller ones are multiples of 6e-8. bf16 keeps 8 bits of any magnitude; its rounding
is stochastic, so that its expectation is the value.

References:
    IEEE 754-2008, binary16.
    Gupta et al. 2015, Deep Learning with Limited Numerical Precision,
    https://arxiv.org/abs/1502.02551, section 3.1 (stochastic rounding).
"""

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
    size_of,
)
from fedloom.protocol.codecs.draws import Words64

_LARGEST = np.float32(65504)
_INFINITY = np.int32(0x7F800000)


@dataclass(frozen=True, slots=True)
class _Halved(Codec):
    """Base of fp16 and bf16."""

    forms: ClassVar[tuple[tuple[str, ...], ...]] = (("values",),)
    dtype: ClassVar[str]

    def layout(self, shape: Shape) -> dict[str, ArrayInfo]:
        """Two bytes per value."""
        return {"values": ArrayInfo(self.dtype, (size_of(shape),))}

    def widen(self, items: NDArray[Any], out: Floats) -> None:
        """Write the values of items."""
        raise NotImplementedError

    def inspector(self, shape: Shape, arrays: Mapping[str, ArrayInfo]) -> "_Widener":
        """Return an inspector that yields every value."""
        return _Widener(self)

    def decoder(self, shape: Shape, seed: int, read: Mapping[str, Read]) -> "_Decoder":
        return _Decoder(self, read["values"])


@dataclass(frozen=True, slots=True)
class Fp16(_Halved):
    """Half precision."""

    name: ClassVar[str] = "fp16"
    dtype: ClassVar[str] = "F16"

    def encode(
        self, values: Floats, shape: Shape, seed: int, memory: Mapping[str, NDArray[Any]]
    ) -> Encoded:
        """Round to the nearest, ties to even."""
        codes = np.empty(values.size, np.float16)
        work = np.empty(min(WORK, values.size), np.float32)
        for start in range(0, values.size, WORK):
            block = values[start : start + WORK]
            if not max(block.max(), -block.min()) <= _LARGEST:
                out = work[: block.size]
                np.clip(block, -_LARGEST, _LARGEST, out=out)
                np.copyto(out, np.nan, where=~np.isfinite(block))  # infinity must stay visible
                block = out
            np.copyto(codes[start : start + WORK], block, casting="same_kind")
        return Encoded({"values": codes})

    def widen(self, items: NDArray[Any], out: Floats) -> None:
        """Exact."""
        np.copyto(out, items)


@dataclass(frozen=True, slots=True)
class Bf16(_Halved):
    """The upper half of float32."""

    name: ClassVar[str] = "bf16"
    dtype: ClassVar[str] = "BF16"

    def encode(
        self, values: Floats, shape: Shape, seed: int, memory: Mapping[str, NDArray[Any]]
    ) -> Encoded:
        """Add 16 random bits below the last one kept, and drop them."""
        codes = np.empty(values.size, np.uint16)
        words = Words64(seed, WORK // 4)
        work, noise = np.empty(WORK, np.int32), np.empty(WORK, np.int32)
        for start in range(0, values.size, WORK):
            bits = np.ascontiguousarray(values[start : start + WORK]).view(np.int32)
            out, random = work[: bits.size], noise[: bits.size]
            np.bitwise_and(bits, np.int32(0x7FFFFFFF), out=out)
            special = out >= _INFINITY if out.max() >= _INFINITY else None
            np.copyto(random, words.at(start // 4, -(-bits.size // 4)).view(np.uint16)[: bits.size])
            np.add(bits, random, out=out)
            np.right_shift(out, 16, out=out)
            target = codes[start : start + WORK]
            np.copyto(target, out, casting="unsafe")
            if special is not None:  # a carry must not turn it into a number
                target[special] = 0x7FC0
        return Encoded({"values": codes}, {"values": self.dtype})

    def widen(self, items: NDArray[Any], out: Floats) -> None:
        """Exact."""
        bits = out.view(np.uint32)
        np.copyto(bits, items)
        np.left_shift(bits, 16, out=bits)


class _Widener(Inspector):
    def __init__(self, codec: _Halved) -> None:
        self._codec = codec
        self._values = np.empty(WORK, np.float32)

    def feed(self, role: str, items: NDArray[Any]) -> Iterator[Floats]:
        for start in range(0, items.size, WORK):
            block = items[start : start + WORK]
            out = self._values[: block.size]
            self._codec.widen(block, out)
            yield out


class _Decoder:
    def __init__(self, codec: _Halved, read: Read) -> None:
        self._codec = codec
        self._read = read
        self._values = np.empty(0, np.float32)

    def block(self, start: int, stop: int) -> Floats:
        if stop - start > self._values.size:
            self._values = np.empty(stop - start, np.float32)
        out = self._values[: stop - start]
        self._codec.widen(self._read(start, stop), out)
        return out
