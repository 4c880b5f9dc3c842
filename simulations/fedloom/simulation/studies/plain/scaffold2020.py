"""SCAFFOLD, FedAvg and FedProx (Karimireddy et al. 2020, Algorithm 1), in plain numpy.

Local steps y ← y − η(g(y) − c_i + c); then c_i⁺ = c_i − c + (x − y) / (Kη), its option II; then
x ← x + mean(y − x) over the cohort S and c ← c + |S|/N · mean(c_i⁺ − c_i). FedAvg has c = c_i = 0;
FedProx adds μ(y − x) to the gradient. SGD is FedAvg with one step on all of a client's examples.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from .local_sgd import Client, train
from .softmax import Floats


def models(
    clients: Sequence[Client], start: Floats, rng: np.random.Generator, *, rounds: int,
    cohort: int, epochs: int, batch: int, rate: float, mu: float = 0.0, control: bool = False,
) -> Iterator[Floats]:  # fmt: skip
    """The model after each round.

    Args:
        clients: examples of each.
        start: the initial model.
        rng: for cohorts and batches.
        rounds: number of rounds.
        cohort: |S|.
        epochs: of local training.
        batch: examples of a step; 0 for all.
        rate: η.
        mu: FedProx's μ.
        control: SCAFFOLD's control variates.
    """
    model, c = start.copy(), np.zeros_like(start)
    own = np.zeros((len(clients), *start.shape))
    for _ in range(rounds):
        moves, changes = np.zeros_like(model), np.zeros_like(model)
        for k in rng.choice(len(clients), cohort, replace=False):
            there, steps = train(
                rng, model, clients[k], rate=rate, batch=batch or len(clients[k][1]), epochs=epochs,
                mu=mu, shift=c - own[k],
            )  # fmt: skip
            moves += (there - model) / cohort
            if control:
                change = (model - there) / (steps * rate) - c
                own[k] += change
                changes += change / cohort
        model = model + moves
        c += cohort / len(clients) * changes
        yield model
