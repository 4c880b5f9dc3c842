"""Multinomial logistic regression in numpy.

Legend: N examples, D inputs, K classes; a model is an array (K, D + 1), its last column the bias.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


def scores(model: Floats, x: Floats) -> Floats:
    """Scores of the classes, shape (N, K)."""
    return x @ model[:, :-1].T + model[:, -1]


def loss(model: Floats, x: Floats, y: Labels) -> float:
    """Mean cross-entropy."""
    found = scores(model, x)
    top = found.max(axis=1, keepdims=True)
    logs = top[:, 0] + np.log(np.exp(found - top).sum(axis=1))
    return float((logs - found[np.arange(len(y)), y]).mean())


def accuracy(model: Floats, x: Floats, y: Labels) -> float:
    """Share of the examples whose class has the highest score."""
    return float((scores(model, x).argmax(axis=1) == y).mean())


def gradient(model: Floats, x: Floats, y: Labels) -> Floats:
    """Of the mean cross-entropy, shape (K, D + 1)."""
    found = scores(model, x)
    found = np.exp(found - found.max(axis=1, keepdims=True))
    found /= found.sum(axis=1, keepdims=True)
    found[np.arange(len(y)), y] -= 1
    found /= len(y)
    out = np.empty_like(model)
    out[:, :-1] = found.T @ x
    out[:, -1] = found.sum(axis=0)
    return out
