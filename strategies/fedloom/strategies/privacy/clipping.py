"""Clipping: limits the norm of a client's contribution.

Devices and simulations use the same function. Its result has a norm of at most the clip as a server
measures it, so the server refuses longer updates and enforces the sensitivity itself.

References:
    McMahan, Ramage, Talwar, Zhang 2018, Learning Differentially Private Recurrent Language
    Models, https://arxiv.org/abs/1710.06963, section 2 (flat clipping, fixed-denominator
    estimator).
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from fedloom.strategies.exact.lazy_arrays import Values, changed, pieces_of

BLOCK: Final = 1 << 16
_MARGIN: Final = 1 - 2.0**-20
"""Scaled values are rounded to float32, each by at most one part in 2^24."""


def norm(arrays: Iterable[Values]) -> float:
    """Return the Euclidean norm of all values together, computed in float64.

    Args:
        arrays: of any shape and float dtype.

    Raises:
        ValueError: a value is NaN or infinite.
    """
    total = 0.0
    for array in arrays:
        for _, piece in pieces_of(array, BLOCK):
            block = piece.astype(np.float64)
            total += float(np.einsum("i,i->", block, block))
    if not math.isfinite(total):
        raise ValueError(
            "Expected finite values to clip, got NaN or infinity: lower train.learning_rate."
        )
    return math.sqrt(total)


def clip(arrays: Sequence[Values], clip_norm: float) -> tuple[list[Values], bool]:
    """Scale all values by one factor so that their joint norm is at most `clip_norm`.

    Args:
        arrays: of floats; they are not changed.
        clip_norm: > 0.

    Returns:
        The arrays, unchanged if nothing had to be scaled; and whether that is so.

    Raises:
        ValueError: a value is NaN or infinite.

    >>> clip([np.array([3.0, 4.0])], 10.0)[1]
    True
    >>> clip([np.array([3.0, 4.0])], 1.0)[0][0].round(3)
    array([0.6, 0.8])
    """
    before = norm(arrays)
    if before <= clip_norm:
        return list(arrays), True
    factor = np.float64(clip_norm / before * _MARGIN)
    scaled = [changed(lambda of, _: of[0] * factor, array, dtype=array.dtype) for array in arrays]
    return scaled, False
