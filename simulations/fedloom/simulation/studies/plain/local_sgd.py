"""A client's passes over its examples in batches, for the plain loops."""

from collections.abc import Iterable, Iterator

import numpy as np

from .softmax import Floats, Labels, gradient

Client = tuple[Floats, Labels]


def batches(rng: np.random.Generator, size: int, batch: int, epochs: int) -> Iterator[np.ndarray]:
    """Indices of every batch of some epochs, each in an order of its own."""
    for _ in range(epochs):
        order = rng.permutation(size)
        for start in range(0, size, batch):
            yield order[start : start + batch]


def train(
    rng: np.random.Generator, model: Floats, client: Client, *, rate: float, batch: int,
    epochs: int, mu: float = 0.0, shift: Floats | float = 0.0,
) -> tuple[Floats, int]:  # fmt: skip
    """A client's model after its epochs, and the number of its steps.

    Args:
        rng: for the order of its examples.
        model: to begin with.
        client: its examples.
        rate: of a step.
        batch: examples of a step.
        epochs: passes over the examples.
        mu: weight of the distance from `model`, which is added to the gradient.
        shift: added to the gradient.
    """
    order = batches(rng, len(client[1]), batch, epochs)
    return descend(model, client, order, rate=rate, mu=mu, shift=shift)


def descend(
    model: Floats, client: Client, order: Iterable[np.ndarray], *, rate: float, mu: float = 0.0,
    shift: Floats | float = 0.0,
) -> tuple[Floats, int]:  # fmt: skip
    """The same with the indices of every batch, in order."""
    (x, y), found, steps = client, model.copy(), 0
    for chosen in order:
        found -= rate * (gradient(found, x[chosen], y[chosen]) + shift + mu * (found - model))
        steps += 1
    return found, steps
