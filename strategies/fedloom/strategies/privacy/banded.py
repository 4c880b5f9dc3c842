"""The matrix of the banded mechanism, its sensitivity and its error.

A strategy adds up the sums of rounds, x: it needs the prefix sums A x. The mechanism releases
x + C⁻¹ z, which equals C⁻¹ (C x + z): the noise z on C x hides a client, and A C⁻¹ z is what of it
remains in the prefix sums. Each column of C begins with c_0 = 1 and has p bands:

    c_k = c_(k-1) · (k - 1 + γ) / k,  k < p    the coefficients of (1 - x)^(-γ)

With γ = 1/2 they are those of the square root of A (Kalinin and Lampert 2024). Cut to p bands,
another γ has less error. `factor` takes the best of a grid, which is within 2 % of freely optimised
coefficients.

Legend: p bands, n rounds, b separation, k participations.

Invariants: coefficients are whole multiples of 2^-COEFFICIENT_BITS, at least 0, and do not
increase; these multiples are what runs and what is accounted for.

References:
    Denisov, McMahan, Rush, Smith, Thakurta 2022, Improved Differential Privacy for SGD via Optimal
    Private Linear Operators on Adaptive Streams, https://arxiv.org/abs/2202.08312 (the mechanism).
    Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization,
    https://arxiv.org/abs/2306.08153 (bands, separation and sensitivity).
    Kalinin and Lampert 2024, Banded Square Root Matrix Factorization for Differentially Private
    Model Training, https://arxiv.org/abs/2405.13763.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

COEFFICIENT_BITS: Final = 20
MOST_BANDS: Final = 1024
USUAL_BANDS: Final = 64
"""The most bands of a run that does not set them: each keeps 4 bytes a coordinate."""
MOST_ROUNDS: Final = 4096
"""Rounds for which errors are computed at most; longer runs take the γ of so many."""
_STEPS: Final = range(30, 101, 2)
"""γ in hundredths."""


@dataclass(frozen=True, slots=True)
class Factor:
    """The matrix C.

    Attributes:
        coefficients: c_0, c_1, … in units of 2^-COEFFICIENT_BITS.
    """

    coefficients: tuple[int, ...]

    @property
    def bands(self) -> int:
        """Number of coefficients, p."""
        return len(self.coefficients)

    def norm(self, rounds: int) -> float:
        """Return the Euclidean norm of the first `rounds` entries of a column."""
        squares = sum(c * c for c in self.coefficients[:rounds])
        return math.ldexp(math.sqrt(squares), -COEFFICIENT_BITS)

    def sensitivity(self, rounds: int, separation: int, participations: int | None) -> float:
        """Return the largest norm by which a client moves C x, in units of its clip.

        Bands end before a client's next round, so its columns have no row in common, and the
        squares of their norms add up. The last column is cut by the end of the run; a client that
        begins with the first round loses least by it.

        Args:
            rounds: released, >= 1.
            separation: of a client's rounds, b >= bands.
            participations: of a client at most, k; None for no limit.
        """
        number = -(-rounds // separation)
        if participations is not None:
            number = min(number, participations)
        last = rounds - (number - 1) * separation
        return math.hypot(math.sqrt(number - 1) * self.norm(self.bands), self.norm(last))

    def prefix_noise(self, rounds: int) -> NDArray[np.float64]:
        """Return the standard deviation of the noise on each prefix sum, for noise z of 1.

        Returns:
            float64 [rounds]: the norms of the rows of B.
        """
        column = np.ldexp(np.array(self.coefficients, np.float64), -COEFFICIENT_BITS)
        inverse = np.zeros(rounds)
        inverse[0] = 1.0
        for at in range(1, rounds):
            reach = min(at, self.bands - 1)
            inverse[at] = -(column[reach:0:-1] @ inverse[at - reach : at])
        return np.sqrt(np.cumsum(np.cumsum(inverse) ** 2))

    def rounding(self) -> float:
        """Return how far rounding moves C x, a coordinate, relative to a column's norm.

        A client changes its own round exactly, and the rounding of each later one within the bands
        by less than a unit: √(m - 1) of norm(m) for m rounds.
        """
        return max(math.sqrt(m - 1) / self.norm(m) for m in range(1, self.bands + 1))


@lru_cache(maxsize=64)
def factor(bands: int, rounds: int) -> Factor:
    """Return the matrix with the smallest mean square of the error of all prefix sums.

    Args:
        bands: 1 to `MOST_BANDS`.
        rounds: of the run.
    """
    rounds = min(rounds, MOST_ROUNDS)
    bands = min(bands, rounds)
    # The error has one minimum in γ: halve the grid at the side where it rises.
    low, high = 0, len(_STEPS) - 1
    while low < high:
        middle = (low + high) // 2
        one, other = (_powers(bands, _STEPS[at] / 100) for at in (middle, middle + 1))
        if _error(one, rounds) <= _error(other, rounds):
            high = middle
        else:
            low = middle + 1
    return _powers(bands, _STEPS[low] / 100)


def _powers(bands: int, gamma: float) -> Factor:
    column = [1.0]
    for k in range(1, bands):
        column.append(column[-1] * (k - 1 + gamma) / k)
    return Factor(tuple(round(math.ldexp(c, COEFFICIENT_BITS)) for c in column))


def _error(made: Factor, rounds: int) -> float:
    """The root mean square of the noise on prefix sums, for a client in one round."""
    return made.norm(made.bands) * math.sqrt(float(np.mean(made.prefix_noise(rounds) ** 2)))


def prefix_noise_of_trees(rounds: int, every: int) -> NDArray[np.float64]:
    """Return the standard deviation of the noise on each prefix sum of dp_ftrl, for nodes of 1.

    Each whole tree has a node for each one in the binary digits of its rounds, as has the last.

    Args:
        rounds: released.
        every: rounds of a tree.
    """
    whole, part = np.divmod(np.arange(1, rounds + 1), every)
    nodes = whole * every.bit_count()
    for bit in range(every.bit_length()):
        nodes += (part >> bit) & 1
    return np.sqrt(nodes.astype(np.float64))
