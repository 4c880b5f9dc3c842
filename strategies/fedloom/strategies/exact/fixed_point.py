"""Fixed point: converts a value and a weight to an int64 addend, `rint(x · w · 2^s)`.

Legend: x a value, w a weight, u = w / WEIGHT_UNIT its integer units, s the round's exponent.

Invariant: while |x| <= max_abs and the weights sum to at most max_weight_sum, the addends under
`exponent(max_abs, max_weight_sum)` sum to less than 2^63 in magnitude: products reach 2^62, and
their roundings add at most half a unit and a 2^-53rd part each.
"""

import math
from fractions import Fraction
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]

UNIT_BITS: Final = 20
WEIGHT_UNIT: Final = 2.0**-UNIT_BITS
"""The grid of weights. Whole numbers of examples are multiples of it, so they are exact."""
MAX_UNITS: Final = 2**53
"""The largest weight of one update, in units: float64 holds every integer up to here."""
MAX_WEIGHT_SUM: Final = 2.0**42
"""The largest sum of weights: in units it must fit int64."""
BLOCK: Final = 32_768
"""Values folded at a time: 640 KiB of buffers and input, measured best for a 1-2 MiB L2 cache."""

_HEADROOM_BITS: Final = 62  # one bit of int64 is the sign; one keeps the roundings from overflowing
EXPONENT_LIMIT: Final = 900  # keeps w · 2^s a normal float64 for every weight


def weight_units(weight: float) -> int:
    """Return the weight in units of `WEIGHT_UNIT`, rounded to the nearest.

    Raises:
        ValueError: it is not finite, is below half a unit, or is above `MAX_UNITS` units.
    """
    units = round(weight / WEIGHT_UNIT) if math.isfinite(weight) else 0
    if not 1 <= units <= MAX_UNITS:
        raise ValueError(
            f"Expected a weight from {WEIGHT_UNIT} to {MAX_UNITS * WEIGHT_UNIT:.0f}, got {weight}."
        )
    return units


def exponent(max_abs: float, max_weight_sum: float) -> int:
    """Return the largest s, at most 900, with `max_abs · max_weight_sum · 2^s <= 2^62`.

    Args:
        max_abs: bound of |x| over all values of all updates, > 0.
        max_weight_sum: bound of the sum of all weights, in (0, `MAX_WEIGHT_SUM`].

    Raises:
        ValueError: a bound is out of range, or their product is too large for any safe s.
    """
    if not (math.isfinite(max_abs) and max_abs > 0):
        raise ValueError(f"Expected a finite max_abs > 0, got {max_abs}.")
    if not 0 < max_weight_sum <= MAX_WEIGHT_SUM:
        raise ValueError(
            f"Expected max_weight_sum in (0, {MAX_WEIGHT_SUM:.0f}], got {max_weight_sum}."
        )
    # Rationals, because a log2 rounded the wrong way would invalidate the overflow bound.
    reach = Fraction(max_abs) * Fraction(max_weight_sum)
    ceil_log2 = reach.numerator.bit_length() - reach.denominator.bit_length()
    while Fraction(2) ** ceil_log2 < reach:
        ceil_log2 += 1
    while Fraction(2) ** (ceil_log2 - 1) >= reach:
        ceil_log2 -= 1
    if _HEADROOM_BITS - ceil_log2 < -EXPONENT_LIMIT:
        raise ValueError(f"Expected max_abs below 2^900, got {max_abs}.")
    return min(_HEADROOM_BITS - ceil_log2, EXPONENT_LIMIT)


class Scaler:
    """Turns values into addends, `rint(x · w · 2^s)`, within two reused buffers."""

    __slots__ = ("_floats", "_ints", "_scale")

    def __init__(self, units: int, exponent: int, capacity: int) -> None:
        self._scale = math.ldexp(units, exponent - UNIT_BITS)  # exact: units <= 2^53
        self._floats = np.empty(capacity, np.float64)
        self._ints = np.empty(capacity, np.int64)

    def addends(self, values: NDArray[Any], count: int) -> Ints:
        """Return the addends of the next `count` values; valid until the next call."""
        if values.shape != (count,):
            raise ValueError(f"Expected the next {count} values, 1-D, got shape {values.shape}.")
        floats, ints = self._floats[:count], self._ints[:count]
        # Four passes over a cached block: faster than ufuncs that cast (2.4 GB/s).
        np.copyto(floats, values)
        np.multiply(floats, self._scale, out=floats)
        np.rint(floats, out=floats)
        np.copyto(ints, floats, casting="unsafe")
        return ints
