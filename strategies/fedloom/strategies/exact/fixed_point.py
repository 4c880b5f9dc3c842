"""Fixed point: weights as whole numbers, and addends `x · w · 2^s`, exact or rounded to int64.

Legend: x a value, w a weight, u = w / WEIGHT_UNIT its integer units, s the round's exponent.

Invariant: while |x| <= max_abs, the weights sum to at most max_weight_sum and there are at most
`updates` addends, the addends under `exponent(max_abs, max_weight_sum, bits=b, updates=updates)`
sum to less than 2^(b-1) in magnitude, so that every partial sum fits b bits with a sign: products
reach 2^(b-2), and their roundings add at most `rounding` units and a 2^-52nd part each.

Source: Gupta et al. 2015, Deep Learning with Limited Numerical Precision,
https://arxiv.org/abs/1502.02551, section 3.1 (stochastic rounding).
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]

MIN_WEIGHT: Final = 2.0**-30
"""The smallest weight of one update."""
MAX_WEIGHT: Final = 2.0**33
"""The largest weight of one update."""
MAX_WEIGHT_SUM: Final = 2.0**42
"""The largest sum of weights."""
UNIT_BITS: Final = 82
WEIGHT_UNIT: Final = 2.0**-UNIT_BITS
"""The grid of weights. Every float64 from `MIN_WEIGHT` to `MAX_WEIGHT` is a multiple of it."""
MAX_UNITS: Final = int(MAX_WEIGHT) << UNIT_BITS
MASKED_WEIGHT_BITS: Final = 20
"""Weights in a masked sum are multiples of 2^-20: their sum travels in one word of 64 bits."""
MIN_MASKED_WEIGHT: Final = 2.0**-MASKED_WEIGHT_BITS
NEAREST: Final = Fraction(1, 2)
"""Most units by which an addend that is rounded to nearest differs from its product."""
STOCHASTIC: Final = Fraction(1)
"""The same for stochastic rounding."""

Draws: TypeAlias = Callable[[int], NDArray[np.uint32]]
"""Called with n > 0, returns the next n uniform 32-bit numbers."""

FACTOR_BITS: Final = 29
"""Significant bits of a factor whose product with any float32 is a float64: 53 - 24."""

_SPARE_BITS: Final = 2  # one is the sign; one keeps the roundings from overflowing
_PRODUCT_ERROR: Final = Fraction(1, 2**52)
"""Of `x · w · 2^s` in float64, relative: a stale update's factor is rounded before it."""
EXPONENT_LIMIT: Final = 900  # keeps w · 2^s a normal float64 for every weight


def weight_units(weight: float) -> int:
    """Return the weight in units of `WEIGHT_UNIT`, exactly.

    Raises:
        ValueError: it is not from `MIN_WEIGHT` to `MAX_WEIGHT`.
    """
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ValueError(f"Expected a weight from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}, got {weight}.")
    numerator, denominator = float(weight).as_integer_ratio()
    return (numerator << UNIT_BITS) // denominator


def masked_weight(weight: float) -> float:
    """Return the nearest multiple of `MIN_MASKED_WEIGHT`; a whole number of examples is one.

    Raises:
        ValueError: the weight is below `MIN_MASKED_WEIGHT`, so that it would count as another.
    """
    if not MIN_MASKED_WEIGHT <= weight <= MAX_WEIGHT:
        raise ValueError(
            f"Expected a weight from {MIN_MASKED_WEIGHT:g} to {MAX_WEIGHT:g} in a masked sum, got "
            f"{weight}."
        )
    return math.ldexp(round(math.ldexp(weight, MASKED_WEIGHT_BITS)), -MASKED_WEIGHT_BITS)


def exponent(
    max_abs: float,
    max_weight_sum: float,
    *,
    bits: int = 64,
    updates: int | None = None,
    rounding: Fraction = NEAREST,
    noise: Fraction | None = None,
) -> int:
    """Return the largest s, at most 900, under which sums fit `bits` bits with a sign.

    At 64 bits it is the largest s with `max_abs · max_weight_sum · 2^s <= 2^62`, and below that
    likewise with `2^(bits - 2)`, unless the roundings of all updates and the noise need more than
    the bit that is left for them: then it is the largest with which they fit.

    Args:
        max_abs: bound of |x| over all values of all updates, > 0.
        max_weight_sum: bound of the sum of all weights, in (0, `MAX_WEIGHT_SUM`].
        bits: of a sum, its sign included.
        updates: most addends of a coordinate, >= 1; 64 bits hold the roundings of any number.
        rounding: most units by which an addend differs from its product.
        noise: bound of the noise in a sum, in units of the values; None for no noise.

    Raises:
        ValueError: a bound is out of range, their product is too large for any safe s, or sums of
            so many updates do not fit.
    """
    if not (math.isfinite(max_abs) and max_abs > 0):
        raise ValueError(f"Expected a finite max_abs > 0, got {max_abs}.")
    if not 0 < max_weight_sum <= MAX_WEIGHT_SUM:
        raise ValueError(
            f"Expected max_weight_sum in (0, {MAX_WEIGHT_SUM:.0f}], got {max_weight_sum}."
        )
    # Rationals, because a log2 rounded the wrong way would invalidate the overflow bound.
    reach = Fraction(max_abs) * Fraction(max_weight_sum)
    s = bits - _SPARE_BITS - ceil_log2(reach)
    if bits < 64 or noise is not None:
        room = sum_room(bits, updates, rounding)
        while product_bound(reach + (noise or 0), s) >= room:
            s -= 1
    if s < -EXPONENT_LIMIT:
        raise ValueError(f"Expected max_abs below 2^900, got {max_abs}.")
    return min(s, EXPONENT_LIMIT)


def product_bound(reach: Fraction, s: int) -> Fraction:
    """Return the bound of the sum of products in units of 2^-s, before they are rounded.

    Args:
        reach: max_abs · max_weight_sum.
        s: the exponent.
    """
    return reach * Fraction(2) ** s * (1 + _PRODUCT_ERROR)


def sum_room(bits: int, updates: int | None, rounding: Fraction) -> Fraction:
    """Return what the roundings of all updates leave of a sum of `bits` bits for the products.

    Raises:
        ValueError: nothing is left.
    """
    if updates is None or updates < 1:
        raise ValueError(f"Expected updates >= 1 with bits = {bits}, got {updates}.")
    room = Fraction(2 ** (bits - 1)) - updates * rounding
    if room <= 1:
        raise ValueError(
            f"Expected fewer than {int((2 ** (bits - 1) - 1) / rounding)} updates in a sum of "
            f"{bits} bits, got {updates}. Lower cohort.goal, or raise sum_bits."
        )
    return room


def ceil_log2(value: Fraction) -> int:
    """Return the smallest n with `value <= 2^n`, for a value > 0."""
    n = value.numerator.bit_length() - value.denominator.bit_length()
    while Fraction(2) ** n < value:
        n += 1
    while Fraction(2) ** (n - 1) >= value:
        n -= 1
    return n


class Scaler:
    """Turns values into addends, `rint(x · w · 2^s)`, within two reused buffers.

    Args:
        units: of the weight.
        exponent: s.
        capacity: most values at once.
        draws: random numbers that round stochastically: `x · w · 2^s` becomes one of the two
            integers beside it, and its expectation is itself. None rounds to nearest.
    """

    __slots__ = ("_draws", "_floats", "_ints", "_scale")

    def __init__(
        self, units: int, exponent: int, capacity: int, draws: Draws | None = None
    ) -> None:
        self._scale = math.ldexp(units, exponent - UNIT_BITS)
        self._floats = np.empty(capacity, np.float64)
        self._ints = np.empty(capacity, np.int64)
        self._draws = draws

    def addends(self, values: NDArray[Any]) -> Ints:
        """Return the addends of the next values, 1-D; valid until the next call."""
        floats, ints = self._floats[: values.size], self._ints[: values.size]
        # Four passes over a cached block: faster than ufuncs that cast (2.4 GB/s).
        np.copyto(floats, values)
        np.multiply(floats, self._scale, out=floats)
        if self._draws is not None:
            return self._drawn(floats, ints)
        np.rint(floats, out=floats)
        np.copyto(ints, floats, casting="unsafe")
        return ints

    def _drawn(self, floats: NDArray[np.float64], ints: Ints) -> Ints:
        """The integer below, and one more where a draw is less than the rest.

        The comparison, not a sum with the draw: that would round, and could pass the integer above.
        """
        assert self._draws is not None
        below = np.floor(floats)
        np.copyto(ints, below, casting="unsafe")
        floats -= below  # from 0 to 1
        floats *= 2.0**32
        ints += self._draws(floats.size) < floats
        return ints


@lru_cache(maxsize=256)
def exact_scales(units: int, exponent: int, dtype: np.dtype[Any]) -> tuple[float, ...]:
    """Return factors that sum to w · 2^s, each of whose products with a value is exact.

    float64 has 53 bits: 24 of a float32 leave 29 for a factor, so whole numbers of examples need
    one factor. Wider values are added as the two parts that `halves` returns, of at most 27 bits.

    Args:
        units: of the weight.
        exponent: s.
        dtype: of the values.
    """
    bits = 26 if is_wide(dtype) else FACTOR_BITS
    scales = []
    while units:
        shift = max(units.bit_length() - bits, 0)
        scales.append(math.ldexp(units >> shift, shift + exponent - UNIT_BITS))
        units -= units >> shift << shift
    return tuple(scales) or (0.0,)


def is_wide(dtype: np.dtype[Any]) -> bool:
    """Return whether values can have more than 24 significant bits."""
    return dtype.itemsize > (4 if dtype.kind == "f" else 2)


def halves(values: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return values, as float64, as sums of a number of 26 and one of 27 significant bits."""
    whole = values.astype(np.float64)
    high = (whole.view(np.int64) & -(1 << 27)).view(np.float64)
    return high, whole - high
