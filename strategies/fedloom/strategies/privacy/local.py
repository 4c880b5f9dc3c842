"""Local privacy: noise on the device, before anything is sent.

The clipped update is rounded to a grid and the noise is an exact discrete Gaussian on that grid,
coarse enough that every sum is a float32 without rounding. Anyone who sees the update, including
the server, sees the release of a Gaussian mechanism of sensitivity 2C: any two possible updates of
the device are at most 2C apart.

Invariants: the noise follows from the device's key, the run, the round, the update and the privacy
settings, so a repeated task sends the same bytes, and another update has other noise. So has the
same update under another clip or multiplier: two multiples of one noise would reveal the update.
"""

import math
import struct
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.exact.lazy_arrays import Values, changed, pieces_of
from fedloom.strategies.privacy.discrete import Sampler, sampler
from fedloom.strategies.privacy.streams import Stream

GRID_BITS: Final = 18
"""σ is between 2^18 and 2^19 grid units: 2^24 holds the update and 25 σ."""
_TAIL: Final = 12.0


def add_noise(
    arrays: Sequence[Values],
    *,
    clip_norm: float,
    noise_multiplier: float,
    round: int,  # noqa: A002 - the field's word
    stream: Stream,
) -> list[Values]:
    """Return clipped values with noise.

    Args:
        arrays: float arrays with a joint norm of at most `clip_norm`.
        clip_norm: C > 0.
        noise_multiplier: σ / C, at least 0.1.
        round: its number.
        stream: of the device and the run.

    Returns:
        Arrays of the same shapes and dtypes, whole multiples of the grid.
    """
    digest = blake2b(struct.pack("<dd", clip_norm, noise_multiplier), digest_size=32)
    for array in arrays:
        for _, piece in pieces_of(array):
            digest.update(np.ascontiguousarray(piece).view(np.uint8).data)
    grid, sigma = _grid(clip_norm, noise_multiplier, sum(array.size for array in arrays))
    noise = sampler(sigma)
    noisy = []
    for number, array in enumerate(arrays):
        source = _source(stream, f"local/{digest.hexdigest()}/{number}", round)
        noisy.append(changed(partial(_noisy, noise, source, grid), array, dtype=array.dtype))
    return noisy


def _noisy(
    noise: Sampler, source: Any, grid: float, of: list[NDArray[Any]], start: int
) -> NDArray[Any]:
    """Values on the grid, plus noise."""
    (values,) = of
    drawn = noise.draw(source, start, start + values.size)
    on_grid: NDArray[Any] = np.rint(values.astype(np.float64) / grid) + drawn
    return on_grid * grid


def norm_bound(clip_norm: float, noise_multiplier: float, size: int) -> float:
    """Return a norm that an honest device's update exceeds with probability below 10^-31.

    Source: Laurent and Massart 2000, Lemma 1: ‖N‖ <= σ (√d + √(2x)) with probability 1 - e^-x;
    √(2x) = 12.
    """
    grid, sigma = _grid(clip_norm, noise_multiplier, size)
    reached = sampler(sigma).sigma * grid
    return clip_norm + grid * math.sqrt(size) / 2 + reached * (math.sqrt(size) + _TAIL)


def _grid(clip_norm: float, noise_multiplier: float, size: int) -> tuple[float, float]:
    """The grid's unit, a power of two, and σ in units of it, with room for the rounding."""
    _, power = math.frexp(noise_multiplier * clip_norm)
    grid = math.ldexp(1.0, power - 1 - GRID_BITS)
    return grid, noise_multiplier * (clip_norm / grid + math.sqrt(size) / 2)


def _source(stream: Stream, purpose: str, number: int) -> Any:
    def source(position: int, num_bytes: int) -> bytes:
        return stream(purpose, number, position, num_bytes)

    return source
