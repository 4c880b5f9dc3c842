"""Checks the body of a site's sum while it arrives: what is packed in it, coordinate by coordinate.

Invariant: `SiteSumChecker` passes no sum above what its devices may send: `max_abs` times weight.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.container import TensorInfo
from fedloom.protocol.updates.body import BodyChecker, BodyStats
from fedloom.protocol.updates.compression import weights_name
from fedloom.protocol.updates.header import PlannedPart
from fedloom.protocol.updates.message import Limits
from fedloom.protocol.updates.site_header import Slack, most_units
from fedloom.protocol.updates.site_sum import sums_of, units_of, weights_of
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import Partial
from fedloom.strategies.exact.fixed_point import UNIT_BITS, Ints
from fedloom.strategies.exact.packed import Bytes
from fedloom.strategies.exact.partial import WEIGHT_EXPONENT
from fedloom.strategies.exact.unpacking import Unpacking, floats
from fedloom.strategies.exact.words import Floats


class SiteSumChecker(BodyChecker):
    """Checks the body of a site's sum as its bytes arrive, in chunks of any size.

    Args:
        header: already checked by `check_site_header`.
        planned: result of `check_site_header`.
        limits: on the updates of the round's devices.
        manifest: of the model.
        empty: the round's sum before any update.
        slack: by how much devices' addends may differ from their products; None for rounding.
    """

    def __init__(
        self,
        header: fleet_pb2.UpdateHeader,
        planned: Sequence[PlannedPart],
        limits: Limits,
        manifest: Manifest,
        empty: Partial,
        *,
        slack: Slack | None = None,
    ) -> None:
        super().__init__(header, planned, limits, manifest)
        self.slow = True  # to unpack takes milliseconds
        self._read: dict[str, _PackedReader] = {}
        most, devices = most_units(header, limits), header.site.devices
        beside = {} if slack is None else slack.of(devices)
        for part, tensor in zip(header.parts, header.site.tensors, strict=True):
            size = empty.specs[part.group, part.tensor].size
            whole = math.ldexp(units_of(tensor), -UNIT_BITS)
            weights: Weights = partial(_even, whole)
            if tensor.HasField("weights"):
                unpacking = weights_of(empty, part, tensor)
                kept = _KeptWeights(unpacking, whole, math.ldexp(most, -UNIT_BITS), part.tensor)
                self._read[weights_name(part)] = _PackedReader(unpacking, size, kept.take)
                weights = kept.of
            bound = partial(empty.bound, limits.max_abs, count=devices, **beside)
            check = partial(_check_sums, weights, bound, part.tensor)
            self._read[part.values] = _PackedReader(sums_of(empty, part, tensor), size, check)

    def _check_values(self, info: TensorInfo, values: NDArray[Any]) -> None:
        self._read[info.name].feed(values)

    def finish(self) -> BodyStats:
        """Check that the body is complete and as announced; norms are not known.

        Raises:
            Refusal: TRUNCATED, BAD_CHECKSUM, MALFORMED or MAGNITUDE_TOO_LARGE.
        """
        return BodyStats(0.0, super().finish().max_abs)


Take: TypeAlias = Callable[[int, Bytes, Sequence[Ints]], None]
"""Called with the number of a first coordinate, and the packed and unpacked sums from there on."""
Weights: TypeAlias = Callable[[int, int], Floats | float]
"""Called with a first coordinate (a multiple of eight) and a number: weights, or one for all."""


class _PackedReader:
    """Unpacks the sums of one tensor as their bytes arrive."""

    def __init__(self, unpacking: Unpacking, size: int, take: Take) -> None:
        self._unpacking, self._size, self._take = unpacking, size, take
        self._done = 0
        self._carry = np.zeros(0, np.uint8)

    def feed(self, values: Bytes) -> None:
        packing, left = self._unpacking.packing, self._size - self._done
        data = np.concatenate([self._carry, values]) if len(self._carry) else values
        rows = min(len(data) // packing.bits * 8, left)  # eight sums take `bits` bytes
        if len(data) >= packing.num_bytes(left):
            rows = left
        for start in range(0, rows, _ROWS):
            count = min(_ROWS, rows - start)
            block = data[start // 8 * packing.bits :][: packing.num_bytes(count)]
            self._take(self._done + start, block, self._unpacking.words(block, count))
        self._done += rows
        self._carry = data[packing.num_bytes(rows) :].copy()


class _KeptWeights:
    """Weights per coordinate, which come before the sums and stay packed.

    Args:
        unpacking: of them.
        whole: weight that covers the whole tensor.
        most: the largest sum of weights.
        tensor: name.
    """

    def __init__(self, unpacking: Unpacking, whole: float, most: float, tensor: str) -> None:
        self._unpacking, self._whole, self._tensor = unpacking, whole, tensor
        self._most = most * (1 + 2.0**-50)
        self._packed = bytearray()

    def take(self, _: int, packed: Bytes, words: Sequence[Ints]) -> None:
        """Check the next weights, and keep them."""
        weights = self._weights(words)
        if weights.size and not (weights.min() >= self._whole and weights.max() <= self._most):
            raise Refusal(
                Code.WEIGHT_OUT_OF_RANGE,
                f"Expected weights of {self._tensor!r} from {self._whole:g} to {self._most:g}, got "
                "another one.",
            )
        self._packed += packed.tobytes()

    def of(self, first: int, count: int) -> Floats:
        """The weights of coordinates.

        Raises:
            Refusal: MALFORMED, they have not come yet.
        """
        packing = self._unpacking.packing
        start = first // 8 * packing.bits
        block = np.frombuffer(self._packed, np.uint8)[start:][: packing.num_bytes(count)]
        if len(block) < packing.num_bytes(count):
            raise Refusal(
                Code.MALFORMED,
                f"Expected the weights of {self._tensor!r} in the body before its sums, got them "
                "later.",
            )
        return self._weights(self._unpacking.words(block, count))

    def _weights(self, words: Sequence[Ints]) -> Floats:
        return np.ldexp(floats(words), -WEIGHT_EXPONENT) + self._whole


def _even(weight: float, _: int, __: int) -> float:
    return weight


def _check_sums(
    weights: Weights, bound: Callable[[Floats | float], Floats], tensor: str,
    first: int, _: Bytes, words: Sequence[Ints],
) -> None:  # fmt: skip
    sums = np.abs(floats(words))
    if (sums > bound(weights(first, len(sums)))).any():
        raise Refusal(
            Code.MAGNITUDE_TOO_LARGE,
            f"Expected sums of {tensor!r} of values of at most the run's max_abs times the weight, "
            "got a larger one.",
        )


_ROWS: Final = 1 << 15
"""Sums that are unpacked at a time."""
