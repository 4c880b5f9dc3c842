"""Oort: prefers clients with a high utility per time, and explores others at random.

Legend: U utility, B examples of a client, t its last duration in seconds, T preferred duration, R
this round, L the client's last round, ε share of places for clients never tried, α penalty, c
cut-off.

    U = min(B·loss, 95 % of all) / largest  +  √(0.1·ln R / L),     times (T / t)^α where t > T

References:
    Lai et al. 2021, Oort: Efficient Federated Learning via Guided Participant Selection,
    https://arxiv.org/abs/2010.06081, sections 4.2 to 4.4 and Algorithm 1.

Deliberate differences from the paper: the loss is the client's mean training loss (theirs is the
root of the mean square over examples; name a metric that reports it to use that). Utilities are
scaled to [0, 1] before the bonus is added, as in the authors' code. Clients never tried are drawn
uniformly, since nothing is known of their speed. T is constant (no pacer); by default it is the
median of the measured durations.
"""

from dataclasses import dataclass
from math import frexp, sqrt
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.checks import check_count, check_number, check_share
from fedloom.strategies.selection.base import Fact, Known, Occasion, Places
from fedloom.strategies.selection.draws import shuffled, uniformly, weighted

Floats = NDArray[np.float64]

_LN2 = 0.6931471805599453
_BONUS = 0.1
_CLIP_QUANTILE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Oort:
    """Statistical utility from losses, system utility from durations, and exploration.

    Attributes:
        exploration: ε of round 1, from 0 to 1.
        exploration_decay: factor per round, in (0, 1].
        exploration_min: lower limit of ε.
        preferred_s: T in seconds; None for the median of the measured durations.
        penalty: α, a whole number; 0 ignores durations.
        cutoff: c in (0, 1]: clients with at least c times the utility of the last one among the
            best are candidates for exploitation.
        max_rounds: after this many rounds a client is asked only if the others do not suffice; 0
            for no limit.
        loss: the training metric that clients report.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: a setting is out of range.
    """

    name: ClassVar[str] = "oort"
    needs: ClassVar[frozenset[Fact]] = frozenset({"examples", "loss", "rounds"})

    exploration: float = 0.9
    exploration_decay: float = 0.98
    exploration_min: float = 0.2
    preferred_s: float | None = None
    penalty: int = 2
    cutoff: float = 0.95
    max_rounds: int = 0
    loss: str = "loss"

    def __post_init__(self) -> None:
        for name in ("exploration", "exploration_decay", "exploration_min", "cutoff"):
            check_share(name, getattr(self, name))
        for name in ("exploration_decay", "cutoff"):
            check_number(name, getattr(self, name), above=0)
        if self.preferred_s is not None:
            check_number("preferred_s", self.preferred_s, above=0)
        check_count("penalty", self.penalty, at_least=0)
        check_count("max_rounds", self.max_rounds, at_least=0)

    def choose(self, occasion: Occasion, count: int) -> Places:
        """Draw; see `Selection.choose`."""
        known = occasion.known
        tired = known.rounds >= self.max_rounds if self.max_rounds else known.rounds < 0
        new, tried = known.rounds == 0, np.flatnonzero((known.rounds > 0) & ~tired)
        num_new = min(int(self.exploration_at(occasion.round) * count + 0.5), int(new.sum()))
        exploited = self._exploit(occasion, tried, min(count - num_new, len(tried)))
        num_new = min(count - len(exploited), int(new.sum()))
        explored = uniformly(occasion, num_new, np.flatnonzero(new))
        left = count - len(exploited) - len(explored)
        others = uniformly(occasion, left, np.flatnonzero(tired), part=1)
        return shuffled(occasion, np.concatenate([exploited, explored, others]))

    def exploration_at(self, round_number: int) -> float:
        """ε of a round."""
        epsilon = self.exploration
        for _ in range(round_number - 1):
            if epsilon <= self.exploration_min or self.exploration_decay == 1:
                break
            epsilon *= (
                self.exploration_decay
            )  # stepwise: the last bit of a power depends on the machine
        return max(epsilon, min(self.exploration, self.exploration_min))

    def _exploit(self, occasion: Occasion, tried: Places, count: int) -> Places:
        """Draw by utility among the clients near the best."""
        if not count:
            return tried[:0]
        utility = self.utilities(occasion.known, occasion.round)[tried]
        bar = self.cutoff * np.partition(utility, len(utility) - count)[len(utility) - count]
        weights = np.zeros(len(occasion))
        weights[tried] = np.where(utility >= bar, utility, 0.0)
        drawn = weighted(occasion, weights, min(count, int(np.count_nonzero(weights))))
        rest = np.setdiff1d(tried, drawn)
        return np.concatenate([drawn, uniformly(occasion, count - len(drawn), rest, part=2)])

    def utilities(self, known: Known, round_number: int) -> Floats:
        """Utilities of all candidates; meaningful for those that took part.

        Returns:
            float64 [n], >= 0.
        """
        met = known.rounds > 0
        losses = np.where(np.isfinite(known.loss) & (known.loss > 0), known.loss, 0.0)
        statistical = np.where(met, known.num_examples * losses, 0.0)
        cap = _quantile(statistical[met], _CLIP_QUANTILE)
        utility = np.minimum(statistical, cap) / cap if cap > 0 else np.zeros(len(met))
        utility += np.sqrt(_BONUS * _ln(round_number) / np.maximum(known.last_round, 1))
        return utility * self._system(known.seconds)

    def _system(self, seconds: Floats) -> Floats:
        """(T / t)^α for clients slower than T, else 1."""
        measured = seconds[np.isfinite(seconds)]
        preferred = self.preferred_s
        if preferred is None:
            preferred = _quantile(measured, 0.5)
        slow = seconds > preferred  # not measured: NaN is not
        ratio = np.divide(preferred, seconds, out=np.ones_like(seconds), where=slow)
        factor = np.ones_like(ratio)
        for _ in range(self.penalty):
            factor *= ratio
        return factor


def _quantile(values: Floats, share: float) -> float:
    """The quantile of a share; 0 without values."""
    if not len(values):
        return 0.0
    place = max(0, -int(-share * len(values) // 1) - 1)
    return float(np.partition(values, place)[place])


def _ln(value: int) -> float:
    """The natural logarithm to 1e-15, by arithmetic that rounds alike on every machine.

    ln(m·2^e) = e·ln 2 + 2·artanh((m - 1) / (m + 1)), with m in [√½, √2).
    """
    mantissa, exponent = frexp(value)
    if mantissa < sqrt(0.5):
        mantissa, exponent = 2 * mantissa, exponent - 1
    ratio = (mantissa - 1) / (mantissa + 1)
    term, total, square = ratio, 0.0, ratio * ratio
    for odd in range(1, 43, 2):
        total += term / odd
        term *= square
    return exponent * _LN2 + 2 * total
