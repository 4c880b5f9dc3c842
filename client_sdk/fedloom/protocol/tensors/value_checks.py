"""Checks of an update's values: finite, and within the round's bounds.

The server and the simulator share these checks, so a deployment accepts the same updates as a
simulation.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import Code, Refusal
from fedloom.strategies.exact.fixed_point import MIN_WEIGHT

MAX_SINGLE_MAGNITUDE = 1e15
"""Up to this magnitude the squares of a chunk do not overflow a float32 sum."""


def check_weight(weight: float, max_weight: float) -> None:
    """Check the weight of an update.

    Raises:
        Refusal: WEIGHT_OUT_OF_RANGE.
    """
    # Not just above 0: a smaller weight has bits below the unit of weights.
    if not (math.isfinite(weight) and MIN_WEIGHT <= weight <= max_weight):
        raise Refusal(
            Code.WEIGHT_OUT_OF_RANGE,
            f"Expected a weight from {MIN_WEIGHT:g} to {max_weight:g}, got {weight:g}.",
        )


def check_scalars(scalars: Mapping[str, float], max_abs: float) -> None:
    """Check the scalars of an update.

    Raises:
        Refusal: NOT_FINITE or MAGNITUDE_TOO_LARGE.
    """
    for name, value in scalars.items():
        if not math.isfinite(value):
            raise Refusal(Code.NOT_FINITE, f"Expected a finite {name}, got {value}.")
        if abs(value) > max_abs:
            raise Refusal(
                Code.MAGNITUDE_TOO_LARGE,
                f"Expected a {name} of at most {max_abs:g} in magnitude, got {value:g}.",
            )


class ValueChecker:
    """Checks one update's values, in chunks of any size.

    Args:
        max_abs: largest magnitude of a value.
        max_norm: largest Euclidean norm of all values together; None for no limit.

    Attributes:
        max_abs: largest magnitude so far.
    """

    __slots__ = ("_max_norm", "_most", "_sum_squares", "max_abs")

    def __init__(self, max_abs: float, max_norm: float | None) -> None:
        self._most = max_abs
        self._max_norm = max_norm
        self._sum_squares = 0.0
        self.max_abs = 0.0

    def check(self, tensor: str, values: NDArray[Any]) -> None:
        """Check the next values, 1-D and at least one.

        Raises:
            Refusal: NOT_FINITE or MAGNITUDE_TOO_LARGE.
        """
        low, high = float(values.min()), float(values.max())  # both propagate NaN
        magnitude = max(-low, high)
        if not (math.isfinite(low) and math.isfinite(high)):
            raise Refusal(
                Code.NOT_FINITE, f"Expected finite values in {tensor!r}, got NaN or infinity."
            )
        if magnitude > self._most:
            raise Refusal(
                Code.MAGNITUDE_TOO_LARGE,
                f"Expected magnitudes of at most {self._most:g} in {tensor!r}, got {magnitude:g}.",
            )
        self.max_abs = max(self.max_abs, magnitude)
        self._sum_squares += self._squares(values, magnitude)

    def _squares(self, values: NDArray[Any], magnitude: float) -> float:
        """The sum of squares, in float32 (three times as fast) if it is for information only.

        With a bound, or where float32 would overflow, it is in float64, so that the division into
        chunks cannot decide whether an update at its bound is accepted.
        """
        exact = self._max_norm is not None or magnitude > MAX_SINGLE_MAGNITUDE
        if exact or values.dtype.kind != "f":  # integers would overflow
            values = values.astype(np.float64)
        return float(np.einsum("i,i->", values, values))

    def norm(self) -> float:
        """The Euclidean norm of all values.

        Raises:
            Refusal: NORM_TOO_LARGE.
        """
        norm = math.sqrt(self._sum_squares)
        if self._max_norm is not None and norm > self._max_norm:
            raise Refusal(
                Code.NORM_TOO_LARGE, f"Expected a norm of at most {self._max_norm:g}, got {norm:g}."
            )
        return norm
