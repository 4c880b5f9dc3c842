"""Bit masks: the coordinates of a tensor that an update covers, one bit each.

A mask is an array of bytes in the body: bits in the order of the coordinates, the lowest bit of a
byte first, with one value per set bit.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.container import Layout, TensorInfo
from fedloom.protocol.updates.header import PlannedPart


def wrong_shape(tensor: str, expected: Sequence[object], got: Sequence[object]) -> Refusal:
    """The refusal of an array of another shape than announced."""
    return Refusal(
        Code.WRONG_SHAPE, f"Expected shape {tuple(expected)} for {tensor!r}, got {tuple(got)}."
    )


def check_mask_layout(part: PlannedPart, layout: Layout, manifest: Manifest) -> None:
    """Check for one bit per coordinate, and a list of values.

    Raises:
        Refusal: WRONG_DTYPE or WRONG_SHAPE.
    """
    bits = layout.tensors[part.mask or ""]
    wanted = ((manifest.specs[part.tensor].size + 7) // 8,)
    if bits.dtype != "U8":
        raise Refusal(
            Code.WRONG_DTYPE, f"Expected U8 mask bits for {part.tensor!r}, got {bits.dtype}."
        )
    if bits.shape != wanted:
        raise wrong_shape(f"{part.tensor} (mask)", wanted, bits.shape)
    if len(layout.tensors[part.values].shape) != 1:
        raise wrong_shape(part.tensor, ("count of set bits",), layout.tensors[part.values].shape)


class MaskChecker:
    """Counts the bits of an update's masks as they arrive, in chunks of any size."""

    def __init__(self, planned: Iterable[PlannedPart], manifest: Manifest) -> None:
        self._manifest = manifest
        self._parts = {part.mask: part for part in planned if part.mask is not None}
        self._set = dict.fromkeys(self._parts, 0)

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def check(self, info: TensorInfo, values: NDArray[Any], *, at_end: bool) -> None:
        """Check the next bytes of a mask.

        Args:
            info: of the mask.
            values: its next bytes, at least one.
            at_end: whether they are its last.

        Raises:
            Refusal: MALFORMED.
        """
        self._set[info.name] += int(np.unpackbits(values).sum(dtype=np.int64))
        used = self._manifest.specs[self._parts[info.name].tensor].size % 8
        if at_end and used and int(values[-1]) >> used:
            raise Refusal(
                Code.MALFORMED, f"Expected zeros after the mask's last bit, got {values[-1]:#04x}."
            )

    def finish(self, layout: Layout) -> None:
        """Check for one value per set bit.

        Raises:
            Refusal: WRONG_SHAPE.
        """
        for bits, part in self._parts.items():
            values = layout.tensors[part.values].size
            if self._set[bits] != values:
                raise wrong_shape(part.tensor, (self._set[bits],), (values,))
