"""The cost of a run's releases: epsilon by Google's dp-accounting, and calibrated noise.

The mechanisms are passed to dp-accounting as events, which computes all figures.

    none                  Gaussian releases of all rounds, composed exactly
    poisson               Poisson-subsampled Gaussian, Rényi accounting
    without_replacement   Gaussian of a uniform subset of one size, Rényi accounting; neighbours
                          replace a client, which moves a sum by twice the clip
    dp_ftrl               a tree of Gaussian nodes, each client in one leaf of each tree
    local                 Gaussian releases of one client, one in every round; any two updates
                          differ by at most twice the clip

References:
    dp-accounting, https://github.com/google/differential-privacy/tree/main/python/dp_accounting
    Mironov, Talwar, Zhang 2019, Rényi Differential Privacy of the Sampled Gaussian Mechanism,
    https://arxiv.org/abs/1908.10530.
    Wang, Balle, Kasiviswanathan 2019, Subsampled Rényi Differential Privacy and Analytical
    Moments Accountant, https://arxiv.org/abs/1808.00087 (without replacement).
    Balle and Wang 2018, Improving the Gaussian Mechanism for Differential Privacy,
    https://arxiv.org/abs/1805.06530 (the exact curve of the Gaussian).
    Kairouz et al. 2021, https://arxiv.org/abs/2103.00039, appendix D (trees).
"""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from fedloom.strategies.privacy.settings import Privacy

Relation: TypeAlias = Literal["zero-out", "add-or-remove", "replace"]

MISSING = (
    "Expected the package dp-accounting to compute epsilon, got none. "
    "Install it: pip install 'fedloom[privacy]'"
)


class MissingAccountant(ImportError):  # noqa: N818 - named after what is missing
    """dp-accounting is not installed."""


def _library() -> Any:
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
        local: whether the noise is on each client's update.
    """

    noise_multiplier: float
    sampling: str = "none"
    cohort: int = 1
    population: int = 1
    tree: int | None = None
    local: bool = False

    @classmethod
    def of(cls, settings: Privacy, noise_multiplier: float, cohort: int) -> "Releases":
        """Return the releases of a run with these settings."""
        return cls(
            noise_multiplier=float(noise_multiplier),
            sampling=settings.sampling,
            cohort=cohort,
            population=settings.population or 1,
            tree=settings.restart_every,
            local=not settings.central,
        )

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
    dp, z = _library(), releases.noise_multiplier
    with _quiet():
        return _asked(dp, releases, z, rounds, delta)


@contextmanager
def _quiet() -> Iterator[None]:
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
    if releases.tree is None and releases.sampling == "none":
        # Composed Gaussians are one Gaussian: its curve is known exactly.
        halved = z / 2 if releases.local else z
        return float(dp.get_epsilon_gaussian(halved / math.sqrt(rounds), delta))
    if releases.tree is not None:
        return _of_trees(dp, releases, rounds, delta)
    orders, rdp = _rdp_of_round(releases)
    found, _ = dp.rdp.compute_epsilon(orders, rounds * rdp, delta)
    return float(found)


@lru_cache(maxsize=256)
def _rdp_of_round(releases: Releases) -> tuple[Any, Any]:
    """The orders and the Rényi divergences of one round; rounds add up."""
    dp = _library()
    accountant = dp.rdp.RdpAccountant(neighboring_relation=_relation(dp, releases))
    accountant.compose(_event(dp, releases))
    return accountant._orders, accountant._rdp  # noqa: SLF001 - it offers no other way to scale them


def _of_trees(dp: Any, releases: Releases, rounds: int, delta: float) -> float:
    assert releases.tree is not None
    whole, part = divmod(rounds, releases.tree)
    accountant = dp.rdp.RdpAccountant(neighboring_relation=_relation(dp, releases))
    for steps, count in ((releases.tree, whole), (part, 1 if part else 0)):
        if count:
            event = dp.SingleEpochTreeAggregationDpEvent(releases.noise_multiplier, steps)
            accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def _event(dp: Any, releases: Releases) -> Any:
    z, cohort, population = releases.noise_multiplier, releases.cohort, releases.population
    if releases.sampling == "poisson":
        return dp.PoissonSampledDpEvent(min(cohort / population, 1.0), dp.GaussianDpEvent(z))
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
    low, high, most = 0.0, 1.0, math.nan

    def cost(z: float) -> float:
        return epsilon(_with_noise(releases, z), rounds, delta)

    while (least := cost(high)) > target:
        low, high, most = high, 2 * high, least
        if high > 1e6:
            raise ValueError(
                f"Expected a target_epsilon that noise can reach, got {target:g} with delta = "
                f"{delta:g} over {rounds} rounds. Raise it, or train fewer rounds."
            )
    while high - low > 1e-5 * high:
        middle = _between(low, high, most, least, target)
        found = cost(middle)
        if found <= target:
            high, least = middle, found
        else:
            low, most = middle, found
    return _rounded_up(high)


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


def _with_noise(releases: Releases, noise_multiplier: float) -> Releases:
    return Releases(
        noise_multiplier=noise_multiplier,
        sampling=releases.sampling,
        cohort=releases.cohort,
        population=releases.population,
        tree=releases.tree,
        local=releases.local,
    )


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
