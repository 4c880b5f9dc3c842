"""Poisson sampling: one independent secret coin for each client that is present when a round opens.

A client's coin depends on the round's key and the client's name alone. So a client that is added or
removed changes no other client's coin, and no drawn client displaces another: the number drawn is
not fixed, and it changes neither the noise nor the denominator of the mean. Clients that are away
are not in the round, whatever their coin: they are in it with a smaller probability still.

Not used: a binomial number of clients, and then a uniform subset of that size of all who are
present. That is the same only while exactly the population is present; with more, an added client
displaces another one, which moves the sum by twice the clip.

References:
    Mironov, Talwar, Zhang 2019, Rényi Differential Privacy of the Sampled Gaussian Mechanism,
    https://arxiv.org/abs/1908.10530, section 3 (the mechanism whose cost is accounted).
    Aumasson et al. 2015, RFC 7693, section 2.9 (keyed BLAKE2, as the pseudorandom function).
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.privacy.streams import Stream

_KEY_BYTES: Final = 32
_WORD_BYTES: Final = 8


def threshold(goal: int, population: int) -> int:
    """Return the number of 64-bit words below which a coin draws: at most goal / population.

    Args:
        goal: clients expected of the population, 1 to `population`.
        population: number of clients.
    """
    return min(goal * 2**64 // population, 2**64)


def words(stream: Stream, round: int, names: Sequence[str]) -> list[int]:  # noqa: A002 - the term
    """Return the coin of each client as an integer that is uniform below 2^64.

    Args:
        stream: of the run's secret.
        round: its number.
        names: of the clients, in any order.
    """
    fresh = blake2b(key=stream("coins", round, 0, _KEY_BYTES), digest_size=_WORD_BYTES)
    found = []
    for name in names:
        coin = fresh.copy()  # a fifth faster than hashing the key for each client
        coin.update(name.encode())
        found.append(int.from_bytes(coin.digest(), "little"))
    return found


def drawn(
    stream: Stream,
    round: int,  # noqa: A002 - the field's word
    names: Sequence[str],
    *,
    goal: int,
    population: int,
) -> NDArray[np.intp]:
    """Return the places of the drawn clients: each with probability goal / population.

    Args:
        stream: of the run's secret.
        round: its number.
        names: of the clients that are present, all different, at any number.
        goal: clients expected of the population.
        population: number of clients in the privacy claim.

    Returns:
        intp [0 … len(names)], ascending; empty if no client is drawn.
    """
    below = threshold(goal, population)
    coins = words(stream, round, names)
    return np.array([place for place, word in enumerate(coins) if word < below], np.intp)
