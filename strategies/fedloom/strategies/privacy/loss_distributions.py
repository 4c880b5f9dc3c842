"""Epsilon of sampled rounds by distributions of the privacy loss, which dp-accounting composes.

It bounds the composition of many rounds itself instead of its Rényi divergences, and is several
times smaller where few clients are drawn. All roundings are upwards, so it is a bound on any grid.

    poisson               the pairs of Zhu et al. 2022, Theorem 11: (1 - q) N(0, z²) + q N(1, z²)
                          and N(0, z²), in both directions
    without_replacement   one pair for both directions, as neighbours replace a client: its
                          hockey-stick divergence is that of the first direction above for losses
                          from 0 on and that of the second below 0, at half the noise. For the first
                          that is Balle et al. 2018, Theorem 9; the relation is symmetric, which
                          gives the second. Composing each direction by itself would be no bound
                          (Lebeda et al. 2024).

References:
    Doroshenko et al. 2022, Connect the Dots: Tighter Discrete Approximations of Privacy Loss
    Distributions, https://arxiv.org/abs/2207.04380.
    Zhu, Dong, Wang 2022, Optimal Accounting of Differential Privacy via Characteristic Function,
    https://arxiv.org/abs/2106.08567, Theorem 11 and Proposition 30.
    Balle, Barthe, Gaboardi 2018, Privacy Amplification by Subsampling,
    https://arxiv.org/abs/1807.01647.
    Lebeda, Regehr, Kamath, Steinke 2024, Avoiding Pitfalls for Privacy Accounting of Subsampled
    Mechanisms under Composition, https://arxiv.org/abs/2405.20769.
"""

import math
from collections.abc import Iterable
from functools import lru_cache, reduce
from typing import Any, Final

import numpy as np

MOST_BINS: Final = 20_000
"""Bins of the grid up to the largest loss that counts."""
FINE: Final = 1.0
COARSE: Final = 8.0
"""Factors of the grid: for claims, and for guesses, which cost an eighth and are bounds as well."""


def epsilon(
    noise: float, q: float, rounds: int, delta: float, *, replaced: bool, coarse: float = FINE
) -> float:
    """Return epsilon after `rounds` rounds.

    Args:
        noise: standard deviation of the noise over the sensitivity, > 0.
        q: probability that a client is drawn, in (0, 1].
        rounds: at least 1.
        delta: in (0, 1).
        replaced: whether neighbours replace a client in cohorts of one size; otherwise one is
            added or removed, and each is drawn by itself.
        coarse: factor of the grid's width.
    """
    one = _one_round(noise, q, replaced, coarse * grid(noise, q))
    return float(one.self_compose(rounds).get_epsilon_for_delta(delta))


@lru_cache(maxsize=16)
def composed(noise: float, q: float, rounds: int, *, replaced: bool) -> Any:
    """Return the distribution of the loss after `rounds` rounds; arguments as `epsilon`.

    The width of its grid is a power of two, so that it can be brought to a coarser one.
    """
    return _one_round(noise, q, replaced, power_of_two(grid(noise, q))).self_compose(rounds)


def gaussian(noise: float, width: float) -> Any:
    """Return the distribution of the loss of one Gaussian release on a grid of this width."""
    return _one_round(noise, 1.0, False, width)


def convolved(losses: Iterable[Any], least: float) -> Any:
    """Return the distribution of the sum of independent losses.

    Args:
        losses: on grids whose widths are powers of two.
        least: width of the result's grid, a power of two; the widest of the losses' if larger.
    """
    found = list(losses)
    width = max(least, *(each._pmf_remove._discretization for each in found))  # noqa: SLF001
    return reduce(lambda one, other: one.compose(other), (_coarser(each, width) for each in found))


def power_of_two(width: float) -> float:
    """Return the largest power of two that is at most `width`."""
    return math.ldexp(1.0, math.frexp(width)[1] - 1)


def _coarser(made: Any, width: float) -> Any:
    """The loss on a wider grid, whose hockey-stick divergences are nowhere smaller.

    A loss between two points of the grid is split so that mass and mean of e^-loss stay: then the
    divergence, as a function of e^ε, is interpolated linearly between the points, and it is convex
    (Doroshenko et al. 2022).
    """
    from dp_accounting.pld import privacy_loss_distribution as pld  # noqa: PLC0415 - an extra

    above = _coarser_pmf(made._pmf_remove, width)  # noqa: SLF001
    below = None if made._symmetric else _coarser_pmf(made._pmf_add, width)  # noqa: SLF001
    return pld.PrivacyLossDistribution(above, below)


def _coarser_pmf(pmf: Any, width: float) -> Any:
    from dp_accounting.pld import pld_pmf  # noqa: PLC0415 - an extra

    dense = pmf.to_dense_pmf()
    fine, probs = dense._discretization, dense._probs  # noqa: SLF001
    factor = round(width / fine)
    point, rest = np.divmod(dense._lower_loss + np.arange(len(probs)), factor)  # noqa: SLF001
    up = np.expm1(-rest * fine) / math.expm1(-width)
    start, size = int(point[0]), int(point[-1] - point[0]) + 2
    split = np.bincount(point - start, weights=probs * (1 - up), minlength=size)
    split += np.bincount(point - start + 1, weights=probs * up, minlength=size)
    return pld_pmf.DensePLDPmf(width, start, split, dense._infinity_mass, True)  # noqa: SLF001


@lru_cache(maxsize=16)
def _one_round(noise: float, q: float, replaced: bool, width: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as pld  # noqa: PLC0415 - an extra

    made = pld.from_gaussian_mechanism(
        standard_deviation=noise, sampling_prob=q, value_discretization_interval=width
    )
    return _spliced(made) if replaced and q < 1 else made


def grid(noise: float, q: float) -> float:
    """Return the width of the grid of losses.

    It follows the standard deviation of a round's loss, q √(exp(1 / z²) - 1): rounding then adds
    less than a part in a thousand over 10,000 rounds. It does not depend on the number of rounds:
    epsilon must not decrease from one round to the next. Rare large losses, of a small q under
    little noise, make it wider, so that the time of a computation is bounded.
    """
    spread = q * math.sqrt(math.expm1(min(noise**-2, 20.0)))
    tail = min(10 / noise + noise**-2 / 2, 700.0)  # the loss of a client that is drawn
    return max(min(5e-3 * math.sqrt(spread), 2e-2), math.log1p(q * math.expm1(tail)) / MOST_BINS)


def _spliced(made: Any) -> Any:
    """The pair that dominates both directions: see above.

    The mass at 0 is what is left. Both directions have the same divergence at 0, the total
    variation, so the masses of the other distribution add up to 1 as well.
    """
    from dp_accounting.pld import pld_pmf  # noqa: PLC0415 - an extra
    from dp_accounting.pld import privacy_loss_distribution as pld  # noqa: PLC0415

    above, below = made._pmf_remove.to_dense_pmf(), made._pmf_add.to_dense_pmf()  # noqa: SLF001
    positive = above._probs[max(0, 1 - above._lower_loss) :]  # noqa: SLF001
    negative = below._probs[: max(0, -below._lower_loss)]  # noqa: SLF001
    lost = above._infinity_mass  # noqa: SLF001
    rest = 1 - lost - positive.sum() - negative.sum()
    probs = np.concatenate([negative, [max(rest, 0.0)], positive])
    width, start = above._discretization, min(below._lower_loss, 0)  # noqa: SLF001
    return pld.PrivacyLossDistribution(pld_pmf.DensePLDPmf(width, start, probs, lost, True))
