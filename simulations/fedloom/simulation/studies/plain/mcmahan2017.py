"""FedAvg of the 2NN (McMahan et al. 2017, Algorithm 1), in plain numpy, float32.

A network is a list of (weight, bias); hidden layers have ReLU. Initial weights are uniform in
±1/√inputs.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .local_sgd import batches

Array = NDArray[np.float32]
Indices = NDArray[np.intp]
Network = list[tuple[Array, Array]]
SIZES = (784, 200, 200, 10)


def initial(rng: np.random.Generator, sizes: Sequence[int] = SIZES) -> Network:
    """A network with random weights."""
    made = []
    for inputs, outputs in pairwise(sizes):
        drawn = rng.uniform(-1, 1, (inputs + 1, outputs)) / np.sqrt(inputs)
        made.append((drawn[1:].astype(np.float32), drawn[0].astype(np.float32)))
    return made


def layers(network: Network, x: Array) -> list[Array]:
    """The inputs of every layer, and the scores."""
    out = [x]
    for number, (weight, bias) in enumerate(network, 1):
        scores = out[-1] @ weight + bias
        out.append(np.maximum(scores, 0) if number < len(network) else scores)
    return out


def step(network: Network, x: Array, y: NDArray[np.int64], rate: float) -> Network:
    """One step of gradient descent on the mean cross-entropy."""
    out = layers(network, x)
    grad = np.exp(out[-1] - out[-1].max(axis=1, keepdims=True))
    grad /= grad.sum(axis=1, keepdims=True)
    grad[np.arange(len(y)), y] -= 1
    grad *= np.float32(rate / len(y))
    moved: Network = []
    for number in reversed(range(len(network))):
        weight, bias = network[number]
        moved.append((weight - out[number].T @ grad, bias - grad.sum(axis=0)))
        grad = (grad @ weight.T) * (out[number] > 0)
    return moved[::-1]


def shards(
    rng: np.random.Generator, y: NDArray[np.int64], clients: int, *, iid: bool
) -> list[Indices]:
    """Equal shards of all examples, or two sorted half-shards for each client."""
    if iid:
        return np.array_split(rng.permutation(len(y)), clients)
    parts = np.array_split(np.argsort(y, kind="stable"), 2 * clients)
    order = rng.permutation(2 * clients)
    return [np.concatenate((parts[a], parts[b])) for a, b in order.reshape(clients, 2)]


def accuracies(
    train: tuple[Array, NDArray[np.int64]], test: tuple[Array, NDArray[np.int64]],
    rng: np.random.Generator, *, rounds: int, clients: int, cohort: int, epochs: int,
    batch: int | None, rate: float, iid: bool, network: Network | None = None,
) -> Iterator[float]:  # fmt: skip
    """Test accuracy after each round; shards are of equal size, so the mean is plain."""
    x, y = train
    owned = shards(rng, y, clients, iid=iid)
    model = initial(rng) if network is None else network
    for _ in range(rounds):
        found = []
        for k in rng.choice(clients, cohort, replace=False):
            local = model
            for chosen in batches(rng, len(owned[k]), batch or len(owned[k]), epochs):
                local = step(local, x[owned[k][chosen]], y[owned[k][chosen]], rate)
            found.append(local)
        model = [
            tuple(np.mean(values, axis=0) for values in zip(*layer, strict=True))
            for layer in zip(*found, strict=True)
        ]
        yield float((layers(model, test[0])[-1].argmax(axis=1) == test[1]).mean())
