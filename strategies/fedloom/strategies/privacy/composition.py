"""The cost to a client of several runs together: mechanisms composed, not epsilons added.

Every run's claim is about one neighbouring relation. They have one in common, `zero-out`: what the
client contributes to all the runs, its part in the number within an adaptive clip included, is
replaced by zeros.

    zero-out        as it is
    add-or-remove   the same pair of distributions: the sum of a round in which the client's coin
                    fails is that of a round to which it contributes zeros
    replace         zeros are one of the contributions that may replace the client's

So the claims of all runs hold under zero-out, and compose under it. Runs that all claim the same
relation compose under that one.

A client that works for one run is away from another run's rounds at that time. Whatever the first
run published, the client is then drawn by the second with its probability or a smaller one, which
costs no more: divergences are jointly convex. So it holds for runs at the same time.

Composed Gaussians are one Gaussian, whose curve is known exactly. With sampled rounds the smaller
of two bounds is taken: Rényi divergences, which add up order by order, and distributions of the
privacy loss, which are convolved. Of sums of discrete Gaussians only the divergences are known.

References:
    Mironov 2017, Rényi Differential Privacy, https://arxiv.org/abs/1702.07476, Proposition 1.
    Zhu, Dong, Wang 2022, Optimal Accounting of Differential Privacy via Characteristic Function,
    https://arxiv.org/abs/2106.08567, Theorem 10 (adaptive composition of dominating pairs).
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache

from fedloom.strategies.privacy import accounting, loss_distributions
from fedloom.strategies.privacy.accounting import MOST_DISTRIBUTED, Relation, Releases
from fedloom.strategies.privacy.settings import Privacy


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What a run has released, or plans to release.

    Attributes:
        releases: of each round.
        rounds: number of them, >= 0.
    """

    releases: Releases
    rounds: int

    @classmethod
    def of(
        cls,
        settings: Privacy,
        noise_multiplier: float,
        goal: int,
        rounds: int,
        *,
        wanted: int | None = None,
    ) -> "Spending":
        """Return the spending of a run with these settings.

        Args:
            settings: the [privacy] table.
            noise_multiplier: as given or calibrated.
            goal: clients of a round.
            rounds: released.
            wanted: training rounds of the run's specification, on which a banded matrix depends.

        Raises:
            ValueError: the mechanism is dp_bandmf, and `wanted` is missing.
        """
        return cls(releases=Releases.of(settings, noise_multiplier, goal, wanted), rounds=rounds)


def composed_epsilon(spendings: Iterable[Spending], delta: float) -> float:
    """Return epsilon of several runs together; that of a single one is the run's own.

    Args:
        spendings: of runs with a client in common, in any order.
        delta: in (0, 1), of all of them together.

    Raises:
        MissingAccountant: dp-accounting is not installed.
    """
    return _epsilon(frozenset(_merged(spendings).items()), float(delta))


def common_relation(spendings: Iterable[Spending]) -> Relation:
    """Return the neighbouring relation under which runs compose."""
    found = {each.releases.relation for each in spendings if each.rounds}
    return found.pop() if len(found) == 1 else "zero-out"


def fitting_rounds(fits: Callable[[int], bool], rounds: int) -> int:
    """Return the largest number of rounds below `rounds` that fits; 0 if none does.

    Args:
        fits: whether a number of rounds does; monotone.
        rounds: that do not fit.
    """
    low, high = 0, rounds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _merged(spendings: Iterable[Spending]) -> Counter[tuple[Releases, int]]:
    """How often each (releases, rounds) occurs; equal sampled releases are one longer run."""
    sampled, found = Counter[Releases](), Counter[tuple[Releases, int]]()
    for each in spendings:
        if each.rounds and each.releases.sampling != "none":
            sampled[each.releases] += each.rounds
        elif each.rounds:  # a tree of 5 rounds twice is not a tree of 10
            found[each.releases, each.rounds] += 1
    for releases, rounds in sampled.items():
        found[releases, rounds] += 1
    return found


@lru_cache(maxsize=4096)
def _epsilon(merged: Collection[tuple[tuple[Releases, int], int]], delta: float) -> float:
    runs = sorted(
        ((releases, rounds) for (releases, rounds), count in merged for _ in range(count)), key=repr
    )
    if len(runs) < 2:
        return accounting.epsilon(*runs[0], delta) if runs else 0.0
    plain = [run for run in runs if run[0].sampling == "none" and not run[0].summed]
    summed = [run for run in runs if run[0].summed]
    sampled = [run for run in runs if run[0].sampling != "none"]
    noise = None
    if plain:
        noise = 1 / math.sqrt(math.fsum(accounting.joint_noise(*run) ** -2 for run in plain))
    with accounting.quiet():
        if summed:
            return _by_divergences([*summed, *sampled], noise, delta)
        if not sampled:
            assert noise is not None
            return float(accounting.library().get_epsilon_gaussian(noise, delta))
        first = _by_divergences(sampled, noise, delta)
        if first > MOST_DISTRIBUTED:
            return first
        return min(first, _by_distributions(sampled, noise, delta))


def _by_divergences(
    runs: Collection[tuple[Releases, int]], noise: float | None, delta: float
) -> float:
    parts = [(accounting.rdp_of_round(releases), rounds) for releases, rounds in runs]
    orders = parts[0][0][0]
    assert all(list(own) == list(orders) for (own, _), _ in parts)
    # A Gaussian's divergence at order α is α / (2 σ²).
    total = sum(rounds * rdp for (_, rdp), rounds in parts)
    if noise is not None:
        total = total + [order / (2 * noise**2) for order in orders]
    found, _ = accounting.library().rdp.compute_epsilon(orders, total, delta)
    return float(found)


def _by_distributions(
    sampled: Collection[tuple[Releases, int]], noise: float | None, delta: float
) -> float:
    losses, width = [], 0.0
    for releases, rounds in sampled:
        replaced = releases.sampling == "without_replacement"
        halved = releases.noise_multiplier / (2 if replaced else 1)
        losses.append(loss_distributions.composed(halved, releases.q, rounds, replaced=replaced))
    if noise is not None:
        width = loss_distributions.power_of_two(loss_distributions.grid(noise, 1.0))
        losses.append(loss_distributions.gaussian(noise, width))
    return float(loss_distributions.convolved(losses, width).get_epsilon_for_delta(delta))
