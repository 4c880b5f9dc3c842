"""Synthetic data: Gaussian clusters, one for each class.

Centres are drawn from the sphere of radius `separation`, so that two of them are about
√2 · separation apart, with noise of deviation 1 in every direction.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.population import Examples
from fedloom.simulation.seeds import stream
from fedloom.simulation.sources.base import LoadedData, check_test


def synthetic(
    *,
    seed: int,
    examples: int = 10_000,
    classes: int = 10,
    shape: Sequence[int] = (32,),
    separation: float = 3.0,
    test: float = 0.2,
) -> LoadedData:
    """Gaussian clusters; classes are equally frequent, in a random order.

    Args:
        seed: of the experiment.
        examples: for the clients, at least one for each class.
        classes: number of classes, at least 2.
        shape: of one input, such as [1, 28, 28].
        separation: distance of each centre from the origin, in deviations of the noise, above 0.
        test: additional central test examples, as a fraction of `examples`.

    Raises:
        UsageError: a setting is out of range.
    """
    if classes < 2 or examples < classes:
        raise UsageError(
            f"Expected classes >= 2 and an example for each, got classes = {classes} and "
            f"examples = {examples}."
        )
    if not shape or min(shape) < 1 or not 0 < separation < math.inf:
        raise UsageError(
            f"Expected a shape of sizes >= 1 and a finite separation > 0, got {list(shape)} and "
            f"{separation}."
        )
    centres = stream(seed, "synthetic/centres").standard_normal((classes, *shape), np.float32)
    flat = centres.reshape(classes, -1)
    flat *= separation / np.linalg.norm(flat, axis=1, keepdims=True)
    num_test = round(check_test(test) * examples)
    return LoadedData(
        train=_draw(centres, examples, seed, "train"),
        test=_draw(centres, num_test, seed, "test") if num_test else None,
        num_classes=classes,
    )


def _draw(centres: NDArray[np.float32], count: int, seed: int, part: str) -> Examples:
    generator = stream(seed, f"synthetic/{part}")
    y = generator.permutation(np.arange(count) % len(centres)).astype(np.int64)
    x = generator.standard_normal((count, *centres.shape[1:]), np.float32)
    # In blocks: the centres of all examples would be a second array of x's size.
    for start in range(0, count, 4096):
        x[start : start + 4096] += centres[y[start : start + 4096]]
    return Examples(x=x, y=y)
