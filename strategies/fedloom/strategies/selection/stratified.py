"""Stratified selection: every stratum of clients gets its share of the places.

Source: Cochran 1977, "Sampling Techniques", chapter 5; places by systematic sampling (section 8.1),
so that a client's probability is exactly count / candidates, also if shares are not whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from math import floor
from re import compile as compile_pattern
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.selection.base import Fact, Occasion, Places
from fedloom.strategies.selection.draws import shuffled, uniformly

Allocation = Literal["proportional", "equal"]

_SEATS = 16
"""Purpose of the random start; draws have lower ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratified:
    """Divides the places among strata, with uniform draws within each.

    Strata are defined by name patterns or by a number that clients report; exactly one is set.

    Attributes:
        patterns: of names, such as ["eu-*", "us-*"]; the first match decides, and names without a
            match are a separate stratum.
        label: a training metric that clients report, such as "region"; clients that have not
            reported it yet are a separate stratum.
        allocation: "proportional" to a stratum's candidates, or "equal" as far as there are
            enough.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: both or none of patterns and label are set, or the allocation is unknown.
    """

    name: ClassVar[str] = "stratified"

    patterns: Sequence[str] = ()
    label: str = ""
    allocation: Allocation = "proportional"

    def __post_init__(self) -> None:
        if isinstance(self.patterns, str) or not all(isinstance(p, str) for p in self.patterns):
            raise TypeError(f"Expected patterns as a list of strings, got {self.patterns!r}.")
        object.__setattr__(self, "patterns", tuple(self.patterns))
        if bool(self.patterns) == bool(self.label):
            raise ValueError(
                f"Expected either patterns or label, got patterns={list(self.patterns)}, "
                f"label={self.label!r}."
            )
        if self.allocation not in get_args(Allocation):
            raise ValueError(
                f"Expected an allocation of {', '.join(get_args(Allocation))}, got "
                f"{self.allocation!r}."
            )

    @property
    def needs(self) -> frozenset[Fact]:
        """Labels, unless patterns are set."""
        return frozenset({"label"}) if self.label else frozenset()

    def choose(self, occasion: Occasion, count: int) -> Places:
        """Draw; see `Selection.choose`."""
        strata = self._strata(occasion)
        counts = np.bincount(strata)
        equal = self.allocation == "equal"
        shares: Sequence[Fraction | int] = _equal(counts, count) if equal else counts.tolist()
        seats = _seats(shares, count, int(occasion.raw(1, _SEATS)[0]))
        drawn = [
            uniformly(occasion, n, np.flatnonzero(strata == stratum), part=stratum)
            for stratum, n in enumerate(seats)
        ]
        return shuffled(occasion, np.concatenate([*drawn, np.empty(0, np.intp)]))

    def _strata(self, occasion: Occasion) -> NDArray[np.intp]:
        """The stratum of each candidate, numbered from 0."""
        labels: NDArray[np.generic] = occasion.known.label
        if self.patterns:
            labels = _by_pattern(tuple(self.patterns), tuple(occasion.names))
        _, strata = np.unique(labels, return_inverse=True)
        return np.asarray(strata, np.intp).reshape(-1)


@lru_cache(maxsize=4)
def _by_pattern(patterns: tuple[str, ...], names: tuple[str, ...]) -> NDArray[np.intp]:
    """The first matching pattern of each name, or len(patterns)."""
    tests = [compile_pattern(translate(pattern)).match for pattern in patterns]
    none = len(tests)
    return np.array([next((i for i, fits in enumerate(tests) if fits(n)), none) for n in names])


def _equal(counts: NDArray[np.intp], count: int) -> list[Fraction]:
    """Places per stratum, as equal as the strata's sizes allow."""
    shares = [Fraction(0)] * len(counts)
    left, open_ = Fraction(count), [i for i, size in enumerate(counts.tolist()) if size]
    while left and open_:
        room = min(int(counts[i]) - shares[i] for i in open_)
        each = min(left / len(open_), room)
        for i in open_:
            shares[i] += each
        left -= each * len(open_)
        open_ = [i for i in open_ if shares[i] < int(counts[i])]
    return shares


def _seats(shares: Sequence[Fraction | int], count: int, random: int) -> list[int]:
    """Whole places in proportion to shares, rounded up or down, exact in expectation.

    Args:
        shares: of the strata, >= 0.
        count: places in all.
        random: 64 bits, the random start.
    """
    total = sum(shares)
    if not total:
        return [0] * len(shares)
    per_share, start = Fraction(count) / total, Fraction(random, 2**64)
    edges = [floor(edge * per_share + start) for edge in accumulate(shares, initial=Fraction(0))]
    return [high - low for low, high in pairwise(edges)]
