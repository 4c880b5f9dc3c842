"""Feature shift: all clients have similar labels, but differently changed inputs.

Sources: noise that grows from client to client as in Li et al. (2022), "Federated learning on
non-IID data silos", section 3.2: variance σ·i/C on client i. Rotation as in Ghosh et al. (2020),
"An efficient framework for clustered federated learning", section 6, who turn MNIST by 90 degrees;
here by any angle.

Invariants: labels and sizes are those of `iid`; the pool's arrays are not changed; central test
examples are not shifted.

Legend: C clients, N examples.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.mapped import in_memory
from fedloom.simulation.data.population import Examples
from fedloom.simulation.partition.base import ExamplePool, Split
from fedloom.simulation.partition.by_size import Iid

_AMOUNTS = {"noise": 0.1, "rotation": 360.0, "contrast": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureShift:
    """Split examples like `iid`, then change each client's inputs.

    Attributes:
        kind: `noise`: client i gets Gaussian noise of variance amount · (i + 1) / C. `rotation`:
            images are turned by amount · i / C degrees. `contrast`: inputs are multiplied by a
            factor from 1 − amount to 1 + amount, evenly spread over the clients.
        amount: default: 0.1, 360 degrees and 0.5.
        groups: number of different shifts; above, i is then i modulo `groups` and C is `groups`.
            Default: one for each client.
    """

    kind: Literal["noise", "rotation", "contrast"] = "noise"
    amount: float | None = None
    groups: int | None = None

    def __post_init__(self) -> None:
        if self.amount is not None and not 0 < self.amount < np.inf:
            raise UsageError(f"Expected a finite amount > 0, got {self.amount}.")
        if self.groups is not None and self.groups < 1:
            raise UsageError(f"Expected groups >= 1, got {self.groups}.")

    def deal(self, pool: ExamplePool) -> Split:
        """Split a pool; see `Partitioner.deal`."""
        x: NDArray[Any] = in_memory(pool.examples.x, "The partition feature-shift")
        if x.dtype != np.float32:
            raise UsageError(
                f"Expected float32 inputs to shift, got {x.dtype}. Choose another partitioner."
            )
        if self.kind == "rotation" and (x.ndim != 4 or min(x.shape[2:]) < 2):
            raise UsageError(
                "Expected images of shape (N, channels, height, width) to turn, got "
                f"{x.shape}. Set kind = 'noise' or 'contrast'."
            )
        shards = Iid().deal(pool).shards
        groups = self.groups or len(shards)
        shifted = np.empty_like(x)
        for client, shard in enumerate(shards):
            generator = pool.stream("feature-shift", client)
            shifted[shard] = self._shift(x[shard], client % groups, groups, generator)
        return Split(shards=shards, examples=Examples(x=shifted, y=pool.examples.y))

    def _shift(
        self, x: NDArray[np.float32], group: int, groups: int, generator: np.random.Generator
    ) -> NDArray[np.float32]:
        amount = _AMOUNTS[self.kind] if self.amount is None else self.amount
        if self.kind == "noise":
            noise = generator.standard_normal(x.shape, np.float32)
            return x + noise * np.float32(np.sqrt(amount * (group + 1) / groups))
        if self.kind == "rotation":
            return rotated(x, amount * group / groups)
        return x * np.float32(1 + amount * (2 * (group + 0.5) / groups - 1))


def rotated(x: NDArray[np.float32], degrees: float) -> NDArray[np.float32]:
    """Turn images counter-clockwise about their centre, bilinearly; pixels from outside are 0.

    Args:
        x: float32, shape (N, channels, height, width).
        degrees: the angle.
    """
    height, width = x.shape[2:]
    angle = np.deg2rad(degrees)
    rows, columns = np.mgrid[:height, :width] - np.array(
        [(height - 1) / 2, (width - 1) / 2]
    ).reshape(2, 1, 1)
    # The source of each pixel, by the inverse rotation. Rows count downwards.
    row = np.cos(angle) * rows + np.sin(angle) * columns + (height - 1) / 2
    column = -np.sin(angle) * rows + np.cos(angle) * columns + (width - 1) / 2
    # At multiples of 90 degrees sines have errors of 1e-16, which floor would turn into a pixel.
    row, column = np.round(row, 9), np.round(column, 9)
    top, left = np.floor(row).astype(np.int64), np.floor(column).astype(np.int64)
    out = np.zeros_like(x)
    for down in (0, 1):
        for right in (0, 1):
            weight = np.abs(1 - down - (row - top)) * np.abs(1 - right - (column - left))
            inside = (top + down >= 0) & (top + down < height)
            inside &= (left + right >= 0) & (left + right < width)
            weight = np.where(inside, weight, 0).astype(np.float32)
            source = (np.clip(top + down, 0, height - 1), np.clip(left + right, 0, width - 1))
            out += x[:, :, source[0], source[1]] * weight
    return out
