"""Coverage: the coordinates of a tensor that an update covers: all, a slice, or a mask.

A coverage lists its values in row-major order of the tensor and iterates over a flat accumulator
block by block, so that no values or indices of a whole tensor are held.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Shape: TypeAlias = tuple[int, ...]
Block: TypeAlias = tuple[Any, Shape]
"""The index of a run of values in `coverage.view(...)`, and its shape there."""
Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Full:
    """Every coordinate."""

    def check(self, shape: Shape) -> None:
        """Accept any shape."""

    def count(self, shape: Shape) -> int:
        """Return the number of values that an update over a tensor of this shape carries."""
        return math.prod(shape)

    def view(self, flat: NDArray[Any], shape: Shape) -> NDArray[Any]:  # noqa: ARG002 - as Slice has it
        """Return the flat tensor as `blocks` indexes it."""
        return flat

    def blocks(self, shape: Shape, limit: int) -> Iterator[Block]:
        """Yield contiguous runs of at most `limit` values."""
        size = math.prod(shape)
        for start in range(0, size, limit):
            stop = min(start + limit, size)
            yield slice(start, stop), (stop - start,)

    def accumulate(self, view: Ints, index: Any, addends: Ints) -> None:
        """Add a block's values at an index that `blocks` gave."""
        view[index] += addends

    def add_constant(self, flat: Ints, shape: Shape, value: int, limit: int) -> None:  # noqa: ARG002 - as Mask has it
        """Add one value to every coordinate covered."""
        flat += value


@dataclass(frozen=True, slots=True)
class Slice:
    """A box: one half-open range per dimension.

    Attributes:
        ranges: `(start, stop)` for each dimension, `0 <= start <= stop <= extent`.
    """

    ranges: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> Shape:
        """The shape of the box."""
        return tuple(stop - start for start, stop in self.ranges)

    def check(self, shape: Shape) -> None:
        """Raise `ValueError` unless the slice is within `shape`."""
        inside = len(self.ranges) == len(shape) and all(
            0 <= start <= stop <= extent
            for (start, stop), extent in zip(self.ranges, shape, strict=True)
        )
        if not inside:
            raise ValueError(f"Expected ranges within shape {shape}, got {self.ranges}.")

    def count(self, shape: Shape) -> int:  # noqa: ARG002 - the same for every shape it fits
        """Return the number of values that an update over a tensor of this shape carries."""
        return math.prod(self.shape)

    def view(self, flat: NDArray[Any], shape: Shape) -> NDArray[Any]:
        """Return the box of the flat tensor, N-d, as `blocks` indexes it."""
        # The ellipsis keeps 0-d a view, not a scalar.
        box: tuple[Any, ...] = (*(slice(start, stop) for start, stop in self.ranges), ...)
        view: NDArray[Any] = flat.reshape(shape)[box]
        return view

    def blocks(self, shape: Shape, limit: int) -> Iterator[Block]:  # noqa: ARG002 - the box suffices
        """Yield boxes of whole rows, of at most `limit` values each.

        The cut axis is the outermost one whose rows fit, so that nearly all cuts are large.
        """
        box = self.shape
        if not box or 0 in box:
            yield from [((), ())] if not box else []
            return
        axis, inner = len(box) - 1, 1
        while axis > 0 and inner * box[axis] <= limit:
            inner *= box[axis]
            axis -= 1
        rows = max(1, limit // inner)
        for outer in product(*(range(extent) for extent in box[:axis])):
            for start in range(0, box[axis], rows):
                stop = min(start + rows, box[axis])
                yield (*outer, slice(start, stop)), (stop - start, *box[axis + 1 :])

    def accumulate(self, view: Ints, index: Any, addends: Ints) -> None:
        """Add a block's values at an index that `blocks` gave."""
        view[index] += addends

    def add_constant(self, flat: Ints, shape: Shape, value: int, limit: int) -> None:  # noqa: ARG002 - as Mask has it
        """Add one value to every coordinate covered."""
        view = self.view(flat, shape)
        view += value


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """The coordinates whose bit is set.

    Attributes:
        bits: bool [size of the tensor], flat, row-major.
    """

    bits: NDArray[np.bool_]

    def check(self, shape: Shape) -> None:
        """Raise `ValueError` unless there is one bit per coordinate of `shape`."""
        size = math.prod(shape)
        if self.bits.dtype != np.bool_ or self.bits.shape != (size,):
            raise ValueError(
                f"Expected a flat mask of {size} bool for shape {shape}, "
                f"got {self.bits.dtype} {self.bits.shape}."
            )

    def count(self, shape: Shape) -> int:  # noqa: ARG002 - the same for every shape it fits
        """Return the number of values that an update over a tensor of this shape carries."""
        return int(np.count_nonzero(self.bits))

    def view(self, flat: NDArray[Any], shape: Shape) -> NDArray[Any]:  # noqa: ARG002 - as Slice has it
        """Return the flat tensor as `blocks` indexes it."""
        return flat

    def blocks(self, shape: Shape, limit: int) -> Iterator[Block]:
        """Yield the positions set within each run of `limit` coordinates."""
        for start in range(0, math.prod(shape), limit):
            run = slice(start, start + limit)
            (positions,) = self.bits[run].nonzero()
            if positions.size:
                yield (run, positions), (positions.size,)

    def accumulate(self, view: Ints, index: Any, addends: Ints) -> None:
        """Add a block's values at an index that `blocks` gave."""
        run, positions = index
        # Faster at every density than `view[run][positions] += addends`, which gathers first.
        np.add.at(view[run], positions, addends)

    def add_constant(self, flat: Ints, shape: Shape, value: int, limit: int) -> None:
        """Add one value to every coordinate covered."""
        buffer = np.empty(min(limit, math.prod(shape)), np.int64)
        for start in range(0, math.prod(shape), limit):
            bits = self.bits[start : start + limit]
            flat[start : start + limit] += np.multiply(bits, value, out=buffer[: bits.size])


Coverage: TypeAlias = Full | Slice | Mask
