"""Adds an update's file to a round's exact sum, block by block.

Server, simulator and client test tools share this, so that the same updates give the same bits.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol import positional_files
from fedloom.protocol.codecs import Sequential
from fedloom.protocol.codecs.base import Read, size_of
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.tensors.container import DTYPES, Layout, read_layout_at
from fedloom.protocol.updates.compression import array_name, codec_of
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies.exact.partial import (
    DELTA,
    SCALAR,
    Coverage,
    Full,
    Mask,
    Partial,
    Slice,
    weight_units,
)
from fedloom.strategies.staleness import discounted


def add_update(
    partial: Partial, path: Path, header: fleet_pb2.UpdateHeader, factor: float = 1.0
) -> None:
    """Add an accepted update to a sum, reading its file block by block."""
    units = weight_units(header.weight)
    value_units = discounted(units, factor)
    handle = os.open(path, os.O_RDONLY | positional_files.BINARY)
    try:
        layout = read_layout_at(handle)
        for part in header.parts:
            key = part.group, part.tensor
            covered = _coverage(part, handle, layout, partial)
            counted = value_units if part.group == DELTA else units
            read: Callable[[int], NDArray[Any]]
            if part.HasField("encoding"):
                shape = covered.shape if isinstance(covered, Slice) else partial.specs[key].shape
                read = _decoded(part, header.compression, handle, layout, shape)
            else:
                read = _Reader(handle, layout, part.values)
            partial.add(key, covered, units, read, value_units=counted)
    finally:
        os.close(handle)
    for name, value in header.scalars.items():
        partial.add_array((SCALAR, name), Full(), units, np.array(value))
    partial.count += 1


def _coverage(part: fleet_pb2.Part, handle: int, layout: Layout, partial: Partial) -> Coverage:
    kind = part.WhichOneof("coverage")
    if kind == "slice":
        return Slice(tuple((r.start, r.stop) for r in part.slice.ranges))
    if kind == "mask":
        size = partial.specs[part.group, part.tensor].size
        reader = _Reader(handle, layout, part.mask.bits)
        packed = reader(layout.tensors[part.mask.bits].size)
        return Mask(np.unpackbits(packed, count=size, bitorder="little").view(np.bool_))
    return Full()


def _decoded(
    part: fleet_pb2.Part,
    compression: fleet_pb2.Compression,
    handle: int,
    layout: Layout,
    shape: tuple[int, ...],
) -> Sequential:
    """Reads the values of an encoded part in order, decoding block by block."""
    codec = codec_of(compression)
    if codec is None:
        raise IntegrityError(f"Expected the codec of {part.tensor!r} in its header, got none.")
    read = {
        role: _at_random(_Reader(handle, layout, array_name(part.values, role)))
        for role in part.encoding.arrays
    }
    return Sequential(codec.decoder(shape, part.encoding.seed, read), size_of(shape))


def _at_random(reader: "_Reader") -> Read:
    return lambda start, stop: reader.seek(start)(stop - start)


class _Reader:
    """Reads a tensor's values in order, through one reused buffer."""

    def __init__(self, handle: int, layout: Layout, name: str) -> None:
        info = layout.tensors[name]
        self._handle = handle
        self._dtype = DTYPES[info.dtype]
        self._start = self._position = layout.data_start + info.start
        self._size = self._left = info.size
        self._buffer = np.empty(0, self._dtype)

    def seek(self, index: int) -> "_Reader":
        self._position = self._start + index * self._dtype.itemsize
        self._left = self._size - index
        return self

    def __call__(self, count: int) -> NDArray[Any]:
        if count > self._left:
            raise IntegrityError(
                f"Expected at most {self._left} more values, got a request for {count}."
            )
        if count > self._buffer.size:
            self._buffer = np.empty(count, self._dtype)
        values = self._buffer[:count]
        into = values.view(np.uint8).data
        got = positional_files.read_into(self._handle, into, self._position) if count else 0
        if got != count * self._dtype.itemsize:
            raise IntegrityError(f"Expected {count * self._dtype.itemsize} bytes, got {got}.")
        self._position += got
        self._left -= count
        return values
