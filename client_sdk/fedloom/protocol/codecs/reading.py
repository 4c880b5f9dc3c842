"""From the arrays of an encoded tensor to its values, in the order that a sum asks for them."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.codecs.base import WORK, Codec, Decoder, Encoded, Floats, Read, Shape, size_of
from fedloom.strategies.exact.lazy_arrays import Pieces, Values


class Sequential:
    """Hands out a decoder's values in order, decoding so many at a time as suit the cache.

    Args:
        decoder: of the tensor.
        size: of the tensor.
    """

    def __init__(self, decoder: Decoder, size: int) -> None:
        self._decoder = decoder
        self._size = size
        self._decoded = 0
        self._held: Floats = np.empty(0, np.float32)

    def __call__(self, count: int) -> Floats:
        """The next `count` values; they last until the next call.

        Raises:
            ValueError: there are fewer.
        """
        pieces: list[Floats] = []
        wanted = count
        while wanted:
            if not self._held.size:
                stop = min(self._size, self._decoded + WORK)
                if stop == self._decoded:
                    raise ValueError(f"Expected at most {self._size} values, asked for {count} on.")
                if pieces:  # they last until the decoder is asked again
                    pieces[-1] = pieces[-1].copy()
                self._held = self._decoder.block(self._decoded, stop)
                self._decoded = stop
            pieces.append(self._held[:wanted])
            self._held = self._held[wanted:]
            wanted -= pieces[-1].size
        return pieces[0] if len(pieces) == 1 else np.concatenate([self._held[:0], *pieces])


def held(arrays: Mapping[str, Values]) -> dict[str, Read]:
    """Readers of arrays that are at hand."""
    return {role: _reader(array) for role, array in arrays.items()}


def _reader(array: Values) -> Read:
    if isinstance(array, Pieces):
        return array.piece
    return _slices(np.ascontiguousarray(array).reshape(-1))


def _slices(flat: NDArray[Any]) -> Read:
    return lambda start, stop: flat[start:stop]


def decode(codec: Codec, encoded: Encoded, shape: Shape, seed: int) -> Floats:
    """All values of a tensor that is at hand, float32 [size]."""
    out = np.empty(size_of(shape), np.float32)
    for start, block in decoded(codec, encoded, shape, seed):
        out[start : start + block.size] = block
    return out


def decoded(
    codec: Codec, encoded: Encoded, shape: Shape, seed: int
) -> Iterator[tuple[int, Floats]]:
    """All values of a tensor that is at hand: where each block starts, and the block."""
    size = size_of(shape)
    decoder = codec.decoder(shape, seed, held(encoded.arrays))
    for start in range(0, size, WORK):
        yield start, decoder.block(start, min(size, start + WORK))
