"""The cost of a run's releases: epsilon by Google's dp-accounting, and calibrated noise.

dp-accounting computes all figures. Of two bounds for sampled rounds the smaller one is taken: Rényi
divergences, and distributions of the privacy loss (`loss_distributions`).

    none                  Gaussian releases of all rounds, composed exactly
    poisson               Poisson-subsampled Gaussian
    without_replacement   Gaussian of a uniform subset of one size; neighbours replace a client,
                          which moves a sum by twice the clip
    dp_ftrl               a tree of Gaussian nodes, each client in one leaf of each tree: as many
                          Gaussian releases as the leaf's path has nodes, composed exactly
    dp_bandmf             one Gaussian release of C x, whose sensitivity follows from the matrix and
                          the participations that the server allows (`banded`)
    local                 Gaussian releases of one client, one in every round; any two updates
                          differ by at most twice the clip
    distributed           sums of discrete Gaussians, one in every round: only their concentrated
                          privacy is known, which is a Gaussian's Rényi divergence at each order

References:
    dp-accounting, https://github.com/google/differential-privacy/tree/main/python/dp_accounting
    Mironov, Talwar, Zhang 2019, Rényi Differential Privacy of the Sampled Gaussian Mechanism,
    https://arxiv.org/abs/1908.10530.
    Wang, Balle, Kasiviswanathan 2019, Subsampled Rényi Differential Privacy and Analytical
    Moments Accountant, https://arxiv.org/abs/1808.00087 (without replacement).
    Balle and Wang 2018, Improving the Gaussian Mechanism for Differential Privacy,
    https://arxiv.org/abs/1805.06530 (the exact curve of the Gaussian).
    Kairouz et al. 2021, https://arxiv.org/abs/2103.00039, appendix D (trees).
    Kairouz, Liu, Steinke 2021, https://arxiv.org/abs/2102.06387, Theorem 1 (distributed).
    Bun and Steinke 2016, https://arxiv.org/abs/1605.02065 (concentrated privacy).
"""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

from fedloom.strategies.privacy import loss_distributions
from fedloom.strategies.privacy.banded import Factor, factor
from fedloom.strategies.privacy.settings import Privacy

Relation: TypeAlias = Literal["zero-out", "add-or-remove", "replace"]

MOST_DISTRIBUTED: Final = 100.0
"""Epsilon by Rényi divergences above which the other bound is not computed: it takes seconds."""

SUM_GAP: Final = 1e-50
"""Bound of τ√d, by which sums of discrete Gaussians cost more than one, over the noise multiplier:
of shares of at least 4 steps, up to 128 of them, for any model (`masking.noise.sum_gap`)."""

LEAST_NOISE: Final = 1e-3
"""Noise multiplier below which none is searched."""

MISSING = (
    "Expected the package dp-accounting to compute epsilon, got none. "
    "Install it: pip install 'fedloom[privacy]'"
)


class MissingAccountant(ImportError):  # noqa: N818 - named after what is missing
    """dp-accounting is not installed."""


def library() -> Any:
    """Return dp-accounting.

    Raises:
        MissingAccountant: it is not installed.
    """
    try:
        import dp_accounting  # noqa: PLC0415 - an extra, and a second to import
        import dp_accounting.rdp  # noqa: PLC0415
    except ImportError as error:
        raise MissingAccountant(MISSING) from error
    return dp_accounting


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """The releases of a run, as far as their cost depends on them.

    Attributes:
        noise_multiplier: standard deviation of the noise over the clip.
        sampling: as `Privacy.sampling`.
        cohort: clients of a round, as expected (`poisson`) or exactly.
        population: number of clients from which cohorts are drawn.
        tree: rounds of a tree, for dp_ftrl.
        factor: matrix of the noise, for dp_bandmf.
        separation: of a client's rounds, for dp_bandmf.
        participations: rounds of a client at most; None for no limit.
        local: whether the noise is on each client's update.
        summed: whether the noise is a sum of discrete Gaussians, whose shape is not a Gaussian's.
    """

    noise_multiplier: float
    sampling: str = "none"
    cohort: int = 1
    population: int = 1
    tree: int | None = None
    factor: Factor | None = None
    separation: int = 1
    participations: int | None = None
    local: bool = False
    summed: bool = False

    @classmethod
    def of(
        cls, settings: Privacy, noise_multiplier: float, cohort: int, rounds: int | None = None
    ) -> "Releases":
        """Return the releases of a run with these settings.

        Args:
            settings: the [privacy] table.
            noise_multiplier: as given or calibrated.
            cohort: clients of a round.
            rounds: training rounds that the run wants, on which a banded matrix depends.

        Raises:
            ValueError: the mechanism is dp_bandmf, and `rounds` is missing.
        """
        made = None
        if settings.mechanism == "dp_bandmf":
            if rounds is None:
                raise ValueError("Expected the rounds of a run with dp_bandmf, got None.")
            made = factor(settings.num_bands, rounds)
        return cls(
            noise_multiplier=float(noise_multiplier),
            sampling=settings.sampling,
            cohort=cohort,
            population=settings.population or 1,
            tree=settings.restart_every,
            factor=made,
            separation=settings.separation or 1,
            participations=settings.participations,
            local=settings.is_local,
            summed=settings.in_sessions,
        )

    @property
    def q(self) -> float:
        """The probability that a client is in a round."""
        return min(self.cohort / self.population, 1.0)

    @property
    def relation(self) -> Relation:
        """The neighbouring relation: populations that differ in one client."""
        if self.local or self.sampling == "without_replacement":
            return "replace"
        return "add-or-remove" if self.sampling == "poisson" else "zero-out"


def epsilon(releases: Releases, rounds: int, delta: float) -> float:
    """Return epsilon after `rounds` rounds; infinity if dp-accounting finds no bound.

    Args:
        releases: of each round.
        rounds: committed, >= 0.
        delta: in (0, 1).

    Raises:
        MissingAccountant: dp-accounting is not installed.
    """
    if rounds == 0:
        return 0.0
    return _epsilon(releases, rounds, float(delta))


@lru_cache(maxsize=4096)
def _epsilon(releases: Releases, rounds: int, delta: float) -> float:
    first = _first_bound(releases, rounds, delta)
    if releases.sampling == "none" or first > MOST_DISTRIBUTED:
        return first
    return min(first, _second_bound(releases, rounds, delta))


def _second_bound(
    releases: Releases, rounds: int, delta: float, coarse: float = loss_distributions.FINE
) -> float:
    """By distributions of the loss, for sampled rounds; takes tenths of a second."""
    replaced = releases.sampling == "without_replacement"
    noise = releases.noise_multiplier / (2 if replaced else 1)
    with quiet():
        return loss_distributions.epsilon(
            noise, releases.q, rounds, delta, replaced=replaced, coarse=coarse
        )


def _first_bound(releases: Releases, rounds: int, delta: float) -> float:
    """Exact for composed Gaussians, of Rényi divergences for sampled ones; takes milliseconds."""
    with quiet():
        return _asked(library(), releases, releases.noise_multiplier, rounds, delta)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress dp-accounting's log lines about orders that it leaves out.

    Leaving out an order never makes epsilon smaller.
    """
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _asked(dp: Any, releases: Releases, z: float, rounds: int, delta: float) -> float:
    if releases.sampling == "none" and not releases.summed:
        # Composed Gaussians are one Gaussian: its curve is known exactly.
        noise = joint_noise(replace(releases, noise_multiplier=z), rounds)
        return float(dp.get_epsilon_gaussian(noise, delta))
    orders, rdp = rdp_of_round(releases)
    found, _ = dp.rdp.compute_epsilon(orders, rounds * rdp, delta)
    return float(found)


def joint_noise(releases: Releases, rounds: int) -> float:
    """Return the noise multiplier of the one Gaussian that costs as much as all rounds together.

    Args:
        releases: of rounds that are not sampled.
        rounds: at least 1.
    """
    return releases.noise_multiplier / sensitivity(releases, rounds)


@lru_cache(maxsize=256)
def rdp_of_round(releases: Releases) -> tuple[Any, Any]:
    """Return orders, and the Rényi divergences of one round at them; rounds add up.

    Args:
        releases: of rounds that are sampled, or whose noise is a sum.
    """
    dp = library()
    accountant = dp.rdp.RdpAccountant(neighboring_relation=_relation(dp, releases))
    accountant.compose(_event(dp, releases))
    return accountant._orders, accountant._rdp  # noqa: SLF001 - it offers no other way to scale them


def sensitivity(releases: Releases, rounds: int) -> float:
    """Return how far a client moves all rounds together: a norm in units of the clip and the noise.

    Args:
        releases: of rounds that are not sampled.
        rounds: at least 1.
    """
    if releases.factor is not None:
        return releases.factor.sensitivity(rounds, releases.separation, releases.participations)
    each = 2.0 if releases.local else 1.0  # any two updates are twice the clip apart
    return each * math.sqrt(_nodes(releases, rounds))


def _nodes(releases: Releases, rounds: int) -> int:
    """Return the most Gaussian releases that a client is in; in each tree those of one leaf."""
    if releases.tree is None:
        return rounds
    whole, part = divmod(rounds, releases.tree)
    each, last = releases.tree.bit_length(), part.bit_length()
    most = releases.participations
    return min(whole, most) * each + (last if whole < most else 0) if most else whole * each + last


def _event(dp: Any, releases: Releases) -> Any:
    z, cohort, population = releases.noise_multiplier, releases.cohort, releases.population
    if releases.summed:
        return dp.GaussianDpEvent(1 / (1 / z + SUM_GAP))
    if releases.sampling == "poisson":
        return dp.PoissonSampledDpEvent(releases.q, dp.GaussianDpEvent(z))
    # Replacing a client changes the sum by up to twice the clip.
    return dp.SampledWithoutReplacementDpEvent(population, cohort, dp.GaussianDpEvent(z / 2))


def _relation(dp: Any, releases: Releases) -> Any:
    relations = dp.NeighboringRelation
    return {
        "zero-out": relations.REPLACE_SPECIAL,
        "add-or-remove": relations.ADD_OR_REMOVE_ONE,
        "replace": relations.REPLACE_ONE,
    }[releases.relation]


def calibrate(releases: Releases, rounds: int, delta: float, target: float) -> float:
    """Return the least noise multiplier, to four digits, with epsilon at most `target`.

    Args:
        releases: their noise multiplier is ignored.
        rounds: of the whole run, >= 1.
        delta: in (0, 1).
        target: epsilon, > 0.

    Raises:
        MissingAccountant: dp-accounting is not installed.
        ValueError: a multiplier of a million is not enough.
    """

    def first(z: float) -> float:
        return _first_bound(replace(releases, noise_multiplier=z), rounds, delta)

    # The second bound alone for sampled rounds: it is the smaller one, and quicker where it counts.
    def guess(z: float) -> float:
        return _second_bound(
            replace(releases, noise_multiplier=z), rounds, delta, loss_distributions.COARSE
        )

    def fine(z: float) -> float:
        return _second_bound(replace(releases, noise_multiplier=z), rounds, delta)

    try:
        if releases.sampling != "none" and target <= MOST_DISTRIBUTED:
            high = _least(guess, target, start=1.0, step=2.0)
            high = _rounded_up(_least(fine, target, start=high, step=1.002))
            if epsilon(replace(releases, noise_multiplier=high), rounds, delta) <= target:
                return high
        high = _least(first, target, start=1.0, step=2.0)
    except OverflowError:
        raise ValueError(
            f"Expected a target_epsilon that noise can reach, got {target:g} with delta = "
            f"{delta:g} over {rounds} rounds. Raise it, or train fewer rounds."
        ) from None
    return _rounded_up(high)


def _least(cost: Callable[[float], float], target: float, *, start: float, step: float) -> float:
    """The least noise with a cost of at most `target`, to four digits.

    Args:
        cost: falls with the noise.
        target: > 0.
        start: of the search.
        step: factor between the first guesses.

    Raises:
        OverflowError: a multiplier of a million is not enough.
    """
    low, high, most, least = 0.0, start, math.nan, cost(start)
    while least > target:
        low, high, most = high, step * high, least
        if high > 1e6:
            raise OverflowError
        least = cost(high)
    while low == 0:
        if high < LEAST_NOISE:
            return high
        guess = high / step
        found = cost(guess)
        if found > target:
            low, most = guess, found
        else:
            high, least = guess, found
    while high - low > 3e-5 * high:
        middle = _between(low, high, most, least, target)
        found = cost(middle)
        if found <= target:
            high, least = middle, found
        else:
            low, most = middle, found
    return high


def _between(low: float, high: float, most: float, least: float, target: float) -> float:
    """The next guess: epsilon is almost a power of the noise, so a secant converges fast."""
    if not (low > 0 and math.isfinite(most) and least > 0):
        return (low + high) / 2
    share = math.log(most / target) / math.log(most / least)
    guess = low * (high / low) ** share
    # A little past the guess, on either side in turn, so that both ends of the bracket move.
    step = (high - low) * 0.02
    guess += step if share > 0.5 else -step
    return float(min(max(guess, low + step), high - step))


def _rounded_up(value: float, digits: int = 5) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    return float(f"{math.ceil(value / unit) * unit:.{digits}g}")


def affordable(releases: Releases, rounds: int, delta: float, budget: float) -> int:
    """Return the number of rounds with epsilon at most `budget`.

    Raises:
        MissingAccountant: dp-accounting is not installed.
    """
    if epsilon(releases, rounds, delta) <= budget:
        return rounds
    low, high = 0, rounds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon(releases, middle, delta) <= budget else (low, middle)
    return low
