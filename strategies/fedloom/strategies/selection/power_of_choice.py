"""Power-of-choice: of some candidates drawn by data share, those with the largest losses.

References:
    Cho, Wang, Joshi 2020, Client Selection in Federated Learning: Convergence Analysis and
    Power-of-Choice Selection Strategies, https://arxiv.org/abs/2010.01243, section 4. This is
    their variant rpow-d: losses are those that clients reported when they last took part, and a
    client that never did has an infinite one, so that every client is tried.
"""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import numpy as np

from fedloom.strategies.checks import check_number
from fedloom.strategies.selection.base import Fact, Known, Occasion, Places
from fedloom.strategies.selection.draws import sizes, weighted

_ROUNDING = 1e-9  # 1.1 · 100 is 110.00000000000001; 111 is never meant


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerOfChoice:
    """Draw d candidates by data share, ask the m with the largest last known loss.

    Attributes:
        choices: candidates for each place, d/m, at least 1. 1 is a draw by data share; a larger
            value reduces the largest losses faster and biases the model towards those clients.
        loss: the training metric that clients report.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: choices is out of range.
    """

    name: ClassVar[str] = "power_of_choice"
    needs: ClassVar[frozenset[Fact]] = frozenset({"examples", "loss"})

    choices: float = 2.0
    loss: str = "loss"

    def __post_init__(self) -> None:
        check_number("choices", self.choices, at_least=1)

    def choose(self, occasion: Occasion, count: int) -> Places:
        """Draw; see `Selection.choose`."""
        wanted = min(len(occasion), ceil(self.choices * count - _ROUNDING))
        drawn = weighted(occasion, sizes(occasion.known), max(wanted, count))
        losses = last_losses(occasion.known)[drawn]
        largest = np.argsort(-losses, kind="stable")[:count]
        # In the order drawn: a replacement is any of them, not the one with the largest loss.
        return drawn[np.sort(largest)]


def last_losses(known: Known) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Last known losses; infinite before the first, and of no account where it was not a number.

    Returns:
        float64 [n].
    """
    finite = np.where(np.isfinite(known.loss), known.loss, -np.inf)
    return np.where(known.rounds > 0, finite, np.inf)
