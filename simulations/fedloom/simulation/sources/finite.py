"""Find NaN and infinite values, by file and place, which only the source knows.

They are not refused here: trees use NaN for missing values, and a loss may mask missing targets.
`fedloom.simulation.training.dry_run` tries whether an experiment accepts them.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.simulation.data.population import Examples

Batch: TypeAlias = tuple[NDArray[Any], NDArray[Any]]
"""Inputs and targets."""
_PIECE = 1 << 20
"""Values checked at once; each needs one byte of memory."""


def intact(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether all values of each example are finite.

    >>> intact(np.array([[0.0, 1.0], [np.nan, 0.0]]))
    array([ True, False])

    Args:
        array: shape (N, …).

    Returns:
        Shape (N,).
    """
    found = np.ones(len(array), np.bool_)
    if array.dtype.kind != "f" or not array.size:
        return found
    step = max(1, _PIECE * len(array) // array.size)
    for start in range(0, len(array), step):
        piece = np.isfinite(array[start : start + step])
        found[start : start + step] = piece.reshape(len(piece), -1).all(axis=1)
    return found


def flaws(made: Examples, given: Batch, names: tuple[str, str]) -> tuple[str, ...]:
    """Descriptions of inputs and targets that are not finite; empty if all are finite.

    >>> x, y = np.array([[0.0, 1.0], [np.nan, 0.0]]), np.array([0, 1])
    >>> flaws(Examples(x=x, y=y), (x, y), ("x of some.npz", "y of some.npz"))
    ('1 of 4 values of x of some.npz, the first nan at [1, 0]',)

    Args:
        made: in the dtypes of models.
        given: the original arrays of the same shapes; a number may be too large for float32.
        names: of inputs and targets, with their origin.
    """
    looked = zip((made.x, made.y), given, names, strict=True)
    return tuple(filter(None, (_flaw(*each) for each in looked)))


def _flaw(array: NDArray[Any], given: NDArray[Any], name: str) -> str:
    flawed = np.flatnonzero(~intact(array))
    if not len(flawed):
        return ""
    count = sum(int(np.count_nonzero(~np.isfinite(array[row]))) for row in flawed)
    row = int(flawed[0])
    place = (row, *map(int, np.argwhere(~np.isfinite(array[row]))[0]))
    shown = f"{given[place]}" + (" (infinite as float32)" if np.isfinite(given[place]) else "")
    return f"{count:,} of {array.size:,} values of {name}, the first {shown} at {list(place)}"
