"""Single numbers of a stream of numpy's `Philox`, compiled by numba where it is installed.

Of a million devices a round asks a thousand. numpy draws a stream from its start; a counter-based
generator can compute each number alone. The numbers have the same bits.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", Philox4x64-10.
"""

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.exact.compiled import Compiled, compile_

LEAST: Final = 1 << 16
"""Length of streams from which it is worth 0.3 s to load."""

_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_HIGH_A, _LOW_A = np.uint64(0xD2E7470E), np.uint64(0xE14C6C93)  # multiplier of word 0
_HIGH_B, _LOW_B = np.uint64(0xCA5A8263), np.uint64(0x95121157)  # multiplier of word 2
_A, _B = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_STEP_0, _STEP_1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)  # of the key
_ZERO, _ONE, _TWO, _THREE, _ELEVEN = (np.uint64(n) for n in (0, 1, 2, 3, 11))


@cache
def doubles_at() -> Compiled | None:
    """Return `_doubles_at`, compiled; None without numba."""
    return compile_(_doubles_at)


def _doubles_at(key: tuple[Any, Any], places: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return some numbers of `Generator(Philox(key=key)).random`.

    Args:
        key: two uint64.
        places: of the numbers in the stream, int64 [n].

    Returns:
        float64 [n], in [0, 1).
    """
    found = np.empty(places.size)
    for n in range(places.size):
        place = np.uint64(places[n])
        a, b, c, d = (place >> _TWO) + _ONE, _ZERO, _ZERO, _ZERO
        key_0, key_1 = key
        for _ in range(10):
            # The upper half of a product of 64 bits, by halves.
            middle = _HIGH_A * (a & _LOW) + (_LOW_A * (a & _LOW) >> _HALF)
            upper = _LOW_A * (a >> _HALF) + (middle & _LOW)
            high_a = _HIGH_A * (a >> _HALF) + (middle >> _HALF) + (upper >> _HALF)
            middle = _HIGH_B * (c & _LOW) + (_LOW_B * (c & _LOW) >> _HALF)
            upper = _LOW_B * (c >> _HALF) + (middle & _LOW)
            high_b = _HIGH_B * (c >> _HALF) + (middle >> _HALF) + (upper >> _HALF)
            a, b, c, d = high_b ^ b ^ key_0, _B * c, high_a ^ d ^ key_1, _A * a
            key_0, key_1 = key_0 + _STEP_0, key_1 + _STEP_1
        word = place & _THREE
        bits = a if word == _ZERO else b if word == _ONE else c if word == _TWO else d
        found[n] = np.float64(bits >> _ELEVEN) * 2.0**-53
    return found
