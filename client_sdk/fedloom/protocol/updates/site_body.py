"""Checks the body of a site's sum while it arrives: what is packed in it, coordinate by coordinate.

Invariant: `SiteSumChecker` passes no sum above what its devices may send: `max_abs` times weight.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.container import TensorInfo
from fedloom.protocol.updates.body import BodyChecker, BodyStats
from fedloom.protocol.updates.header import PlannedPart
from fedloom.protocol.updates.message import Limits
from fedloom.protocol.updates.site_sum import units_of
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import Partial
from fedloom.strategies.exact.packed import Bytes, Packing
from fedloom.strategies.exact.partial import Unpacking


class SiteSumChecker(BodyChecker):
    """Checks the body of a site's sum as its bytes arrive, in chunks of any size.

    Args:
        header: already checked by `check_site_header`.
        planned: result of `check_site_header`.
        limits: on the updates of the round's devices.
        manifest: of the model.
        empty: the round's sum before any update.
    """

    def __init__(
        self,
        header: fleet_pb2.UpdateHeader,
        planned: Sequence[PlannedPart],
        limits: Limits,
        manifest: Manifest,
        empty: Partial,
    ) -> None:
        super().__init__(header, planned, limits, manifest)
        self.slow = True  # to unpack takes milliseconds
        self._sums: dict[str, _SumChecker] = {}
        for part, tensor in zip(planned, header.site.tensors, strict=True):
            key, packing = (part.group, part.tensor), Packing(tensor.bits, tensor.low)
            most = empty.bound(limits.max_abs, units_of(tensor), header.site.devices)
            self._sums[part.values] = _SumChecker(
                empty.unpacking(key, packing), empty.specs[key].size, most, part.tensor
            )

    def _check_values(self, info: TensorInfo, values: NDArray[Any]) -> None:
        self._sums[info.name].feed(values)

    def finish(self) -> BodyStats:
        """Check that the body is complete and as announced; norms are not known.

        Raises:
            Refusal: TRUNCATED, BAD_CHECKSUM, MALFORMED or MAGNITUDE_TOO_LARGE.
        """
        return BodyStats(0.0, super().finish().max_abs)


class _SumChecker:
    """Checks the packed sums of one tensor: that no coordinate exceeds what devices may send."""

    def __init__(self, unpacking: Unpacking, size: int, most: int, tensor: str) -> None:
        self._unpacking, self._left, self._most, self._tensor = unpacking, size, most, tensor
        self._carry = np.zeros(0, np.uint8)

    def feed(self, values: Bytes) -> None:
        bits = self._unpacking.packing.bits
        data = np.concatenate([self._carry, values]) if len(self._carry) else values
        rows = min(len(data) // bits * 8, self._left)  # eight sums take `bits` bytes
        if len(data) >= self._unpacking.packing.num_bytes(self._left):
            rows = self._left
        used = self._unpacking.packing.num_bytes(rows)
        for start in range(0, rows, _ROWS):
            count = min(_ROWS, rows - start)
            first = start // 8 * bits
            block = data[first : first + self._unpacking.packing.num_bytes(count)]
            self._check(self._unpacking.words(block, count)[0])
        self._left -= rows
        self._carry = data[used:].copy()

    def _check(self, word: NDArray[np.int64]) -> None:
        if word.size and max(int(word.max()), -int(word.min())) > self._most:
            raise Refusal(
                Code.MAGNITUDE_TOO_LARGE,
                f"Expected sums of {self._tensor!r} of values of at most the run's max_abs times "
                "the weight, got a larger one.",
            )


_ROWS: Final = 1 << 15
"""Sums that are unpacked at a time."""
