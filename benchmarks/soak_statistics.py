"""What a soak concludes from its samples: slopes, and whether the selection was fair.

Sources: Sen 1968, "Estimates of the Regression Coefficient Based on Kendall's Tau" (median of the
slopes of all pairs). McCullagh and Nelder 1989, "Generalized Linear Models", section 6.2 (counts of
draws without replacement, given the margins).
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

DAY_S = 86_400.0


@dataclass(frozen=True)
class Slope:
    """A robust slope.

    Attributes:
        per_day: growth in a day.
        low: the 95 % confidence interval of it; samples are taken as independent.
        high: its other end.
        level: the median.
    """

    per_day: float
    low: float
    high: float
    level: float

    @property
    def doubles(self):
        """Whether the quantity would double in a day."""
        return self.per_day >= self.level


def slope(times_s, values):
    """Theil and Sen's slope of values over times in seconds."""
    found = stats.theilslopes(values, times_s, 0.95)
    per_day = [DAY_S * each for each in (found.slope, found.low_slope, found.high_slope)]
    return Slope(*per_day, float(np.median(values)))


@dataclass(frozen=True)
class Fairness:
    """How often clients were asked, compared with uniform draws.

    Attributes:
        p: of the counts of all clients, against more and less spread than chance; two-sided.
        p_new: of the share of clients that had just come, two-sided.
        asked: least, median and most.
        expected: the same of the expected counts.
        standardised: the largest distance of a count from its expectation, in standard deviations.
    """

    p: float
    p_new: float
    asked: tuple[float, float, float]
    expected: tuple[float, float, float]
    standardised: float


def fairness(there, asked, new):
    """Compare draws with uniform ones without replacement.

    A round draws so many of those that were there; given that number, every subset is equally
    likely. Rounds are independent, so the counts' means and variances are sums over rounds.

    Args:
        there: bool [rounds, clients], those that a round could draw, whoever they were.
        asked: bool [rounds, clients], those that it drew; only those that were there count.
        new: bool [rounds, clients], a group that is chosen without regard to the draws.
    """
    asked = asked & there
    size, drawn = there.sum(1), asked.sum(1)
    share = np.divide(drawn, size, out=np.zeros(len(size)), where=size > 0)
    counts, mean = asked.sum(0), share @ there
    variance = (share * (1 - share)) @ there
    some = variance > 0
    z = (counts[some] - mean[some]) / np.sqrt(variance[some])
    # The counts of a round add up to its draws: one degree of freedom less.
    freedom = int(some.sum()) - 1
    statistic = float((z**2).sum()) * freedom / (freedom + 1)
    tails = stats.chi2.cdf(statistic, freedom), stats.chi2.sf(statistic, freedom)
    group = (new & there).sum(1)
    hits = float((asked & new).sum())
    expected = float((share * group).sum())
    many = size > 1
    spread = np.zeros(len(size))
    spread[many] = (drawn * (group / size.clip(1)) * (1 - group / size.clip(1)) * (size - drawn))[
        many
    ] / (size[many] - 1)
    p_new = 1.0
    if spread.sum() > 0:
        p_new = float(2 * stats.norm.sf(abs(hits - expected) / np.sqrt(spread.sum())))
    return Fairness(
        p=float(min(1.0, 2 * min(tails))),
        p_new=p_new,
        asked=_range(counts[some]),
        expected=_range(mean[some]),
        standardised=float(np.abs(z).max()),
    )


def _range(values):
    return float(values.min()), float(np.median(values)), float(values.max())
