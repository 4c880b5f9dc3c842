"""The parts of an update's file: the location of a tensor's values, and the coordinates they cover.

A part is raw or encoded, and covers a whole tensor, a box or a mask of it. Any range of flat
coordinates can be read separately.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.codecs.base import Codec, Decoder, Read
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.tensors.container import DTYPES, Layout, read_layout_at
from fedloom.protocol.updates.compression import array_name, codec_of
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import Key, TensorSpec

_COUNT_BYTES: Final = 1 << 16  # of a mask, counted at a time


def parts_of(
    handle: int, header: fleet_pb2.UpdateHeader, specs: Mapping[Key, TensorSpec]
) -> "dict[Key, Part]":
    """Return the part of each tensor in an update's file.

    Raises:
        IntegrityError: a part is encoded, but the header names no codec.
    """
    layout, codec = read_layout_at(handle), codec_of(header.compression)
    found: dict[Key, Part] = {}
    for part in header.parts:
        key, kind = (part.group, part.tensor), part.WhichOneof("coverage")
        box = tuple((r.start, r.stop) for r in part.slice.ranges)
        shape = tuple(b - a for a, b in box) if kind == "slice" else specs[key].shape
        values = _values(part, codec, shape, layout)
        if kind == "slice":
            found[key] = SlicePart(values, box)
        elif kind == "mask":
            found[key] = MaskPart(values, place_of(layout, part.mask.bits)[0])
        else:
            found[key] = Part(values)
    return found


Place: TypeAlias = tuple[int, np.dtype[Any]]
"""Offset of an array in its file, and its dtype."""


def place_of(layout: Layout, name: str) -> Place:
    """Return the place of an array of a body."""
    info = layout.tensors[name]
    return layout.data_start + info.start, DTYPES[info.dtype]


class Values(Protocol):
    """The values of one part, in row-major order of what it covers."""

    def read(self, handle: int, first: int, count: int) -> NDArray[Any]:
        """Return `count` values from `first` on, valid until the next call."""

    def forget(self) -> None:
        """Drop state kept between reads."""


def _values(
    part: fleet_pb2.Part, codec: Codec | None, shape: tuple[int, ...], layout: Layout
) -> Values:
    if not part.HasField("encoding"):
        return Raw(*place_of(layout, part.values))
    if codec is None:
        raise IntegrityError(f"The header names no codec for {part.tensor!r}.")
    roles = part.encoding.arrays
    places = {role: place_of(layout, array_name(part.values, role)) for role in roles}
    return Coded(codec, shape, part.encoding.seed, places)


@dataclass(slots=True)
class Raw:
    """Values that are stored raw."""

    offset: int
    dtype: np.dtype[Any]

    def read(self, handle: int, first: int, count: int) -> NDArray[Any]:
        """See `Values.read`."""
        values = np.empty(count, self.dtype)
        _read(handle, self.offset + first * self.dtype.itemsize, values)
        return values

    def forget(self) -> None:
        """Nothing is kept."""


class Coded:
    """Values that are decoded as they are read."""

    def __init__(
        self, codec: Codec, shape: tuple[int, ...], seed: int, places: Mapping[str, Place]
    ) -> None:
        self._codec = codec
        self._shape = shape
        self._seed = seed
        self._arrays = {role: Raw(*place) for role, place in places.items()}
        self._decoder: Decoder | None = None
        self._handle = -1

    def read(self, handle: int, first: int, count: int) -> NDArray[Any]:
        """See `Values.read`."""
        self._handle = handle
        if self._decoder is None:
            reads = {role: self._reader(array) for role, array in self._arrays.items()}
            self._decoder = self._codec.decoder(self._shape, self._seed, reads)
        return self._decoder.block(first, first + count)

    def _reader(self, array: Raw) -> Read:
        return lambda start, stop: array.read(self._handle, start, stop - start)

    def forget(self) -> None:
        """Drop the decoder and its position in its arrays."""
        self._decoder = None


@dataclass(frozen=True, slots=True)
class Span:
    """The flat coordinates `start:stop` of a tensor, in an open file."""

    handle: int
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(slots=True)
class Part:
    """A part that covers a whole tensor."""

    values: Values

    def where(self, span: Span) -> tuple[int, NDArray[np.bool_] | bool]:
        """Return how many values lie before a span, and which of its coordinates are covered."""
        return span.start, True


@dataclass(slots=True)
class SlicePart(Part):
    """A part that covers a box of a tensor; its values are in the order of flat coordinates.

    Attributes:
        box: `(start, stop)` for each dimension.
    """

    box: tuple[tuple[int, int], ...]

    def where(self, span: Span) -> tuple[int, NDArray[np.bool_] | bool]:
        """Return how many values lie before a span, and which of its coordinates are covered."""
        return self._before(span), _inside(span.shape, self.box, span.start, span.stop)

    def _before(self, span: Span) -> int:
        """Return how many values of the box lie before the span."""
        count, left, inner = 0, span.start, math.prod(span.shape)
        values = math.prod(high - low for low, high in self.box)
        if not values:
            return 0
        for extent, (low, high) in zip(span.shape, self.box, strict=True):
            inner //= extent
            values //= high - low
            place, left = divmod(left, inner)
            count += (min(max(place, low), high) - low) * values
            if not low <= place < high:
                break
        return count


def _inside(
    shape: tuple[int, ...], box: tuple[tuple[int, int], ...], start: int, stop: int
) -> NDArray[np.bool_]:
    """Return which of the flat coordinates `start:stop` lie in a box."""
    if not shape:
        return np.ones(stop - start, np.bool_)
    # Compute whole rows from their outer coordinates, then cut off the ends.
    extent, (low, high) = shape[-1], box[-1]
    first = start // extent
    rows = _inside(shape[:-1], box[:-1], first, -(-stop // extent))
    places = np.zeros(extent, np.bool_)
    places[low:high] = True
    whole = (rows[:, None] & places).reshape(-1)
    return whole[start - first * extent : stop - first * extent]


@dataclass(slots=True)
class MaskPart(Part):
    """The coordinates of a tensor whose bits are set.

    Attributes:
        bits: offset of the mask in the file.
        known: a flat coordinate → number of bits set before it, from the last read.
    """

    bits: int
    known: dict[int, int] = field(default_factory=dict)

    def where(self, span: Span) -> tuple[int, NDArray[np.bool_] | bool]:
        """Return how many values lie before a span, and which of its coordinates are covered."""
        before = self._before(span.handle, span.start)
        bits = self._load(span.handle, span.start, span.stop)
        self.known = {0: 0, span.start: before, span.stop: before + int(np.count_nonzero(bits))}
        return before, bits

    def _before(self, handle: int, start: int) -> int:
        at = max(place for place in (*self.known, 0) if place <= start)
        count = self.known.get(at, 0)
        for low in range(at, start, 8 * _COUNT_BYTES):
            high = min(low + 8 * _COUNT_BYTES, start)
            count += int(np.count_nonzero(self._load(handle, low, high)))
        return count

    def _load(self, handle: int, start: int, stop: int) -> NDArray[np.bool_]:
        first = start // 8
        packed = np.empty((stop + 7) // 8 - first, np.uint8)
        _read(handle, self.bits + first, packed)
        loose = np.unpackbits(packed, bitorder="little").view(np.bool_)
        return loose[start - 8 * first : stop - 8 * first]


def _read(handle: int, offset: int, into: NDArray[Any]) -> None:
    got = os.preadv(handle, [into.view(np.uint8).data], offset) if into.size else 0
    if got != into.nbytes:
        raise IntegrityError(f"Expected {into.nbytes} bytes at {offset}, got {got}.")
