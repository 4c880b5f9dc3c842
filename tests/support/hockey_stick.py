"""How far two outputs of a noisy sum are apart: an oracle for privacy claims, in numpy alone.

One release is a mixture of Gaussians, whose means are the possible sums in units of the clip. Its
output is put into bins, which can only hide a difference; the privacy loss of a bin is exact, and
its distribution over several releases follows by a Fourier transform.
"""

import math
from collections.abc import Mapping

import numpy as np

Mixture = Mapping[float, float]
"""Mean in units of the clip → probability."""

_BINS = 6000
_REACH = 9.0  # standard deviations of the noise on both sides: mass of 1e-18 beyond


def gaussian_delta(epsilon, sigma):
    """δ(ε) of one Gaussian of sensitivity 1: Balle and Wang 2018, Theorem 8."""
    return cdf(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * cdf(
        -0.5 / sigma - epsilon * sigma
    )


def cdf(x):
    return math.erfc(-x / math.sqrt(2)) / 2


def delta(one: Mixture, other: Mixture, sigma: float, rounds: int, epsilon: float) -> float:
    """The larger δ(ε) of both directions, after `rounds` independent releases."""
    p, q = binned(one, other, sigma)
    return max(_composed(p, q, rounds, epsilon), _composed(q, p, rounds, epsilon))


def binned(one, other, sigma):
    """Probabilities of both mixtures in the same bins."""
    means = [*one, *other]
    edges = np.linspace(min(means) - _REACH * sigma, max(means) + _REACH * sigma, _BINS + 1)
    return [_masses(mixture, edges, sigma) for mixture in (one, other)]


def _masses(mixture, edges, sigma):
    found = np.zeros(len(edges) - 1)
    for mean, share in mixture.items():
        found += share * _between((edges - mean) / sigma)
    return found


def _between(x):
    """Normal probability between neighbours of x, by the tail that is smaller."""
    erfc = np.vectorize(math.erfc, otypes=[np.float64])
    upper, lower = erfc(x / math.sqrt(2)) / 2, erfc(-x / math.sqrt(2)) / 2
    return np.where(x[1:] > 0, upper[:-1] - upper[1:], lower[1:] - lower[:-1])


def _composed(p, q, rounds, epsilon):
    kept = (p > 1e-300) & (q > 1e-300)
    return composed(p[kept], np.log(p[kept] / q[kept]), rounds, epsilon)


def composed(p, loss, rounds, epsilon):
    """δ(ε) of `rounds` independent losses, each with these probabilities."""
    if rounds == 1:
        return float(np.sum(p * -np.expm1(np.minimum(epsilon - loss, 0.0))))
    step = max(epsilon, 0.02) / (150 * math.sqrt(rounds))
    mean = float(p @ loss)
    spread = math.sqrt(float(p @ (loss - mean) ** 2) * rounds)
    half = 12 * spread + 2 * float(np.abs(loss).max()) + 60 * step
    size = 1 << math.ceil(math.log2(2 * half / step))
    centre = round(mean / step)
    pmf = np.bincount((np.rint(loss / step).astype(int) - centre) % size, weights=p, minlength=size)
    total = np.fft.irfft(np.fft.rfft(pmf) ** rounds, size)
    place = np.arange(size)
    place[place >= size // 2] -= size
    summed = (place + rounds * centre) * step
    return float(np.sum(total * -np.expm1(np.minimum(epsilon - summed, 0.0))))
