"""The best approximation of a matrix by one of lower rank.

References:
    Eckart and Young 1936, The Approximation of One Matrix by Another of Lower Rank.
    Halko, Martinsson and Tropp 2011, Finding Structure with Randomness,
    https://arxiv.org/abs/0909.4061, algorithm 4.4 (subspace iteration).

Legend: M [m, n] the matrix, r the rank.

Invariant: the same matrix gives the same factors on one machine. Their last bits may differ between
machines, since they depend on its linear algebra library.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.exact.partial import Floats

_DIRECT: Final = 256
"""The smaller dimension up to which all singular values are computed."""
_MORE: Final = 8
"""Columns beyond the rank: subspace iteration then converges faster."""
_PASSES: Final = 100
_GAIN: Final = 1e-7
"""The iteration ends when a pass lowers the squared error by less than this share."""


def leading(matrix: Floats, rank: int) -> tuple[Floats, Floats]:
    """Return factors of the best approximation of this rank: U Σ [m, r] and Vᵀ [r, n].

    Singular values fall from the first column to the last, so that the first columns and rows are
    the best approximation of a lower rank. The entry of the largest magnitude in each row of Vᵀ is
    positive.

    Args:
        matrix: float64 [m, n]; not changed.
        rank: r, at most min(m, n).
    """
    direct = min(matrix.shape) <= max(_DIRECT, rank + _MORE)
    left, values, right = (
        np.linalg.svd(matrix, full_matrices=False) if direct else _subspace(matrix, rank + _MORE)
    )
    left, right = left[:, :rank] * values[:rank], right[:rank]
    largest = np.abs(right).argmax(axis=1)
    signs = np.where(np.take_along_axis(right, largest[:, None], 1)[:, 0] < 0, -1.0, 1.0)
    return left * signs, right * signs[:, None]


def _subspace(matrix: Floats, width: int) -> tuple[Floats, Floats, Floats]:
    """The leading singular vectors and values, by subspace iteration from a fixed start."""
    basis: NDArray[np.float64]
    basis = np.random.default_rng(0).standard_normal((matrix.shape[1], width))
    total, captured = float(np.vdot(matrix, matrix)), -1.0
    kept = width - _MORE
    for _ in range(_PASSES):
        left = np.linalg.qr(matrix @ basis)[0]
        projected = matrix.T @ left
        basis, small = np.linalg.qr(projected)
        values = np.linalg.svd(small, compute_uv=False)
        energy = float(np.square(values[:kept]).sum())
        if energy - captured <= _GAIN * (total - energy) + 1e-15 * total:
            break
        captured = energy
    inner, values, right = np.linalg.svd(projected.T, full_matrices=False)
    return left @ inner, values, right
