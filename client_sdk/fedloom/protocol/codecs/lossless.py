"""lossless: float32 bytes sorted by significance and deflated, if that makes them smaller.

The high bytes of differences are similar, the low ones are noise: sorted apart, the high bytes
deflate well. Blocks of 2^16 values are deflated separately; a block that does not shrink is stored,
so the largest encoded and inflated sizes are known.

References:
    Deutsch 1996, RFC 1950 and RFC 1951 (zlib, deflate).
    Collette 2013, Python and HDF5, chapter 4 (the shuffle filter).

Invariants: decoding gives the same bits; no block inflates past its own size, whatever it claims.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.codecs.base import (
    ArrayInfo,
    Codec,
    Encoded,
    Floats,
    Inspector,
    Read,
    Shape,
    expect,
    malformed,
    size_of,
)
from fedloom.protocol.errors import Refusal
from fedloom.strategies.checks import check_count

BLOCK = 1 << 16
_LEAST = 64
"""Tensors with fewer values are not encoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lossless(Codec):
    """Deflate, sorted by bytes.

    Attributes:
        level: of zlib, 1 (fast) to 9.

    Raises:
        TypeError: level is not a whole number.
        ValueError: level is out of range.
    """

    name: ClassVar[str] = "lossless"
    forms: ClassVar[tuple[tuple[str, ...], ...]] = (("lengths", "data"),)
    exact: ClassVar[bool] = True
    slow: ClassVar[bool] = True
    varies: ClassVar[bool] = True
    level: int = 1

    def __post_init__(self) -> None:
        check_count("level", self.level)
        if self.level > 9:
            raise ValueError(f"Expected level from 1 to 9, got {self.level}.")

    def applies(self, shape: Shape) -> bool:
        """Return whether the tensor is large enough."""
        return size_of(shape) >= _LEAST

    def layout(self, shape: Shape) -> dict[str, ArrayInfo]:
        """The longest arrays, of values that do not shrink: the gain is not known in advance."""
        size = size_of(shape)
        return {
            "lengths": ArrayInfo("U32", (-(-size // BLOCK),)),
            "data": ArrayInfo("U8", (4 * size,)),
        }

    def encode(
        self, values: Floats, shape: Shape, seed: int, memory: Mapping[str, NDArray[Any]]
    ) -> Encoded:
        """Deflate block by block; one that does not shrink is stored."""
        lengths, data = [], bytearray()  # grows in place, without a second copy
        for at in range(0, values.size, BLOCK):
            block = self._packed(values[at : at + BLOCK])
            lengths.append(len(block))
            data += block
        return Encoded(
            {"lengths": np.array(lengths, np.uint32), "data": np.frombuffer(data, np.uint8)}
        )

    def _packed(self, values: Floats) -> bytes:
        raw = np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(-1, 4)
        planes = raw.T.tobytes()
        deflated = zlib.compress(planes, self.level)
        return deflated if len(deflated) < len(planes) else planes

    def check(self, shape: Shape, arrays: Mapping[str, ArrayInfo]) -> None:
        """Check the sizes that are known."""
        longest = self.layout(shape)
        expect("lengths", arrays["lengths"], ("U32",), longest["lengths"].shape)
        expect("data", arrays["data"], ("U8",), None)
        (most,) = longest["data"].shape
        if arrays["data"].shape[0] > most:
            raise malformed(f"at most {most} bytes of data", arrays["data"].shape[0])

    def inspector(self, shape: Shape, arrays: Mapping[str, ArrayInfo]) -> "_Inspector":
        """Return an inspector that inflates each complete block."""
        return _Inspector(size_of(shape), arrays["data"].shape[0])

    def decoder(self, shape: Shape, seed: int, read: Mapping[str, Read]) -> "_Decoder":
        """Return a decoder."""
        return _Decoder(size_of(shape), read)


def _inflate(data: bytes, count: int) -> Floats:
    """The values of a block of `count`."""
    size = 4 * count
    if len(data) != size:
        inflate = zlib.decompressobj()
        try:
            data, spare = inflate.decompress(data, size + 1), inflate.unused_data
        except zlib.error as error:
            raise malformed("deflated data", error) from None
        if len(data) != size or not inflate.eof or spare or inflate.unconsumed_tail:
            raise malformed(f"data that inflates to {size} bytes", "other data")
    planes = np.frombuffer(data, np.uint8).reshape(4, count)
    values: Floats = np.ascontiguousarray(planes.T).view("<f4").reshape(-1)
    return values


class _Inspector(Inspector):
    def __init__(self, size: int, data_bytes: int) -> None:
        self._size = size
        self._lengths = np.empty(-(-size // BLOCK), np.int64)
        self._data_bytes = data_bytes
        self._come = 0
        self._next = 0  # block
        self._held = bytearray()

    def feed(self, role: str, items: NDArray[Any]) -> Iterator[Floats]:
        if role == "lengths":
            self._lengths[self._come : self._come + items.size] = items
            self._come += items.size
            self._check_lengths()
            return
        view = memoryview(np.ascontiguousarray(items).data).cast("B")
        while view:
            if self._next == self._lengths.size:
                raise malformed("lengths that add up to the data", "more data")
            wanted = int(self._lengths[self._next]) - len(self._held)
            self._held += view[:wanted]
            view = view[wanted:]
            if len(self._held) == self._lengths[self._next]:
                values = _inflate(bytes(self._held), self._count())
                self._held.clear()
                self._next += 1
                yield values

    def _count(self) -> int:
        return min(BLOCK, self._size - self._next * BLOCK)

    def _check_lengths(self) -> None:
        known = self._lengths[: self._come]
        if not ((known > 0) & (known <= 4 * BLOCK)).all():
            raise malformed(f"lengths from 1 to {4 * BLOCK}", "others")
        if self._come == self._lengths.size and known.sum() != self._data_bytes:
            raise malformed(f"lengths that add up to {self._data_bytes}", int(known.sum()))


class _Decoder:
    def __init__(self, size: int, read: Mapping[str, Read]) -> None:
        self._size = size
        self._read = read
        self._at, self._offset = 0, 0  # the next block, and where its data begins
        self._held: Floats = np.empty(0, np.float32)

    def block(self, start: int, stop: int) -> Floats:
        pieces: list[Floats] = []
        for index in range(start // BLOCK, -(-stop // BLOCK)):
            values = self._block(index)
            begin = index * BLOCK
            pieces.append(values[max(0, start - begin) : stop - begin])
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty(0, np.float32)

    def _block(self, index: int) -> Floats:
        if index == self._at - 1:
            return self._held
        if index < self._at:
            self._at, self._offset = 0, 0
        while self._at <= index:
            length = int(self._read["lengths"](self._at, self._at + 1)[0])
            begin, self._offset = self._offset, self._offset + length
            self._at += 1
        data = self._read["data"](begin, self._offset).tobytes()
        try:
            self._held = _inflate(data, min(BLOCK, self._size - index * BLOCK))
        except Refusal as refusal:  # checked on arrival, so the disk is at fault
            raise ValueError(str(refusal)) from refusal
        return self._held
