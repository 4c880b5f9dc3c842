"""Random numbers by position: the n-th is computed directly, without those before it.

The generator is SplitMix64 (Steele, Lea and Flood 2014, Fast Splittable Pseudorandom Number
Generators, https://doi.org/10.1145/2714064.2660195, figure 16, with the constants of Vigna's
public-domain splitmix64.c): its n-th output is a mix of seed + n · golden gamma.

It decides how values are rounded and which coordinates are sent. It is not cryptographic.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]

_GAMMA: Final = 0x9E3779B97F4A7C15
_MIXES: Final = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST: Final = np.uint64(31)
_CHUNK: Final = 1 << 15
_MASK: Final = (1 << 64) - 1


def stream(seed: int, group: str, tensor: str) -> int:
    """The seed of one tensor's randomness, from 0 to 2^64 − 1.

    >>> stream(7, "delta", "w")
    5044686545701994213
    """
    text = f"{seed}\0{group}\0{tensor}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def uniform32(seed: int) -> Callable[[int], NDArray[np.uint32]]:
    """Return a function that gives the next n uniform 32-bit numbers, in two halves of each output.

    >>> draw = uniform32(7)
    >>> (draw(3).tolist(), draw(1).tolist()) == (uniform32(7)(4)[:3].tolist(), [uniform32(7)(4)[3]])
    True

    Args:
        seed: from 0 to 2^64 − 1.
    """
    words, taken = Words64(seed, _CHUNK), 0

    def draw(count: int) -> NDArray[np.uint32]:
        nonlocal taken
        out, filled = np.empty(count, np.uint32), 0
        while filled < count:
            start, skip = divmod(taken, 2)
            more = words.at(start, min(_CHUNK, -(-(skip + count - filled) // 2)))
            found = more.astype("<u8").view("<u4")[skip : skip + count - filled]
            out[filled : filled + found.size] = found
            filled += found.size
            taken += found.size
        return out

    return draw


class Words64:
    """The outputs of SplitMix64 from one seed.

    Args:
        seed: from 0 to 2^64 − 1.
        capacity: most outputs per call.
    """

    __slots__ = ("_other", "_seed", "_steps", "_words")

    def __init__(self, seed: int, capacity: int) -> None:
        self._seed = seed
        with np.errstate(over="ignore"):  # arithmetic is modulo 2^64 throughout
            self._steps: Words = np.arange(1, capacity + 1, dtype=np.uint64) * np.uint64(_GAMMA)
        self._words = np.empty(capacity, np.uint64)
        self._other = np.empty(capacity, np.uint64)

    def at(self, start: int, count: int) -> Words:
        """Outputs `start` to `start + count`, counted from 0; valid until the next call."""
        words, other = self._words[:count], self._other[:count]
        base = np.uint64((self._seed + start * _GAMMA) & _MASK)
        np.add(self._steps[:count], base, out=words)
        for shift, factor in _MIXES:
            np.right_shift(words, shift, out=other)
            np.bitwise_xor(words, other, out=words)
            np.multiply(words, factor, out=words)
        np.right_shift(words, _LAST, out=other)
        np.bitwise_xor(words, other, out=words)
        return words
