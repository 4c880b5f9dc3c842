"""FedAvg and FedProx with stragglers (Li et al. 2020, Algorithms 1 and 2), in plain numpy.

A round selects a cohort, trains its devices on F_k(w) + μ/2 ‖w − w_t‖², and averages their models
by their numbers of examples (section 5.1). A straggler has time for a part of the E epochs: FedAvg
drops it, FedProx averages what it has (section 5.2).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .local_sgd import Client, descend
from .softmax import Floats


class Turn(NamedTuple):
    """A device's part in a round.

    Attributes:
        client: its index.
        epochs: for which it has time.
        straggles: whether it is one of the round's stragglers.
    """

    client: int
    epochs: int
    straggles: bool = False


Batches = Callable[[int, Turn], Iterable[np.ndarray]]
"""(number of the round, from 1, and the turn) -> the indices of every batch, in order."""


def models(
    clients: Sequence[Client],
    start: Floats,
    rounds: Iterable[Sequence[Turn]],
    batches: Batches,
    *,
    rate: float,
    mu: float = 0.0,
    drop: bool = False,
) -> Iterator[Floats]:
    """The model after each round.

    Args:
        clients: examples of each.
        start: the initial model.
        rounds: the cohort of each.
        batches: of a device's training.
        rate: of a step.
        mu: μ.
        drop: whether stragglers are dropped, as in FedAvg.
    """
    model = start.copy()
    for number, cohort in enumerate(rounds, 1):
        total, weight = np.zeros_like(model), 0
        for turn in cohort:
            if drop and turn.straggles:
                continue
            client = clients[turn.client]
            there, _ = descend(model, client, batches(number, turn), rate=rate, mu=mu)
            total += len(client[1]) * there
            weight += len(client[1])
        model = total / weight
        yield model
