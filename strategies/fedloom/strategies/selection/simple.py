"""Simple policies: uniform, by data size, by deadline, sticky.

References:
    McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized
    Data, https://arxiv.org/abs/1602.05629, Algorithm 1 (a random set of m clients).
    Li et al. 2020, On the Convergence of FedAvg on Non-IID Data,
    https://arxiv.org/abs/1907.02189, section 3.3 (sampling by data share).
    Nishio and Yonetani 2019, Client Selection for Federated Learning with Heterogeneous
    Resources in Mobile Edge, https://arxiv.org/abs/1804.08333, section III (clients that fit the
    deadline; here measured in earlier rounds).
    He et al. 2023, GlueFL: Reconciling Client Sampling and Model Masking for Bandwidth Efficient
    Federated Learning, https://arxiv.org/abs/2212.01523, section 3.1 (sticky sampling; here the
    sticky group is the last cohort).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedloom.strategies.checks import check_count, check_number, check_share
from fedloom.strategies.selection.base import Fact, Occasion, Places
from fedloom.strategies.selection.draws import shuffled, sizes, uniformly, weighted


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """Every subset and order is equally likely (McMahan et al. 2017)."""

    name: ClassVar[str] = "uniform"
    needs: ClassVar[frozenset[Fact]] = frozenset()

    def choose(self, occasion: Occasion, count: int) -> Places:
        """Draw; see `Selection.choose`."""
        return uniformly(occasion, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class BySize:
    """Draws in proportion to the number of examples, without replacement (Li et al. 2020).

    A client that never took part counts with the mean of those that did.
    """

    name: ClassVar[str] = "size"
    needs: ClassVar[frozenset[Fact]] = frozenset({"examples"})

    def choose(self, occasion: Occasion, count: int) -> Places:
        """Draw; see `Selection.choose`."""
        return weighted(occasion, sizes(occasion.known), count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """Uniform among clients that should meet the deadline (Nishio, Yonetani 2019).

    Clients that never took part are included. If there are too few, the fastest others follow.

    Attributes:
        share: of the round's deadline that a client may have taken, in (0, 1].
        retry_rounds: a client that was too slow is tried again every so many rounds after it
            last took part; 0 for never.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: a setting is out of range.
    """

    name: ClassVar[str] = "deadline"
    needs: ClassVar[frozenset[Fact]] = frozenset({"seconds"})

    share: float = 0.9
    retry_rounds: int = 0

    def __post_init__(self) -> None:
        check_number("share", self.share, above=0)
        check_share("share", self.share)
        check_count("retry_rounds", self.retry_rounds, at_least=0)

    def choose(self, occasion: Occasion, count: int) -> Places:
        """Draw; see `Selection.choose`."""
        known = occasion.known
        fits = ~(known.seconds > self.share * occasion.deadline_s)  # not measured: NaN fits
        if self.retry_rounds:
            fits |= (occasion.round - known.last_round) % self.retry_rounds == 0
        chosen = uniformly(occasion, min(count, int(fits.sum())), np.flatnonzero(fits))
        slow = np.flatnonzero(~fits)
        fastest = slow[np.argsort(known.seconds[slow], kind="stable")]
        return np.concatenate([chosen, fastest[: count - len(chosen)]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sticky:
    """A share of the cohort from the last committed round's clients, the others from outside it.

    Repeated clients download less if models are sent as differences.

    Attributes:
        share: of the places for the last round's clients, as far as they are available, 0 to 1.

    Raises:
        TypeError: the share is not a number.
        ValueError: it is out of range.
    """

    name: ClassVar[str] = "sticky"
    needs: ClassVar[frozenset[Fact]] = frozenset({"rounds"})

    share: float = 0.5

    def __post_init__(self) -> None:
        check_share("share", self.share)

    def choose(self, occasion: Occasion, count: int) -> Places:
        """Draw; see `Selection.choose`."""
        known = occasion.known
        last = (known.last_round > 0) & (known.last_round == known.latest_round)
        inside, outside = np.flatnonzero(last), np.flatnonzero(~last)
        keep = min(int(self.share * count + 0.5), len(inside))
        keep = max(keep, count - len(outside))
        kept = uniformly(occasion, keep, inside)
        new = uniformly(occasion, count - keep, outside, part=1)
        return shuffled(occasion, np.concatenate([kept, new]))
