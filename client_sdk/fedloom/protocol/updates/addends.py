"""Adds an update's file to a round's exact sum, block by block.

Server, simulator, masking devices and client test tools share this, so that the same updates give
the same bits.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

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
    AT_ONCE,
    DELTA,
    SCALAR,
    Addend,
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

ForEach: TypeAlias = Callable[[Callable[[Key], None], Iterable[Key]], None]


class UpdateFile(NamedTuple):
    """An accepted update.

    Attributes:
        path: of its file.
        header: its header.
        factor: multiplies its deltas, from 0 to 1; below 1 for a stale update.
    """

    path: Path
    header: fleet_pb2.UpdateHeader
    factor: float = 1.0


def add_update(
    partial: Partial, path: Path, header: fleet_pb2.UpdateHeader, factor: float = 1.0
) -> None:
    """Add an accepted update to a sum, reading its file block by block."""
    add_updates(partial, [UpdateFile(path, header, factor)])


def add_updates(
    partial: Partial, updates: Sequence[UpdateFile], for_each: ForEach | None = None
) -> None:
    """Add accepted updates to a sum, at most `MOST_ADDENDS`, reading their files block by block.

    Tensors that several of them cover whole are added together.

    Args:
        partial: the sum.
        updates: to add.
        for_each: calls a function with each item, possibly in several threads, and waits for all;
            None to call it one after another. Used for tensors of an exact sum.

    Raises:
        IntegrityError: a file is not as its header says. The sum may contain parts of updates.
    """
    specs = partial.specs
    whole: dict[Key, list[tuple[_Opened, fleet_pb2.Part]]] = {}
    with ExitStack() as opened:
        for update in updates:
            file = opened.enter_context(_Opened(update))
            for part in update.header.parts:
                key = part.group, part.tensor
                covered = file.coverage(part, specs[key])
                if isinstance(covered, Full):
                    whole.setdefault(key, []).append((file, part))
                else:
                    partial.add_each(
                        key, covered, [file.addend(part, covered, specs[key], _Buffer())]
                    )

        def add_whole(key: Key) -> None:
            buffers = cycle([_Buffer() for _ in range(AT_ONCE)])
            addends = [
                file.addend(part, Full(), specs[key], buffer)
                for (file, part), buffer in zip(whole[key], buffers, strict=False)
            ]
            partial.add_each(key, Full(), addends)

        if for_each is None or partial.narrow:  # a narrow sum counts what it rounds, of all tensors
            for key in whole:
                add_whole(key)
        else:
            for_each(add_whole, whole)
    for _, header, _ in updates:
        units = weight_units(header.weight)
        for name, value in header.scalars.items():
            partial.add_array((SCALAR, name), Full(), units, np.array(value))
    partial.count += len(updates)


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
        layout, buffer = read_layout_at(handle) if named else None, _Buffer()
        for key in sorted(specs):
            one = Partial({key: specs[key]}, exponent, narrow=True)
            draws = rounding_draws(sum_bits, seed, key, noisy=noise is not None)
            if key[0] == SCALAR:
                one.add_array(key, Full(), units, np.array(header.scalars[key[1]]), draws=draws)
            else:
                assert layout is not None
                read = _Reader(handle, layout, named[key], buffer)
                one.add(key, Full(), units, read, draws=draws)
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


class _Opened:
    """An update whose file is open; a context manager."""

    def __init__(self, update: UpdateFile) -> None:
        self._header = update.header
        self._units = weight_units(update.header.weight)
        self._value_units = discounted(self._units, update.factor)
        self._handle = os.open(update.path, os.O_RDONLY | positional_files.BINARY)

    def __enter__(self) -> Self:
        try:
            self._layout = read_layout_at(self._handle)
        except BaseException:
            os.close(self._handle)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def coverage(self, part: fleet_pb2.Part, spec: TensorSpec) -> Coverage:
        """The coordinates of a part."""
        kind = part.WhichOneof("coverage")
        if kind == "slice":
            return Slice(tuple((r.start, r.stop) for r in part.slice.ranges))
        if kind == "mask":
            packed = self._reader(part.mask.bits)(self._layout.tensors[part.mask.bits].size)
            bits = np.unpackbits(packed, count=spec.size, bitorder="little")
            return Mask(bits.view(np.bool_))
        return Full()

    def addend(
        self, part: fleet_pb2.Part, covered: Coverage, spec: TensorSpec, buffer: "_Buffer"
    ) -> Addend:
        """What a part adds to its tensor; its values are read into the buffer."""
        read: Callable[[int], NDArray[Any]] = (
            self._decoded(part, covered.shape if isinstance(covered, Slice) else spec.shape)
            if part.HasField("encoding")
            else self._reader(part.values, buffer)
        )
        return Addend(self._units, read, self._value_units if part.group == DELTA else self._units)

    def _decoded(self, part: fleet_pb2.Part, shape: tuple[int, ...]) -> Sequential:
        """Reads the values of an encoded part in order, decoding block by block."""
        codec = codec_of(self._header.compression)
        if codec is None:
            raise IntegrityError(f"Expected the codec of {part.tensor!r} in its header, got none.")
        read = {
            role: _at_random(self._reader(array_name(part.values, role)))
            for role in part.encoding.arrays
        }
        return Sequential(codec.decoder(shape, part.encoding.seed, read), size_of(shape))

    def _reader(self, name: str, buffer: "_Buffer | None" = None) -> "_Reader":
        return _Reader(self._handle, self._layout, name, buffer or _Buffer())


def _at_random(reader: "_Reader") -> Read:
    return lambda start, stop: reader.seek(start)(stop - start)


class _Buffer:
    """Memory for the values of one read at a time, which stays in the processor's cache."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def values(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Memory for so many values, until the next call."""
        size = count * dtype.itemsize
        if size > self._bytes.size:
            self._bytes = np.empty(size, np.uint8)
        return self._bytes[:size].view(dtype)


class _Reader:
    """Reads a tensor's values in order, through a reused buffer."""

    def __init__(self, handle: int, layout: Layout, name: str, buffer: _Buffer) -> None:
        info = layout.tensors[name]
        self._buffer = buffer
        self._handle = handle
        self._dtype = DTYPES[info.dtype]
        self._start = self._position = layout.data_start + info.start
        self._size = self._left = info.size

    def seek(self, index: int) -> "_Reader":
        self._position = self._start + index * self._dtype.itemsize
        self._left = self._size - index
        return self

    def __call__(self, count: int) -> NDArray[Any]:
        if count > self._left:
            raise IntegrityError(
                f"Expected at most {self._left} more values, got a request for {count}."
            )
        values = self._buffer.values(count, self._dtype)
        into = values.view(np.uint8).data
        got = positional_files.read_into(self._handle, into, self._position) if count else 0
        if got != count * self._dtype.itemsize:
            raise IntegrityError(f"Expected {count * self._dtype.itemsize} bytes, got {got}.")
        self._position += got
        self._left -= count
        return values
