"""Poisson sampling: the number of clients in a round.

Drawing every client by an independent coin equals drawing their number, which is binomial, and then
a uniform subset of that size, which rounds draw anyway. If more clients are available than the
population, the probability of each is only smaller.

References:
    Zhu and Wang 2019, Poisson Subsampled Rényi Differential Privacy, ICML.
"""

import numpy as np

from fedloom.strategies.privacy.streams import ALIGNMENT, Stream

_BLOCK = 1 << 16


def drawn(stream: Stream, round: int, goal: int, population: int) -> int:  # noqa: A002 - the field's word
    """Return the number of clients of a round: one coin of probability goal / population for each.

    Args:
        stream: of the run's secret.
        round: its number.
        goal: clients expected.
        population: number of all clients.

    Returns:
        0 to `population`; with 0 the round's sum contains no client's update.
    """
    if goal >= population:
        return population
    threshold = np.uint64(goal * 2**64 // population)
    total = 0
    for start in range(0, population, _BLOCK):
        count = min(_BLOCK, population - start)
        size = -(-8 * count // ALIGNMENT) * ALIGNMENT
        words = np.frombuffer(stream("coins", round, 8 * start, size), "<u8")[:count]
        total += int(np.count_nonzero(words < threshold))
    return total
