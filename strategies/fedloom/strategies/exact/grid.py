"""The grid of a run's narrow sums: what it rounds, checked before a run starts and shown.

A narrow sum adds `rint(x · w · 2^s)`, and s is fixed when the round opens. With W = Σ w over the n
updates that cover a coordinate, roundings move the mean by at most n/2 steps of 2^-s over W. A
weight is at least `lightest`: that is at most half a step over `lightest`, in any round of the run.

Legend: x a value, w a weight, s the exponent.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from fedloom.strategies.exact.fixed_point import MIN_WEIGHT, ceil_log2, exponent

SUM_BITS: Final = (16, 24, 32, 64)
"""Widths that a run can choose for its sums."""
MANY_VANISHED: Final = 0.1
"""Share of values rounded to zero from which a round has a warning: of normally distributed values,
10 % vanish when a step is a quarter of their standard deviation."""

_FLOAT_ERROR: Final = Fraction(1, 2**50)
"""Bound of all roundings in float64, of products, sums and the mean, relative to max_abs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The grid of a run's narrow sums.

    Attributes:
        bits: of a sum, its sign included.
        max_abs: largest magnitude of a value.
        weighting: `examples`, `client` or `uniform`.
        max_weight: largest weight of an update.
        updates: most updates of a round.

    Raises:
        ValueError: no grid fits the bounds.
    """

    bits: int
    max_abs: float
    weighting: str
    max_weight: float
    updates: int

    def __post_init__(self) -> None:
        assert self.exponent is not None

    @property
    def heaviest(self) -> float:
        """The largest weight of an update."""
        return 1.0 if self.weighting == "uniform" else self.max_weight

    @property
    def lightest(self) -> float:
        """The smallest weight of an update: whole numbers of examples are at least 1."""
        return MIN_WEIGHT if self.weighting == "client" else 1.0

    @property
    def exponent(self) -> int:
        """The largest s under which sums cannot overflow."""
        most = self.heaviest * self.updates
        return exponent(self.max_abs, most, bits=self.bits, updates=self.updates)

    @property
    def step(self) -> float:
        """The unit of a sum: of a value times its weight."""
        return math.ldexp(1.0, -self.exponent)

    @property
    def largest_error(self) -> float:
        """Bound of the distance of any computed mean from the true one, in units of the values."""
        return _rounded_up(self._error(self.exponent))

    def vanishes(self, weight: float) -> float:
        """Return the largest magnitude of values that become zero in an update of this weight."""
        return self.step / 2 / weight

    def check(self, precision: float) -> None:
        """Refuse bounds under which the largest error exceeds what a run accepts.

        Args:
            precision: the largest error of a mean that the run accepts, in units of the values.

        Raises:
            ValueError: the message has both figures and the bounds to tighten.
        """
        if not (math.isfinite(precision) and precision > 0):
            raise ValueError(f"Expected a finite precision > 0, got {precision}.")
        if self._error(self.exponent) <= Fraction(precision):
            return
        raise ValueError(
            f"Expected precision >= {self.largest_error:.6g}, the largest error of a mean under "
            f"sum_bits = {self.bits} and these bounds, got {precision:.6g}. "
            f"{self._bounds(precision)} {self._remedy(precision)}"
        )

    def facts(self, precision: float | None) -> dict[str, Any]:
        """Return plain values that describe the grid, for `grid_lines`."""
        return {
            "bits": self.bits,
            "exponent": self.exponent,
            "step": self.step,
            "largest_error": self.largest_error,
            "precision": precision,
            "max_abs": self.max_abs,
            "max_weight": self.heaviest,
            "updates": self.updates,
            "vanishes": {f"{w:g}": self.vanishes(w) for w in (self.lightest, self.heaviest)},
        }

    def _error(self, s: int) -> Fraction:
        half = Fraction(1, 2) * Fraction(2) ** -s / Fraction(self.lightest)
        return (half + Fraction(self.max_abs) * _FLOAT_ERROR) * (1 + _FLOAT_ERROR)

    def _bounds(self, precision: float) -> str:
        """The product of the bounds, and the one that the precision needs."""
        weight = "" if self.weighting == "uniform" else f"max_weight {self.max_weight:g} · "
        reach = self.max_abs * self.heaviest * self.updates
        now = f"max_abs {self.max_abs:g} · {weight}{self.updates} updates is {reach:.3g}"
        left = Fraction(precision) - Fraction(self.max_abs) * _FLOAT_ERROR
        if left <= 0:
            return f"Now {now}, and float64 has too few digits for values up to max_abs."
        s = ceil_log2(1 / (2 * left * Fraction(self.lightest)))
        return f"Now {now}; the precision needs about {math.ldexp(1.0, self.bits - 2 - s):.3g}."

    @property
    def remedy(self) -> str:
        """How to make steps smaller, without a full stop."""
        bounds = ["max_abs to the largest value that clients send"]
        if self.weighting != "uniform":
            bounds.append("max_weight to the largest weight")
        return f"lower {', '.join(bounds)}, or cohort.goal"

    def _remedy(self, precision: float) -> str:
        """What to change."""
        tighten = f"L{self.remedy[1:]}"
        if self.weighting == "client":
            tighten += '; or set weighting = "examples", whose weights are at least 1'
        wider = (replace(self, bits=bits) for bits in SUM_BITS if bits > self.bits)
        for grid in wider:
            if grid.largest_error <= precision:
                return f"{tighten}; or take sum_bits = {grid.bits}."
        return f"{tighten}; or leave out sum_bits: sums are then exact."


def grid_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return what `Grid.facts` says, as lines for people; the first one names the sum."""
    step, error = f"{facts['step']:.4g} = 2^{-facts['exponent']}", f"{facts['largest_error']:.4g}"
    bounds = f"max_abs {facts['max_abs']:g}, weights to {facts['max_weight']:g}"
    given = f"under {bounds} and {facts['updates']} updates"
    if facts["precision"] is not None:
        given += f"; precision accepts {facts['precision']:.4g}"
    zeros = [f"{most:.4g} at weight {weight}" for weight, most in facts["vanishes"].items()]
    return [
        f"{facts['bits']} bits, rounded to steps of {step} of a value times its weight",
        f"largest error: {error} of a mean, {given}",
        f"rounded to zero: values up to {', '.join(zeros)}; each round shows their share",
    ]


def _rounded_up(value: Fraction) -> float:
    found = float(value)
    return found if Fraction(found) >= value else math.nextafter(found, math.inf)
