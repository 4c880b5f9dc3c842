"""Reads the values of an encoded tensor in the order of a sum."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.codecs.base import WORK, Codec, Decoder, Encoded, Floats, Read, Shape, size_of
from fedloom.strategies.exact.lazy_arrays import Pieces, Values


class Sequential:
    """Reads a decoder's values in order, decoding a cache-sized block at a time."""

    def __init__(self, decoder: Decoder, size: int) -> None:
        self._decoder = decoder
        self._size = size
        self._decoded = 0
        self._held: Floats = np.empty(0, np.float32)

    def __call__(self, count: int) -> Floats:
        """The next `count` values; valid until the next call.

        Raises:
            ValueError: fewer are left.
        """
        pieces: list[Floats] = []
        wanted = count
        while wanted:
            if not self._held.size:
                stop = min(self._size, self._decoded + WORK)
                if stop == self._decoded:
                    raise ValueError(
                        f"Expected at most {self._size} values, got a request for {count} more."
                    )
                if pieces:  # valid until the next call of the decoder
                    pieces[-1] = pieces[-1].copy()
                self._held = self._decoder.block(self._decoded, stop)
                self._decoded = stop
            pieces.append(self._held[:wanted])
            self._held = self._held[wanted:]
            wanted -= pieces[-1].size
        return pieces[0] if len(pieces) == 1 else np.concatenate([self._held[:0], *pieces])


def held(arrays: Mapping[str, Values]) -> dict[str, Read]:
    """Readers of arrays in memory."""
    return {role: _reader(array) for role, array in arrays.items()}


def _reader(array: Values) -> Read:
    if isinstance(array, Pieces):
        return array.piece
    return _slices(np.ascontiguousarray(array).reshape(-1))


def _slices(flat: NDArray[Any]) -> Read:
    return lambda start, stop: flat[start:stop]


def decode(codec: Codec, encoded: Encoded, shape: Shape, seed: int) -> Floats:
    """All values of a tensor in memory, float32 [size]."""
    out = np.empty(size_of(shape), np.float32)
    for start, block in decoded(codec, encoded, shape, seed):
        out[start : start + block.size] = block
    return out


def decoded(
    codec: Codec, encoded: Encoded, shape: Shape, seed: int
) -> Iterator[tuple[int, Floats]]:
    """All values of a tensor in memory: the start of each block, and the block."""
    size = size_of(shape)
    decoder = codec.decoder(shape, seed, held(encoded.arrays))
    for start in range(0, size, WORK):
        yield start, decoder.block(start, min(size, start + WORK))
