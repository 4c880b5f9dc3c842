"""The grid of a run's narrow sums: what it rounds, checked before a run starts and shown.

A narrow sum adds `rint(x · w · 2^s)`, and s is fixed when the round opens. With W = Σ w over the n
updates that cover a coordinate, roundings move the mean by at most n/2 steps of 2^-s over W. A
weight is at least `lightest`: that is at most half a step over `lightest`, in any round of the run.

In a masked run, `bits` bits hold the sum of a session; sums of sessions are merged as int64. Below
32 bits, its addends are rounded stochastically, by at most a whole step.

Legend: x a value, w a weight, s the exponent.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from fractions import Fraction
from typing import Any, Final

from fedloom.strategies.exact.fixed_point import (
    MIN_MASKED_WEIGHT,
    MIN_WEIGHT,
    NEAREST,
    STOCHASTIC,
    ceil_log2,
    exponent,
    product_bound,
    sum_room,
)

SUM_BITS: Final = (16, 24, 32, 64)
"""Widths that a run can choose for its sums."""
MANY_VANISHED: Final = 0.1
"""Share of values rounded to zero from which a round has a warning: of normally distributed values,
10 % vanish when a step is a quarter of their standard deviation."""

_FLOAT_ERROR: Final = Fraction(1, 2**50)
"""Bound of all roundings in float64, of products, sums and the mean, relative to max_abs."""


def is_stochastic(bits: int, *, noisy: bool = False) -> bool:
    """Whether addends of masked sums are rounded stochastically: coarse steps add no bias then.

    Noise hides the bias of rounding to nearest, which adds less to the length of an update.

    Args:
        bits: of a sum.
        noisy: whether devices add noise.
    """
    return bits < SUM_BITS[-2] and not noisy


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The grid of a run's narrow sums.

    Attributes:
        bits: of a sum, its sign included.
        max_abs: largest magnitude of a value.
        weighting: `examples`, `client` or `uniform`.
        max_weight: largest weight of an update.
        updates: most updates of a round.
        session: most updates whose sum has `bits` bits, in a masked run; None: all of a round.
        noise: bound of the noise in a session's sum, in units of the values; None for no noise.
        finest: the largest exponent that is of use; None for any.

    Raises:
        ValueError: no grid fits the bounds.
    """

    bits: int
    max_abs: float
    weighting: str
    max_weight: float
    updates: int
    session: int | None = None
    noise: Fraction | None = None
    finest: int | None = None

    def __post_init__(self) -> None:
        assert self.exponent is not None

    @property
    def heaviest(self) -> float:
        """The largest weight of an update."""
        return 1.0 if self.weighting == "uniform" else self.max_weight

    @property
    def lightest(self) -> float:
        """The smallest weight of an update: whole numbers of examples are at least 1."""
        if self.weighting != "client":
            return 1.0
        return MIN_WEIGHT if self.session is None else MIN_MASKED_WEIGHT

    @property
    def in_one(self) -> int:
        """Most updates whose sum has `bits` bits."""
        return self.updates if self.session is None else min(self.session, self.updates)

    @property
    def is_stochastic(self) -> bool:
        """Whether addends are rounded stochastically, which has no bias."""
        noisy = self.noise is not None
        return self.session is not None and is_stochastic(self.bits, noisy=noisy)

    @property
    def rounding(self) -> Fraction:
        """Most steps by which an addend differs from its product."""
        return STOCHASTIC if self.is_stochastic else NEAREST

    @property
    def exponent(self) -> int:
        """The largest s under which sums cannot overflow."""
        most = self.heaviest * self.in_one
        s = exponent(
            self.max_abs,
            most,
            bits=self.bits,
            updates=self.in_one,
            rounding=self.rounding,
            noise=self.noise,
        )
        if self.session is None:
            return s
        merged = exponent(
            self.max_abs,
            self.heaviest * self.updates,
            updates=self.updates,
            noise=None if self.noise is None else self.noise * self.updates,  # of all sessions
        )
        return min(s, merged) if self.finest is None else min(s, merged, self.finest)

    @property
    def bound(self) -> Fraction:
        """Bound of the magnitude of a sum of `bits` bits, in steps; below 2^(bits - 1)."""
        reach = Fraction(self.max_abs) * Fraction(self.heaviest * self.in_one)
        return product_bound(reach + (self.noise or 0), self.exponent) + self.rounding * self.in_one

    @property
    def step(self) -> float:
        """The unit of a sum: of a value times its weight."""
        return math.ldexp(1.0, -self.exponent)

    @property
    def largest_error(self) -> float:
        """Bound of the distance of any computed mean from the true one, in units of the values."""
        return _rounded_up(self._error(self.exponent, self.rounding))

    def vanishes(self, weight: float) -> float:
        """Return the largest magnitude of values that become zero in an update of this weight.

        With stochastic rounding, smaller values become zero by chance, the more often the smaller.
        """
        return self.step * float(self.rounding) / weight

    def check(self, precision: float) -> None:
        """Refuse bounds under which the largest error exceeds what a run accepts.

        Args:
            precision: the largest error of a mean that the run accepts, in units of the values.

        Raises:
            ValueError: the message has both figures and the bounds to tighten.
        """
        if not (math.isfinite(precision) and precision > 0):
            raise ValueError(f"Expected a finite precision > 0, got {precision}.")
        if self._accepts(precision):
            return
        if self.session is not None:
            raise ValueError(f"{self._too_coarse(precision)} {self._fitting(precision)}")
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
            "session": None if self.session is None else self.in_one,
            "bound": math.floor(self.bound),
            "stochastic": self.is_stochastic,
            "noisy": self.noise is not None,
            "vanishes": {f"{w:g}": self.vanishes(w) for w in (self.lightest, self.heaviest)},
        }

    def _error(self, s: int, rounding: Fraction) -> Fraction:
        moved = rounding * Fraction(2) ** -s / Fraction(self.lightest)
        return (moved + Fraction(self.max_abs) * _FLOAT_ERROR) * (1 + _FLOAT_ERROR)

    def _accepts(self, precision: float) -> bool:
        """Whether the largest error is accepted; in a masked sum, that of a whole step."""
        rounding = self.rounding if self.session is None else STOCHASTIC
        return self._error(self.exponent, rounding) <= Fraction(precision)

    def _too_coarse(self, precision: float) -> str:
        weight = "" if self.weighting == "uniform" else f", weights to {self.max_weight:g}"
        least = "" if self.lightest == 1 else f" over the smallest weight, {self.lightest:.3g},"
        return (
            f"Expected steps{least} of at most {precision:g} (masking.precision) in masked sums of "
            f"{self.bits} bits, got {self.step:.4g} = 2^{-self.exponent} under max_abs "
            f"{self.max_abs:g}{weight} and sessions of {self.in_one} updates."
        )

    def _fitting(self, precision: float) -> str:
        """The largest bounds with which masked sums are within a precision, and other remedies."""
        weighted = self.weighting != "uniform"
        others = [] if not weighted else [replace(self, weighting="uniform")]
        others += [replace(self, bits=bits) for bits in SUM_BITS if bits > self.bits]
        fitting = [grid for grid in others if grid._accepts(precision)]  # noqa: SLF001 - same class
        remedies = {'weighting = "uniform"': weighted and fitting[:1] == others[:1]}
        for grid in fitting:
            remedies.setdefault(f"masking.sum_bits = {grid.bits}", grid.bits > self.bits)
        accepted = _digits(self._error(self.exponent, STOCHASTIC), ROUND_CEILING)
        remedies[f"masking.precision = {accepted}"] = True
        either = ", or ".join(name for name, helps in remedies.items() if helps)
        most = self.largest_product(precision)
        if most <= 0:
            return f"No bounds fit: float64 has too few digits for max_abs. Set {either}."
        largest = _digits(most, ROUND_FLOOR)
        if not weighted:
            return f"The largest max_abs that fits is {largest} with this precision. Set {either}."
        max_abs = _digits(most / Fraction(self.heaviest), ROUND_FLOOR)
        weight = most / Fraction(self.max_abs)
        alone = f"max_abs = {max_abs} alone, with this precision"
        if weight >= Fraction(self.lightest):
            alone = f"max_weight = {_digits(weight, ROUND_FLOOR)} alone, or {alone}"
        return f"The largest max_abs · max_weight that fits is {largest}: {alone}. Or set {either}."

    def largest_product(self, precision: float) -> Fraction:
        """Return the largest max_abs · max_weight of a masked run within a precision; 0 for none.

        Args:
            precision: largest step over the smallest weight, in units of the values.
        """
        left = Fraction(precision) / (1 + _FLOAT_ERROR) - Fraction(self.max_abs) * _FLOAT_ERROR
        if left <= 0:
            return Fraction(0)
        s = ceil_log2(1 / (left * Fraction(self.lightest)))
        room = sum_room(self.bits, self.in_one, self.rounding) * (1 - _FLOAT_ERROR)
        in_session = min(Fraction(2) ** (self.bits - 2), room) / self.in_one
        return min(in_session, Fraction(2**62, self.updates)) * Fraction(2) ** -s

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
    together = facts.get("session")  # facts of an earlier version do not have it
    sums = f"sessions of {together}" if together else f"{facts['updates']}"
    given = f"under {bounds} and {sums} updates"
    if facts["precision"] is not None:
        given += f"; precision accepts {facts['precision']:.4g}"
    zeros = [f"{most:.4g} at weight {weight}" for weight, most in facts["vanishes"].items()]
    rounded = "rounded stochastically" if facts.get("stochastic") else "rounded"
    shown = "" if together else "; each round shows their share"
    noisy = facts.get("noisy")
    zeroed = "rounded to zero by chance" if facts.get("stochastic") else "rounded to zero"
    lines = [
        f"{facts['bits']} bits, {rounded} to steps of {step} of a value times its weight",
        f"largest error{' beside the noise' if noisy else ''}: {error} of a mean, {given}",
    ]
    return lines if noisy else [*lines, f"{zeroed}: values up to {', '.join(zeros)}{shown}"]


def _digits(value: Fraction, rounding: str) -> str:
    """Four digits of a number, rounded up or down."""
    context = Context(prec=4, rounding=rounding)
    return f"{context.divide(value.numerator, value.denominator):g}"


def _rounded_up(value: Fraction) -> float:
    found = float(value)
    return found if Fraction(found) >= value else math.nextafter(found, math.inf)
