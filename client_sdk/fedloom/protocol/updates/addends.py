"""Adds an update's file to a round's exact sum, block by block.

Server, simulator, masking devices and client test tools share this, so that the same updates give
the same bits.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol import positional_files
from fedloom.protocol.codecs import Sequential
from fedloom.protocol.codecs.base import Read, size_of
from fedloom.protocol.codecs.draws import stream, uniform32
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.tensors.container import DTYPES, Layout, read_layout_at
from fedloom.protocol.updates.compression import array_name, codec_of
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies.exact.fixed_point import Draws, Ints
from fedloom.strategies.exact.grid import is_stochastic
from fedloom.strategies.exact.partial import (
    DELTA,
    SCALAR,
    Coverage,
    Full,
    Key,
    Mask,
    Partial,
    Slice,
    TensorSpec,
    weight_units,
)
from fedloom.strategies.masking.noise import MemberNoise
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


def masked_addends(
    path: Path,
    header: fleet_pb2.UpdateHeader,
    specs: Mapping[Key, TensorSpec],
    *,
    units: int,
    exponent: int,
    sum_bits: int,
    seed: int,
    noise: MemberNoise | None = None,
) -> Iterator[Ints]:
    """Yield what an update adds to a masked sum, tensor by tensor in the order of a body.

    Args:
        path: of the update's body.
        header: of the update, whose parts are not encoded.
        specs: its tensors and scalars, each with the shape that the update covers.
        units: of its weight.
        exponent: of the sum.
        sum_bits: of the sum.
        seed: of the client's task.
        noise: this device's share of its session's noise.
    """
    named = {(part.group, part.tensor): part.values for part in header.parts}
    handle = os.open(path, os.O_RDONLY | positional_files.BINARY)
    try:
        layout = read_layout_at(handle) if named else None
        for key in sorted(specs):
            one = Partial({key: specs[key]}, exponent, narrow=True)
            draws = rounding_draws(sum_bits, seed, key, noisy=noise is not None)
            if key[0] == SCALAR:
                one.add_array(key, Full(), units, np.array(header.scalars[key[1]]), draws=draws)
            else:
                assert layout is not None
                one.add(key, Full(), units, _Reader(handle, layout, named[key]), draws=draws)
            if noise is not None:
                noise.add_to(one)
            yield one.sum_block(key, 0, specs[key].size)
    finally:
        os.close(handle)


def rounding_draws(
    sum_bits: int | None, seed: int, key: Key, *, noisy: bool = False
) -> Draws | None:
    """The random numbers that round a part of a masked update; None to round to nearest.

    Args:
        sum_bits: of the masked sum; None for a sum that is not masked.
        seed: of the client's task.
        key: the tensor.
        noisy: whether devices add noise.
    """
    if sum_bits is None or not is_stochastic(sum_bits, noisy=noisy):
        return None
    return uniform32(stream(seed, f"sum_bits/{key[0]}", key[1]))


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
