"""Random numbers for devices: one per client, independent of the order of draws.

A number depends only on (seed, purpose, round, client): the first three make the key of a
counter-based generator, and the client is the position in its output. If the population grows, the
numbers of existing clients stay the same.

Sources: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox); Box and Muller
1958, "A note on the generation of random normal deviates"; the others by inversion (Devroye 1986,
"Non-uniform random variate generation", section II.2).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import check_names, lookup

from . import philox

Floats = NDArray[np.float64]
_HALF_UNIT = 2.0**-54
"""Moves multiples of 2^-53 to the middle between them, so none is 0."""


@dataclass(frozen=True, slots=True)
class Source:
    """The random numbers of one purpose.

    Attributes:
        seed: of the experiment.
        purpose: such as `jitter`.
        round: its number, or None for numbers that do not change.
    """

    seed: int
    purpose: str
    round: int | None = None

    def uniforms(self, count: int, part: str = "") -> Floats:
        """Numbers in the open interval (0, 1), shape (count,); client i has number i."""
        numbers = np.random.Generator(np.random.Philox(key=self.key(part))).random(count)
        numbers += _HALF_UNIT
        return numbers

    def key(self, part: str = "") -> NDArray[np.uint64]:
        """The key of the generator, shape (2,)."""
        name = f"{self.seed}/{self.purpose}/{self.round}/{part}".encode()
        return np.frombuffer(blake2b(name, digest_size=16).digest(), "<u8")

    def normals(self, count: int) -> Floats:
        """Numbers of the standard normal distribution, shape (count,)."""
        return np.asarray(Normals(self, count)[:])


class Uniforms:
    """`Source.uniforms`, computed when they are asked for: a round needs few of its numbers.

    Args:
        source: of random numbers.
        count: of clients.
        part: as for `Source.uniforms`.
    """

    def __init__(self, source: Source, count: int, part: str = "") -> None:
        self._source, self._count, self._part = source, count, part
        self._all: Floats | None = None

    def __getitem__(self, places: Any) -> Any:
        """Those of the clients with these indices, an array or a slice."""
        few = isinstance(places, np.ndarray) and places.size < self._count // 8
        large = self._count >= philox.LEAST
        if self._all is None and few and large and (at := philox.doubles_at()):
            first, second = self._source.key(self._part)
            return at((first, second), places.astype(np.int64, copy=False)) + _HALF_UNIT
        if self._all is None:
            self._all = self._source.uniforms(self._count, self._part)
        return self._all[places]


class Normals:
    """Numbers of the standard normal distribution, computed when they are asked for.

    Args:
        source: of random numbers.
        count: of clients.
    """

    def __init__(self, source: Source, count: int) -> None:
        self._radius = Uniforms(source, count, "radius")
        self._angle = Uniforms(source, count, "angle")

    def __getitem__(self, places: Any) -> Any:
        """Those of the clients with these indices, an array or a slice."""
        radius = np.sqrt(-2.0 * np.log(self._radius[places]))
        return radius * np.cos(2.0 * np.pi * self._angle[places])


def draw(name: str, setting: object, count: int, source: Source) -> Floats:
    """The value of a setting for each client.

    Args:
        name: of the setting, for messages.
        setting: a number for all clients, or a table {distribution = "…", …}; see
            docs/devices.md.
        count: number of clients.
        source: of random numbers.

    Returns:
        Shape (count,), finite.

    Raises:
        UsageError: the setting is invalid, or a parameter is missing, unknown or out of range.
    """
    if isinstance(setting, Mapping):
        return _from_table(name, setting, count, source)
    return np.full(count, number(name, setting))


def number(name: str, value: object) -> float:
    """A finite number.

    Raises:
        UsageError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value):
        raise UsageError(f"Expected {name} as a finite number, got {value!r}.")
    return float(value)


def _from_table(name: str, table: Mapping[str, Any], count: int, source: Source) -> Floats:
    known = ", ".join(sorted(_DISTRIBUTIONS))
    if "distribution" not in table:
        raise UsageError(
            f"Missing setting {name}.distribution: set it to one of {known}, or {name} to a number."
        )
    kind = table["distribution"]
    needed, make = lookup(f"{name}.distribution as a known name", kind, _DISTRIBUTIONS)
    given = {key: value for key, value in table.items() if key not in _BESIDE}
    optional = {"weights"} if make is _choice else set()
    check_names(table, {*needed, *optional, *_BESIDE}, name)
    if not needed <= given.keys() <= needed | optional:
        raise UsageError(
            f"Expected {', '.join(sorted(needed))} (and min, max if wanted) with {name}'s "
            f'distribution = "{kind}", got {", ".join(sorted(given)) or "nothing"}.'
        )
    if make is not _choice:
        given = {key: number(f"{name}.{key}", value) for key, value in given.items()}
    values = make(name, given, count, source)
    low = number(f"{name}.min", table["min"]) if "min" in table else -np.inf
    high = number(f"{name}.max", table["max"]) if "max" in table else np.inf
    _expect(low <= high, f"{name}.min={low} <= max={high}")
    return np.asarray(np.clip(values, low, high), np.float64)


def _constant(_: str, p: Mapping[str, Any], count: int, __: Source) -> Floats:
    return np.full(count, p["value"])


def _uniform(name: str, p: Mapping[str, Any], count: int, source: Source) -> Floats:
    low, high = p["low"], p["high"]
    _expect(low <= high, f"{name}.low={low} <= high={high}")
    return np.asarray(low + (high - low) * source.uniforms(count))


def _normal(name: str, p: Mapping[str, Any], count: int, source: Source) -> Floats:
    _expect(p["std"] >= 0, f"{name}.std={p['std']} >= 0")
    return np.asarray(p["mean"] + p["std"] * source.normals(count))


def _lognormal(name: str, p: Mapping[str, Any], count: int, source: Source) -> Floats:
    _expect(p["median"] > 0, f"{name}.median={p['median']} > 0")
    _expect(p["sigma"] >= 0, f"{name}.sigma={p['sigma']} >= 0")
    return np.asarray(p["median"] * np.exp(p["sigma"] * source.normals(count)))


def _exponential(name: str, p: Mapping[str, Any], count: int, source: Source) -> Floats:
    _expect(p["mean"] > 0, f"{name}.mean={p['mean']} > 0")
    return np.asarray(-p["mean"] * np.log(source.uniforms(count)))


def _pareto(name: str, p: Mapping[str, Any], count: int, source: Source) -> Floats:
    _expect(p["minimum"] > 0, f"{name}.minimum={p['minimum']} > 0")
    _expect(p["shape"] > 0, f"{name}.shape={p['shape']} > 0")
    return np.asarray(p["minimum"] * source.uniforms(count) ** (-1.0 / p["shape"]))


def _choice(name: str, p: Mapping[str, Any], count: int, source: Source) -> Floats:
    values = _numbers(f"{name}.values", p["values"])
    weights = _numbers(f"{name}.weights", p.get("weights", [1.0] * len(values)))
    _expect(len(weights) == len(values), f"{len(values)} {name}.weights, got {len(weights)}")
    _expect(bool((weights >= 0).all() and weights.sum() > 0), f"{name}.weights >= 0, not all 0")
    edges = np.cumsum(weights) / weights.sum()
    # The last edge may be below 1 by rounding; then the last possible value is taken.
    last = int(np.flatnonzero(weights)[-1])
    places = np.searchsorted(edges, source.uniforms(count), side="right")
    return values[np.minimum(places, last)]


def _numbers(name: str, values: object) -> Floats:
    if not isinstance(values, list | tuple) or not values:
        raise UsageError(f"Expected {name} as a list of numbers, got {values!r}.")
    return np.array([number(name, value) for value in values])


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise UsageError(f"Expected {what}.")


_BESIDE = {"distribution", "min", "max"}
_Make = Callable[[str, Mapping[str, Any], int, Source], Floats]
_DISTRIBUTIONS: Mapping[str, tuple[set[str], _Make]] = {
    "choice": ({"values"}, _choice),
    "constant": ({"value"}, _constant),
    "exponential": ({"mean"}, _exponential),
    "lognormal": ({"median", "sigma"}, _lognormal),
    "normal": ({"mean", "std"}, _normal),
    "pareto": ({"minimum", "shape"}, _pareto),
    "uniform": ({"low", "high"}, _uniform),
}
