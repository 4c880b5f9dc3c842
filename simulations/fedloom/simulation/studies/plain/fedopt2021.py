"""FedAvg with a server optimizer (Reddi et al. 2021, Algorithm 2), in plain numpy.

Legend: Δ mean of the clients' changes by examples, m momentum, v variance, η the server's rate.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from .local_sgd import Client, train
from .softmax import Floats


def models(
    clients: Sequence[Client], start: Floats, rng: np.random.Generator, *, rounds: int,
    cohort: int, epochs: int, batch: int, rate: float, optimizer: str, server_rate: float,
    beta_1: float = 0.9, beta_2: float = 0.99, tau: float = 1e-3,
) -> Iterator[Floats]:  # fmt: skip
    """The model after each round.

    Args:
        clients: examples of each.
        start: the initial model.
        rng: for cohorts and batches.
        rounds: number of rounds.
        cohort: clients of a round.
        epochs: of local training.
        batch: examples of a step.
        rate: of a step.
        optimizer: `fedavg`, `fedavgm`, `fedadagrad`, `fedadam` or `fedyogi`.
        server_rate: η.
        beta_1: decay of m; FedAdagrad's is 0.
        beta_2: decay of v.
        tau: τ.
    """
    model, m, v = start.copy(), np.zeros_like(start), np.full_like(start, tau**2)
    for _ in range(rounds):
        delta, weight = np.zeros_like(model), 0
        for k in rng.choice(len(clients), cohort, replace=False):
            there, _ = train(rng, model, clients[k], rate=rate, batch=batch, epochs=epochs)
            delta += len(clients[k][1]) * (there - model)
            weight += len(clients[k][1])
        delta /= weight
        square = delta**2
        if optimizer == "fedavg":
            model = model + server_rate * delta
        elif optimizer == "fedavgm":
            m = beta_1 * m + delta
            model = model + server_rate * m
        else:
            m = beta_1 * m + (1 - beta_1) * delta
            v = {
                "fedadagrad": v + square,
                "fedadam": beta_2 * v + (1 - beta_2) * square,
                "fedyogi": v - (1 - beta_2) * square * np.sign(v - square),
            }[optimizer]
            model = model + server_rate * m / (np.sqrt(v) + tau)
        yield model
