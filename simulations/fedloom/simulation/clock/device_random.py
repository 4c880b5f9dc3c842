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
from fedloom.protocol.settings import check_names

Floats = NDArray[np.float64]


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
        name = f"{self.seed}/{self.purpose}/{self.round}/{part}".encode()
        key = np.frombuffer(blake2b(name, digest_size=16).digest(), "<u8")
        raw = np.random.Philox(key=key).random_raw(count)
        raw >>= np.uint64(11)
        numbers = raw.astype(np.float64)
        numbers += 0.5
        numbers *= 2.0**-53
        return numbers

    def normals(self, count: int) -> Floats:
        """Numbers of the standard normal distribution, shape (count,)."""
        radius, angle = self.uniforms(count, "radius"), self.uniforms(count, "angle")
        np.log(radius, out=radius)
        radius *= -2.0
        np.sqrt(radius, out=radius)
        angle *= 2.0 * np.pi
        radius *= np.cos(angle, out=angle)
        return radius


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
    kind = table.get("distribution")
    if kind not in _DISTRIBUTIONS:
        raise UsageError(
            f"Expected {name} as a number or a table with distribution = one of "
            f"{', '.join(sorted(_DISTRIBUTIONS))}, got {kind!r}."
        )
    needed, make = _DISTRIBUTIONS[kind]
    given = {key: value for key, value in table.items() if key not in _BESIDE}
    optional = {"weights"} if kind == "choice" else set()
    check_names(table, {*needed, *optional, *_BESIDE}, name)
    if not needed <= given.keys() <= needed | optional:
        raise UsageError(
            f"Expected {', '.join(sorted(needed))} (and min, max if wanted) with {name}'s "
            f'distribution = "{kind}", got {", ".join(sorted(given)) or "nothing"}.'
        )
    if kind != "choice":
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
_DISTRIBUTIONS: Mapping[Any, tuple[set[str], _Make]] = {
    "choice": ({"values"}, _choice),
    "constant": ({"value"}, _constant),
    "exponential": ({"mean"}, _exponential),
    "lognormal": ({"median", "sigma"}, _lognormal),
    "normal": ({"mean", "std"}, _normal),
    "pareto": ({"minimum", "shape"}, _pareto),
    "uniform": ({"low", "high"}, _uniform),
}
