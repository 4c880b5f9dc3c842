"""The next learning rate on a multiplicative grid, until the best is in its middle.

Source: McMahan et al. 2017, https://arxiv.org/abs/1602.05629, section 3: learning rates come from a
multiplicative grid of resolution 10^(1/3) or 10^(1/6), wide enough that the best is in its middle.
They ran 11 to 13 values each; here the grid grows from a first guess towards the better side, which
finds the same best if rounds have one minimum over the rates.

Invariant: the next rate depends only on the attempts so far, so an interrupted search continues
unchanged.

Legend: a rate is named by k, of 10^(k/6).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

THIRD, SIXTH = 2, 1
"""Steps of k of the paper's two resolutions."""
LOWEST, HIGHEST = -18, 9
"""Of 0.001 and 31.6, the bounds of a search."""


@dataclass(frozen=True, slots=True)
class RateScore:
    """The result of a learning rate.

    Attributes:
        rounds: to the target; None if it was not reached.
        accuracy: the best one.
    """

    rounds: float | None
    accuracy: float

    @property
    def order(self) -> tuple[float, float]:
        """Ascending from the best: fewest rounds first, then by accuracy."""
        return (inf if self.rounds is None else self.rounds, -self.accuracy)


def value(k: int) -> float:
    """The learning rate 10^(k/6), rounded to three digits, as run and as reported.

    >>> [value(k) for k in (-6, -5, -4, -2, 0)]
    [0.1, 0.147, 0.215, 0.464, 1.0]
    """
    return float(f"{10 ** (k / 6):.3g}")


def best(scores: Mapping[int, RateScore]) -> int | None:
    """The best rate so far, the lowest of equals."""
    return min(scores, key=lambda k: (scores[k].order, k), default=None)


def in_the_middle(scores: Mapping[int, RateScore]) -> bool:
    """Whether lower and higher rates than the best were tried."""
    top = best(scores)
    return top is not None and min(scores) < top < max(scores)


def following(scores: Mapping[int, RateScore], start: int, finest: int = SIXTH) -> int | None:
    """The next rate; None if the best has worse neighbours on both sides.

    Args:
        scores: of the rates tried so far, by k.
        start: the first guess.
        finest: `THIRD`, or `SIXTH` to also try values between the thirds around the best.
    """
    top = best(scores)
    if top is None:
        return start
    for step in sorted({THIRD, finest}, reverse=True):
        for side in (1, -1):
            near = {top + side * distance for distance in range(1, step + 1)}
            if not near & scores.keys() and LOWEST <= top + side * step <= HIGHEST:
                return top + side * step
    return None
