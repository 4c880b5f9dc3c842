"""Whether the sum of a session can be the sum of updates within the run's limits.

A sum whose masks were not removed is a random number of b bits in each coordinate, so it passes a
coordinate about as often as not, and a whole model never. A member that lies within the limits of
the sum is not found.

The norm of noise of d values is at most σ · (√d + 12), but once in 10^31: Laurent and Massart 2000,
Lemma 1.

Legend: x a value, w a weight, s the exponent, r the largest rounding of an addend in steps of 2^-s.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedloom.strategies.exact.fixed_point import MASKED_WEIGHT_BITS, MIN_MASKED_WEIGHT, WEIGHT_UNIT
from fedloom.strategies.exact.partial import BLOCK, SCALAR, Partial
from fedloom.strategies.masking.words import MaskedWords

_FLOAT_ERROR = Fraction(1, 2**50)
_TAIL = 12.0
"""Standard deviations of noise in a coordinate or beyond the usual norm: exceeded once in 10^31."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumLimits:
    """The limits of the updates of a session.

    Attributes:
        max_abs: largest magnitude of a value.
        max_weight: largest weight of an update.
        max_norm: largest Euclidean norm of an update; None for any.
        rounding: most steps by which an addend differs from its product.
        noise: standard deviation of each member's noise, in steps; 0 for none.
    """

    max_abs: float
    max_weight: float
    max_norm: float | None = None
    rounding: Fraction
    noise: float = 0.0


def implausible(total: Partial, units: int, limits: SumLimits) -> str:
    """Return why a sum cannot be that of updates within the limits; empty if it can.

    Args:
        total: the narrow sum of a session; its count is the number of members.
        units: the sum of their weights, in units of `WEIGHT_UNIT`; `implausible_weight` checks it.
        limits: of each update.
    """
    members, weight = total.count, units * Fraction(WEIGHT_UNIT)
    if not total.is_even(units):
        return "coordinates that only some of the members cover"
    scale = Fraction(2) ** total.exponent
    rounded = members * limits.rounding
    spread = math.sqrt(members) * limits.noise  # of the session's noise
    most = Fraction(limits.max_abs) * weight * scale * (1 + _FLOAT_ERROR) + rounded
    most += Fraction(_TAIL * spread)
    squares, size = 0.0, 0
    for key, spec in total.specs.items():
        if not total.covered(key):
            continue
        for start in range(0, spec.size, BLOCK):
            block = total.sum_block(key, start, min(start + BLOCK, spec.size))
            largest = max(int(block.max(initial=0)), -int(block.min(initial=0)))
            if largest > most:
                return f"a sum of {largest} steps in {key[1]!r}, more than {math.floor(most)}"
            if key[0] != SCALAR:  # the norm is of tensors
                squares += float(np.square(block.astype(np.float64)).sum())
        size += spec.size
    if limits.max_norm is None:
        return ""
    longest = Fraction(limits.max_norm) * weight * scale + rounded * (math.isqrt(size) + 1)
    noise = spread * (math.sqrt(size) + _TAIL)
    norm, longest_float = math.sqrt(squares), float(longest) * (1 + 1e-9) + noise
    if norm > longest_float:
        return f"a norm of {norm:g} steps, more than {longest_float:g}"
    return ""


def implausible_weight(units: int, members: int, limits: SumLimits) -> str:
    """Return why a sum of weights cannot be that of so many members; empty if it can.

    Args:
        units: the sum, in units of `WEIGHT_UNIT`.
        members: of the session.
        limits: of each update.
    """
    weight = units * Fraction(WEIGHT_UNIT)
    low, high = (members * Fraction(each) for each in (MIN_MASKED_WEIGHT, limits.max_weight))
    if low <= weight <= high:
        return ""
    return f"weights that sum to {float(weight):g}, not to {float(low):g} to {float(high):g}"


def implausible_words(form: MaskedWords, sums: Mapping[str, int], members: int) -> str:
    """Return why sums of words cannot be those of so many members; empty if they can.

    The weight is checked apart, `implausible_weight`.

    Args:
        form: of the words.
        sums: by name.
        members: of the session.
    """
    for kind in form.kinds:
        for of in (kind, *(f"{kind}.{metric}" for metric in form.bounds)):
            examples = sums[f"{of}.examples"]
            if not 0 <= examples <= members * form.max_examples:
                return f"{examples} examples of {of}, not 0 to {members * form.max_examples}"
        for metric, bound in form.bounds.items():
            examples = sums[f"{kind}.{metric}.examples"]
            most = Fraction(bound) * examples * 2**MASKED_WEIGHT_BITS + Fraction(members, 2)
            if abs(found := sums[f"{kind}.{metric}"]) > most:
                return f"a sum of {found} units of {kind}.{metric}, more than {math.floor(most)}"
    return ""
