"""The parameters of a sweep, their values, and the grid over them.

A parameter has two forms. In the study it is a number or one of several scalars, as Optuna stores
them. For an experiment it is the value of a setting. They differ for lists, stored as JSON, and for
normal distributions, stored as quantiles.

Invariant: combination `i` of a grid depends only on the parameters, as in `itertools.product`.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from fedloom.protocol.errors import UsageError
from fedloom.simulation.output.scales import rounded

Scalar = bool | int | float | str | None
_TAIL = 1e-6
"""Quantiles closer to 0 and 1 are excluded: an unbounded distribution has no value there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter: a list of values, a range, or a normal distribution.

    Attributes:
        name: in formulas, tables and the study.
        setting: the experiment's setting; None if only formulas use the parameter.
        values: its values; empty for a range.
        kind: of a range, `int` or `float`.
        low: the smallest value of a range; None only for an unbounded normal distribution.
        high: the largest, likewise.
        log: logarithmic scale; with `mu`, the logarithm is normal.
        points: grid points of the range; None for every integer.
        mu: mean of a normal distribution; None for a uniform one.
        sigma: its standard deviation.

    Raises:
        UsageError: no values, equal values, an empty range, a logarithm of zero.
    """

    name: str
    setting: str | None
    values: tuple[Any, ...] = ()
    kind: Literal["int", "float"] = "float"
    low: float | None = None
    high: float | None = None
    log: bool = False
    points: int | None = None
    mu: float | None = None
    sigma: float = 1.0

    def __post_init__(self) -> None:
        if self.values:
            if len(different(self.values)) != len(self.values):
                raise UsageError(
                    f"Expected different values of {self.name}, got {list(self.values)}."
                )
            stored = [_encode(value) for value in self.values]
            if len(set(stored)) != len(stored) or any(map(_is_nan, self.values)):
                raise UsageError(
                    f"Expected values of {self.name} that differ in the study, got "
                    f"{list(self.values)}: it stores 1 as true, 0 as false and a list as its text, "
                    "and nan equals nothing."
                )
            return
        if self.mu is not None:
            if self.sigma <= 0:
                raise UsageError(f"Expected sigma > 0 of {self.name}, got {self.sigma}.")
            self._check_quantiles()
            return
        if self.low is None or self.high is None:
            raise UsageError(f"Give values = […], or min and max, of {self.name}.")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise UsageError(f"Expected min <= max of {self.name}, got {self.low} and {self.high}.")
        if self.log and self.low <= 0:
            raise UsageError(
                f"Expected min > 0 of {self.name} on a logarithmic scale, got {self.low:g}. "
                "Set the smallest useful value, such as 1e-6."
            )
        if self.points is not None and self.points < 1:
            raise UsageError(f"Expected points >= 1 of {self.name}, got {self.points}.")

    def _check_quantiles(self) -> None:
        low, high = self._quantiles()
        if not low < high:
            raise UsageError(
                f"The normal distribution of {self.name} with mu = {self.mu:g} and sigma = "
                f"{self.sigma:g} has almost no weight between min and max."
            )

    @property
    def distribution(self) -> BaseDistribution:
        """Optuna's distribution."""
        if self.values:
            return CategoricalDistribution([_encode(value) for value in self.values])
        if self.mu is not None:
            return FloatDistribution(*self._quantiles())
        assert self.low is not None
        assert self.high is not None
        if self.kind == "int":
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def decode(self, drawn: Any) -> Any:
        """The setting's value of a stored value."""
        if self.values:
            return next(value for value in self.values if _same(_encode(value), drawn))
        if self.mu is None:
            return drawn
        value = NormalDist(self.mu, self.sigma).inv_cdf(drawn)
        value = math.exp(value) if self.log else value
        value = min(max(value, self._bound(self.low, -1)), self._bound(self.high, 1))
        return round(value) if self.kind == "int" else value

    def encode(self, value: Any) -> Any:
        """The stored value: the inverse of `decode`."""
        if self.values:
            return _encode(value)
        if self.mu is None:
            return value
        low, high = self._quantiles()
        quantile = NormalDist(self.mu, self.sigma).cdf(math.log(value) if self.log else value)
        return min(max(quantile, low), high)

    @property
    def num_values(self) -> int | None:
        """Number of values; None for a continuous range."""
        if self.values:
            return len(self.values)
        if self.mu is None and self.kind == "int":
            assert self.low is not None
            assert self.high is not None
            return int(self.high) - int(self.low) + 1
        return 1 if self.low == self.high else None

    def grid(self) -> list[Any]:
        """Its values in a grid, as stored in the study.

        Raises:
            UsageError: a continuous range without `points`.
        """
        if self.values:
            return [_encode(value) for value in self.values]
        if self.points is None and self.num_values is None:
            raise UsageError(
                f"A grid needs finitely many values of {self.name}. Give values = […], or points = "
                "5 with min and max."
            )
        if self.points is None:
            assert self.low is not None
            assert self.high is not None
            if self.low == self.high:
                return [self.low]
            return list(range(int(self.low), int(self.high) + 1))
        if self.mu is not None:
            return _spread(*self._quantiles(), self.points)
        return self._spaced(self.points)

    def _spaced(self, points: int) -> list[float]:
        assert self.low is not None
        assert self.high is not None
        if self.log:
            ratio = self.high / self.low
            last = max(points - 1, 1)
            shares = [i / last for i in range(points)] if points > 1 else [0.5]
            spaced = [rounded(self.low * ratio**share) for share in shares]
        else:
            spaced = _spread(self.low, self.high, points)
        inside = [min(max(x, self.low), self.high) for x in spaced]
        if self.kind == "int":
            return list(dict.fromkeys(round(x) for x in inside))
        return list(dict.fromkeys(inside))

    def _bound(self, bound: float | None, sign: int) -> float:
        return sign * math.inf if bound is None else bound

    def _quantiles(self) -> tuple[float, float]:
        """The quantiles of the bounds in the normal distribution."""
        assert self.mu is not None
        law = NormalDist(self.mu, self.sigma)
        low, high = self._bound(self.low, -1), self._bound(self.high, 1)
        if self.log:
            low = math.log(low) if low > 0 else -math.inf
            high = math.log(high) if high > 0 else -math.inf
        return max(law.cdf(low), _TAIL), min(law.cdf(high), 1 - _TAIL)


def _encode(value: Any) -> Scalar:
    return value if isinstance(value, Scalar) else json.dumps(value, sort_keys=True)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _same(a: Scalar, b: Scalar) -> bool:
    """Equality that distinguishes 1 and True."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _spread(low: float, high: float, points: int) -> list[float]:
    if points == 1:
        return [(low + high) / 2]
    step = (high - low) / (points - 1)
    return [rounded(low + i * step) for i in range(points)]


def grid_size(parameters: Sequence[Parameter]) -> int:
    """Combinations in the grid over all parameters."""
    return math.prod(len(parameter.grid()) for parameter in parameters)


def space_size(parameters: Sequence[Parameter]) -> int | None:
    """Number of combinations; None if a range is continuous."""
    sizes = [parameter.num_values for parameter in parameters]
    return None if None in sizes else math.prod(size for size in sizes if size is not None)


def combination(parameters: Sequence[Parameter], index: int) -> dict[str, Any]:
    """Combination `index` of the grid, as stored; the last parameter varies fastest."""
    chosen = {}
    for parameter in reversed(parameters):
        index, place = divmod(index, len(values := parameter.grid()))
        chosen[parameter.name] = values[place]
    return {parameter.name: chosen[parameter.name] for parameter in parameters}


def every(parameters: Sequence[Parameter]) -> Iterator[dict[str, Any]]:
    """Every combination of a finite space, as stored in the study."""
    whole = [replace(parameter, points=None) for parameter in parameters]
    return (combination(whole, i) for i in range(grid_size(whole)))


def key(value: Any) -> str:
    """A text that is equal for equal values.

    >>> key([1.0, "a"]) == key([1, "a"]), key(True) == key(1)
    (True, False)
    """
    return json.dumps(_canonical(value), sort_keys=True)


def different(values: Iterable[Any]) -> list[Any]:
    """The values without repetitions; `1` and `1.0` are equal.

    >>> different([8, 8.0, 16, True, 1])
    [8, 16, True, 1]
    """
    found: dict[str, Any] = {}
    for value in values:
        found.setdefault(key(value), value)
    return list(found.values())


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _canonical(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def distributions(parameters: Sequence[Parameter]) -> dict[str, BaseDistribution]:
    """Optuna's distributions by name."""
    return {parameter.name: parameter.distribution for parameter in parameters}


def decode(parameters: Sequence[Parameter], drawn: Mapping[str, Any]) -> dict[str, Any]:
    """The settings' values of stored values, by name."""
    return {p.name: p.decode(drawn[p.name]) for p in parameters}
