"""Staleness weighting: reduces updates that were trained on an older model.

An update of model version v that counts when version t is the newest has staleness s = t - v, the
models committed since its own. Its values are multiplied by c(s) in (0, 1], but its weight in the
denominator is not: a buffer of stale updates makes a smaller step:

    mean = Σ c(s_i) · w_i · x_i / Σ w_i

With equal weights and K updates that is the (1/K) · Σ c(s_i) · Δ_i of FedBuff; with one update it
is the α · c(s) of FedAsync, where a renormalised mean would cancel c.

References:
    Xie, Koyejo, Gupta 2019, Asynchronous Federated Optimization (FedAsync),
    https://arxiv.org/abs/1903.03934, section 5.2 (constant, polynomial, hinge).
    Nguyen et al. 2022, Federated Learning with Buffered Asynchronous Aggregation (FedBuff),
    https://arxiv.org/abs/2106.06639, Algorithm 1; it takes 1/sqrt(1 + s).

Invariants: c(0) = 1; c does not rise with s; 0 < c <= 1. The product with a weight is rounded to 29
bits, so a machine-dependent last bit of a power function matters only if a product is within that
bit of the middle between two numbers of 29 bits.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final, Protocol

from fedloom.strategies.checks import check_number
from fedloom.strategies.exact.fixed_point import FACTOR_BITS
from fedloom.strategies.setting_checks import check_settings, lookup


class Staleness(Protocol):
    """c(s)."""

    @property
    def name(self) -> str:
        """The name in `STALENESS`."""

    def __call__(self, staleness: int) -> float:
        """Return c(s) for s >= 0 committed models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """c(s) = 1: stale updates count in full."""

    name: ClassVar[str] = "constant"

    def __call__(self, staleness: int) -> float:  # noqa: ARG002 - the protocol's
        """Return 1."""
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InverseSqrt:
    """c(s) = 1 / sqrt(1 + s), FedBuff's; IEEE 754 rounds it correctly on every machine."""

    name: ClassVar[str] = "inverse_sqrt"

    def __call__(self, staleness: int) -> float:
        """Return 1 / sqrt(1 + s)."""
        return 1.0 / math.sqrt(1 + staleness)


@dataclass(frozen=True, slots=True, kw_only=True)
class Polynomial:
    """c(s) = (1 + s)^-a.

    Attributes:
        a: exponent, >= 0; 0.5 in the paper.

    Raises:
        TypeError: a is not a number.
        ValueError: a is out of range.
    """

    name: ClassVar[str] = "polynomial"
    a: float = 0.5

    def __post_init__(self) -> None:
        check_number("a", self.a, at_least=0)

    def __call__(self, staleness: int) -> float:
        """Return (1 + s)^-a."""
        return float((1.0 + staleness) ** -self.a)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hinge:
    """c(s) = 1 up to s = b, then 1 / (a · (s - b) + 1).

    Attributes:
        a: rate of decay, >= 0; 10 in the paper.
        b: committed models up to which an update counts in full, >= 0; 4 in the paper.

    Raises:
        TypeError: a setting is not a number.
        ValueError: a setting is out of range.
    """

    name: ClassVar[str] = "hinge"
    a: float = 10.0
    b: float = 4.0

    def __post_init__(self) -> None:
        check_number("a", self.a, at_least=0)
        check_number("b", self.b, at_least=0)

    def __call__(self, staleness: int) -> float:
        """Return 1, or 1 / (a · (s - b) + 1) past b."""
        late = staleness - self.b
        return 1.0 if late <= 0 else 1.0 / (self.a * late + 1.0)


STALENESS: Final[dict[str, Callable[..., Staleness]]] = {
    kind.name: kind for kind in (InverseSqrt, Constant, Polynomial, Hinge)
}


def staleness_weighting(setting: str | Mapping[str, object]) -> Staleness:
    """Return the weighting of a setting.

    >>> staleness_weighting({"name": "polynomial", "a": 1.0})(3)
    0.25

    Args:
        setting: a key of `STALENESS`, or a table with `name` and its dataclass's fields.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: the name or a setting is unknown or out of range.
    """
    settings = {"name": setting} if isinstance(setting, str) else dict(setting)
    name = settings.pop("name", None)
    kind = lookup("a staleness weighting", name, STALENESS)
    check_settings(kind, settings, table="cohort.staleness")
    return kind(**settings)


def discounted(units: int, factor: float) -> int:
    """Return the units of an update's values: `units · c`, from 0 to `units`.

    The product is rounded to the nearest number of `FACTOR_BITS` bits, a relative change of at most
    2^-29, so that a stale update is added nearly as fast as a fresh one.

    Args:
        units: the update's weight, from `weight_units()`.
        factor: c(s), from 0 to 1.

    Raises:
        ValueError: the factor is out of range.
    """
    if not 0 <= factor <= 1:
        raise ValueError(f"Expected a factor from 0 to 1, got {factor}.")
    if factor == 1:
        return units
    product = units * Fraction(factor)  # rounded once: twice may give the farther neighbour
    unit = 1 << max(int(product).bit_length() - FACTOR_BITS, 0)
    return min(units, round(product / unit) * unit)
