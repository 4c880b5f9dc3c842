"""Noise of masked sums: each member of a session adds a share of it, before its masks.

    σ(n) = z · (C · 2^s + √d / 2) / √h(n)

Legend: σ(n) standard deviation of a member's share, in steps of 2^-s; z noise multiplier; C clip;
d values of an update; s exponent; n members on the roster; h(n) the fewest of them that are honest
and in the sum.

Whichever members drop out or work with the server, the noise of at least h(n) others is in the sum.
Its standard deviation is z times the sensitivity of the sum: an update is at most C · 2^s long, and
rounding it to the grid adds at most half a step a value.

Shares are exact discrete Gaussians. Their sum is not one, but as far from it as `sum_gap` says.

References:
    Kairouz, Liu, Steinke 2021, The Distributed Discrete Gaussian Mechanism for Federated Learning
    with Secure Aggregation, https://arxiv.org/abs/2102.06387, Theorem 1.

Invariants: a share is never below σ(n); its bytes follow from the stream and the round alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final

from fedloom.strategies.exact.fixed_point import EXPONENT_LIMIT, Ints
from fedloom.strategies.exact.grid import SUM_BITS, Grid
from fedloom.strategies.exact.partial import Key, Partial
from fedloom.strategies.masking.sessions import LEAST_GROUP, honest
from fedloom.strategies.privacy.discrete import Sampler, fitted
from fedloom.strategies.privacy.release import DOOR_ERROR, grid_exponent
from fedloom.strategies.privacy.streams import Stream

LEAST_SIGMA: Final = 4.0
"""Least standard deviation of a share, in steps: `sum_gap` is then below 10^-66."""
TAIL: Final = 12.0
"""Standard deviations for which sums have room; more noise comes with probability 10^-32."""
_ROUNDED: Final = 2.0
"""Room for rounding: it may lengthen an update to twice the clip; models with more are refused."""
_FLOAT_ERROR: Final = Fraction(1, 10**9)


def share(noise_multiplier: float, members: int) -> float:
    """Return the noise multiplier of a member of a session: z / √h(n).

    Raises:
        ValueError: a session has more members than that.

    >>> round(share(1.0, 64), 4), round(share(1.0, 16), 4)
    (0.2132, 0.4082)
    """
    if members < LEAST_GROUP:
        raise ValueError(f"Expected at least {LEAST_GROUP} members in a session, got {members}.")
    return noise_multiplier / math.sqrt(honest(members))


def sum_gap(sigma: float, members: int) -> float:
    """Return τ, how far the sum of members' shares is from a discrete Gaussian.

    The concentrated privacy of the sum is ε²/2 with ε = Δ / (σ √n) + τ √d. Source: Theorem 1.

    Args:
        sigma: of each share, in steps, at least 1/2.
        members: whose shares are in the sum.
    """
    terms = (math.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, members))
    return 10 * math.fsum(terms)


def member_sampler(
    *, clip: float, noise_multiplier: float, members: int, exponent: int, size: int
) -> Sampler:
    """Return the sampler of a member's share.

    Args:
        clip: norm of an update, > 0.
        noise_multiplier: z of the run.
        members: on the roster.
        exponent: s.
        size: values of an update.

    Raises:
        ValueError: the share is out of range, or below `LEAST_SIGMA`: sums of such shares are not
            as private as their standard deviation says.
    """
    length = math.ldexp(clip * (1 + DOOR_ERROR), exponent) + math.sqrt(size) / 2
    sigma = share(noise_multiplier, members) * length
    if sigma < LEAST_SIGMA:
        raise ValueError(
            f"Expected noise of at least {LEAST_SIGMA:g} steps from each device, got {sigma:.3g} "
            f"steps of 2^{-exponent}."
        )
    return fitted(sigma)


@dataclass(frozen=True, slots=True)
class MemberNoise:
    """The share of one member of a session.

    Attributes:
        sampler: of `member_sampler`.
        stream: of this member and this body alone: shares of one stream would cancel.
        round: number of the round.
    """

    sampler: Sampler
    stream: Stream = field(repr=False)
    round: int

    def block(self, key: Key, start: int, stop: int) -> Ints:
        """Return the noise of the flat coordinates `start:stop` of a tensor, in steps."""
        return self.sampler.draw(self._source(key), start, stop)

    def add_to(self, partial: Partial) -> None:
        """Add the share to every coordinate that an update may have, sent or not."""
        for key in sorted(partial.specs):
            partial.add_noise(key, self._of(key))

    def _of(self, key: Key) -> Callable[[int, int], Ints]:
        return lambda start, stop: self.block(key, start, stop)

    def _source(self, key: Key) -> Any:
        purpose = f"session/{key[0]}/{key[1]}"

        def source(position: int, num_bytes: int) -> bytes:
            return self.stream(purpose, self.round, position, num_bytes)

        return source


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNoise:
    """The noise of a run's sessions, before the model is known.

    Attributes:
        clip: norm of an update, > 0.
        noise_multiplier: z.
        group: most members of a session.
        min_group: fewest.
    """

    clip: float
    noise_multiplier: float
    group: int
    min_group: int

    @property
    def reach(self) -> Fraction:
        """Bound of the noise of a session's sum, of `TAIL` standard deviations, with the rounding.

        In units of the values. Clips that are exceeded by `DOOR_ERROR` fit in it too.
        """
        sizes = range(self.min_group, self.group + 1)
        most = max(math.sqrt(n) * share(self.noise_multiplier, n) for n in sizes)
        longer = Fraction(self.clip) * Fraction(DOOR_ERROR)
        reach = Fraction(TAIL * _ROUNDED * most) * (Fraction(self.clip) + longer)
        return (reach + self.group * longer) * (1 + _FLOAT_ERROR)

    def on(self, grid: Grid) -> Grid:
        """Return the grid with room for the noise, and no finer than the noise needs."""
        least = share(self.noise_multiplier, self.group)
        finest = grid_exponent(least, self.clip, EXPONENT_LIMIT)
        return replace(grid, noise=self.reach, finest=finest)

    def sampler(self, exponent: int, members: int, size: int) -> Sampler:
        """Return the sampler of a member's share; see `member_sampler`."""
        return member_sampler(
            clip=self.clip,
            noise_multiplier=self.noise_multiplier,
            members=members,
            exponent=exponent,
            size=size,
        )

    def largest(self, exponent: int, size: int) -> float:
        """Return `TAIL` standard deviations of a share in the session where it is largest, steps.

        Args:
            exponent: s.
            size: values of an update.
        """
        members = min(range(self.min_group, self.group + 1), key=honest)
        return TAIL * self.sampler(exponent, members, size).sigma

    def steps(self, grid: Grid, members: int) -> float:
        """Return a member's share in steps, without what the rounding adds."""
        return math.ldexp(share(self.noise_multiplier, members) * self.clip, grid.exponent)

    def check(self, grid: Grid) -> None:
        """Refuse a grid that is too coarse for the shares of the largest session.

        Raises:
            ValueError: the message has what would fit.
        """
        if self._fits(grid):
            return
        remedies = [
            f"masking.sum_bits = {bits}" for bits in SUM_BITS if bits > grid.bits
            and self._fits(replace(grid, bits=bits))
        ][:1]  # fmt: skip
        for power in range(1, 20):
            louder = replace(self, noise_multiplier=self.noise_multiplier * 2**power)
            if louder._fits(louder.on(grid)):  # noqa: SLF001 - same class
                remedies.append(f"privacy.noise_multiplier = {louder.noise_multiplier:g}")
                break
        raise ValueError(
            f"Expected noise of at least {LEAST_SIGMA:g} steps from each device in masked sums of "
            f"{grid.bits} bits, got {self.steps(grid, self.group):.3g} steps of {grid.step:.4g} = "
            f"2^{-grid.exponent} in sessions of {self.group}: sums of coarser noise are not "
            f"private. Use {' or '.join(remedies)}."
        )

    def _fits(self, grid: Grid) -> bool:
        return self.steps(grid, self.group) >= LEAST_SIGMA

    def check_size(self, grid: Grid, size: int) -> None:
        """Refuse a model with so many values that rounding them would double the noise.

        Args:
            grid: of `on`.
            size: values of an update.

        Raises:
            ValueError: the message has what would fit.
        """
        most = self._largest(grid)
        if size <= most:
            return
        wider = (replace(grid, bits=bits) for bits in SUM_BITS if bits > grid.bits)
        fitting = [f"masking.sum_bits = {g.bits}" for g in wider if size <= self._largest(g)]
        remedies = [*fitting[:1], "a smaller masking.group", "fewer tensors (train.only)"]
        raise ValueError(
            f"Expected at most {most:,} values in an update with noise in masked sums of "
            f"{grid.bits} bits, got {size:,}: rounding them to steps of {grid.step:.4g} = "
            f"2^{-grid.exponent} would double the noise. Use {', or '.join(remedies)}."
        )

    def _largest(self, grid: Grid) -> int:
        """The most values of an update: √d / 2 is at most (_ROUNDED - 1) · C · 2^s."""
        return int((2 * (_ROUNDED - 1) * math.ldexp(self.clip, grid.exponent)) ** 2)
