"""The distance of clients' inputs from all inputs: the skew that labels do not show.

The measure is the Fréchet distance of Gaussians with independent features (Dowson and Landau 1982,
"The Fréchet distance between multivariate normal distributions"), over the deviation of all inputs:
d_c² = Σ_f ((μ_cf − μ_f)² + (s_cf − s_f)²) / Σ_f s_f². It sees shifts, noise, contrast, rotations.

Legend: C clients, F features; μ means, s standard deviations.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedloom.simulation.data.mapped import MappedRows
from fedloom.simulation.data.population import Population
from fedloom.simulation.seeds import stream

_MOST_CLIENTS = 200
"""Clients that are measured, evenly among all, so that 100,000 clients take no minute."""


def distances(population: Population) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Distances of clients, and of a random split into shards of their sizes, each shape (C,).

    Returns:
        None for inputs that are not floats, such as tokens, not finite, or in files.
    """
    x = population.examples.x
    if isinstance(x, MappedRows) or x.dtype.kind != "f" or population.flaws:
        return None
    count = len(population)
    chosen = np.unique(np.linspace(0, count - 1, min(count, _MOST_CLIENTS)).astype(np.int64))
    shards = [population.shards[client] for client in chosen.tolist()]
    # A fixed seed, as for labels: the measure must not change between calls.
    dealt = stream(0, "statistics").permutation(np.concatenate(shards))
    cuts = np.cumsum([len(shard) for shard in shards])[:-1]
    return _distances(x, shards), _distances(x, np.split(dealt, cuts))


def _distances(x: NDArray[np.generic], shards: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
    means, squares = [], []
    for shard in shards:
        own = x[shard].reshape(len(shard), -1).astype(np.float64)
        means.append(own.mean(axis=0))
        squares.append((own**2).mean(axis=0))
    mean, square = np.array(means), np.array(squares)
    weights = np.array([len(shard) for shard in shards], np.float64)
    weights /= weights.sum()
    whole = weights @ mean
    spread = np.sqrt(np.maximum(weights @ square - whole**2, 0))
    spreads = np.sqrt(np.maximum(square - mean**2, 0))
    total = (spread**2).sum()
    if not total:
        return np.zeros(len(shards))
    apart: NDArray[np.float64] = ((mean - whole) ** 2 + (spreads - spread) ** 2).sum(axis=1)
    return np.asarray(np.sqrt(apart / total))
