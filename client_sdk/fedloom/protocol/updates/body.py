"""Checks the body of an update against its header while it arrives.

Invariant: `BodyChecker.finish` returns only for a body of the declared length and checksum whose
tensors are exactly those that the header names, with every value finite and within the bound. So
no value reaches a sum unchecked.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.container import (
    DTYPES,
    PREFIX_BYTES,
    Layout,
    TensorInfo,
    header_length,
    parse_header,
)
from fedloom.protocol.tensors.mask_bits import MaskChecker, check_mask_layout, wrong_shape
from fedloom.protocol.tensors.value_checks import ValueChecker
from fedloom.protocol.updates.compression import CodeChecker, check_arrays
from fedloom.protocol.updates.header import PlannedPart
from fedloom.protocol.updates.message import Limits
from fedloom.protocol.v1 import fleet_pb2


def check_layout(layout: Layout, planned: Sequence[PlannedPart], manifest: Manifest) -> None:
    """Check a body's container header against the update's header.

    Raises:
        Refusal: UNKNOWN_TENSOR, WRONG_DTYPE, WRONG_SHAPE or MALFORMED.
    """
    expected = {name for p in planned for name in p.names}
    if set(layout.tensors) != expected:
        odd = min(set(layout.tensors) ^ expected)
        raise Refusal(
            Code.UNKNOWN_TENSOR,
            f"Expected the body to hold just the tensors that its header names, got {odd!r} "
            f"{'unannounced' if odd in layout.tensors else 'missing'}.",
        )
    for part in planned:
        if part.code is not None:
            assert part.shape is not None
            check_arrays(part.code, part.tensor, part.values, part.shape, layout)
            continue
        info = layout.tensors[part.values]
        if info.dtype != part.dtype:
            raise Refusal(
                Code.WRONG_DTYPE, f"Expected {part.dtype} for {part.tensor!r}, got {info.dtype}."
            )
        if part.shape is not None and info.shape != part.shape:
            raise wrong_shape(part.tensor, part.shape, info.shape)
        if part.mask is not None:
            check_mask_layout(part, layout, manifest)


@dataclass(frozen=True, slots=True)
class BodyStats:
    """Statistics of a body's values.

    Attributes:
        norm: Euclidean norm of all values.
        max_abs: largest magnitude.
    """

    norm: float
    max_abs: float


class Checker(Protocol):
    """Checks a body as its bytes arrive.

    Attributes:
        slow: whether to check in a thread.
        received: bytes so far.
        spent_s: on checks.
    """

    slow: bool
    received: int
    spent_s: float

    def feed(self, chunk: bytes) -> None:
        """Check the next bytes."""

    def finish(self) -> BodyStats:
        """Check that the body is complete and as announced."""


class BodyChecker:
    """Checks a body as its bytes arrive, in chunks of any size.

    Args:
        header: already checked by `check_header`.
        planned: result of `check_header`.
        limits: of the round.
        manifest: of the model.

    Attributes:
        slow: whether to check in a thread: a chunk takes milliseconds, or the end takes long.
        received: bytes so far.
    """

    def __init__(
        self,
        header: fleet_pb2.UpdateHeader,
        planned: Sequence[PlannedPart],
        limits: Limits,
        manifest: Manifest,
    ) -> None:
        self._size = header.size_bytes
        self._crc_declared = header.crc32c
        self._planned = planned
        self._limits = limits
        self._manifest = manifest
        self._crc = 0
        self._head = bytearray()
        self._layout: Layout | None = None
        self._pending: list[TensorInfo] = []
        self._masks = MaskChecker(planned, manifest)
        self._tensor_of = {p.values: p.tensor for p in planned}
        self._carry = b""
        self._position = 0  # in the data area, of the first byte not yet checked
        self._values = ValueChecker(limits.max_abs, limits.max_norm)
        self._codes: CodeChecker | None = None
        self.slow = any(p.code is not None and p.code.codec.slow for p in planned)
        self.received = 0
        self.spent_s = 0.0

    def feed(self, chunk: bytes) -> None:
        """Check the next bytes.

        Raises:
            Refusal: OVERLONG, MALFORMED, UNKNOWN_TENSOR, WRONG_SHAPE, WRONG_DTYPE, NOT_FINITE,
                MAGNITUDE_TOO_LARGE or NORM_TOO_LARGE.
        """
        if self.received + len(chunk) > self._size:
            raise Refusal(Code.OVERLONG, f"Expected {self._size} bytes as declared, got more.")
        begun = time.perf_counter()
        self.received += len(chunk)
        self._crc = crc32c(chunk, self._crc)
        data = memoryview(chunk)
        if self._layout is None:
            data = self._feed_head(data)
        if self._layout is not None and data:
            self._feed_data(data)
        self.spent_s += time.perf_counter() - begun

    def _feed_head(self, data: memoryview) -> memoryview:
        if len(self._head) < PREFIX_BYTES:
            wanted = PREFIX_BYTES - len(self._head)
            self._head += data[:wanted]
            data = data[wanted:]
            if len(self._head) < PREFIX_BYTES:
                return data
        length = header_length(bytes(self._head[:PREFIX_BYTES]))
        longest = 1024 * (sum(max(2, len(p.names)) for p in self._planned) + 1)
        longest = min(longest, self._size - PREFIX_BYTES)
        if not 2 <= length <= longest:
            raise Refusal(
                Code.MALFORMED,
                f"Expected a safetensors header of 2 to {longest} bytes, got {length}.",
            )
        wanted = PREFIX_BYTES + length - len(self._head)
        self._head += data[:wanted]
        if len(self._head) < PREFIX_BYTES + length:
            return data[wanted:]
        layout = parse_header(bytes(self._head[PREFIX_BYTES:]))
        check_layout(layout, self._planned, self._manifest)
        if layout.size_bytes != self._size:
            raise Refusal(
                Code.MALFORMED,
                f"Expected the body's own header to add up to the declared {self._size} bytes, "
                f"got {layout.size_bytes}.",
            )
        self._layout = layout
        self._codes = _code_checker(self._planned, layout)
        self._pending = [info for info in layout.tensors.values() if info.size][::-1]
        return data[wanted:]

    def _feed_data(self, data: memoryview) -> None:
        if self._carry:
            data = memoryview(self._carry + bytes(data))
            self._carry = b""
        while data and self._pending:
            info = self._pending[-1]
            itemsize = DTYPES[info.dtype].itemsize
            count = min(len(data), info.stop - self._position) // itemsize
            if count == 0:
                self._carry = bytes(data)
                return
            self._check_values(info, np.frombuffer(data, DTYPES[info.dtype], count))
            self._position += count * itemsize
            data = data[count * itemsize :]
            if self._position == info.stop:
                self._pending.pop()

    def _check_values(self, info: TensorInfo, values: NDArray[Any]) -> None:
        if info.name in self._masks:
            at_end = self._position + len(values) == info.stop
            self._masks.check(info, values, at_end=at_end)
        elif self._codes is not None and info.name in self._codes:
            for tensor, decoded in self._codes.feed(info.name, values):
                self._values.check(tensor, decoded)
        else:
            self._values.check(self._tensor_of[info.name], values)

    def finish(self) -> BodyStats:
        """Check that the body is complete and as announced.

        Raises:
            Refusal: TRUNCATED, BAD_CHECKSUM, MALFORMED, WRONG_SHAPE, NOT_FINITE,
                MAGNITUDE_TOO_LARGE or NORM_TOO_LARGE.
        """
        if self.received != self._size:
            raise Refusal(
                Code.TRUNCATED, f"Expected {self._size} bytes as declared, got {self.received}."
            )
        if self._crc != self._crc_declared:
            raise Refusal(
                Code.BAD_CHECKSUM,
                f"Expected CRC-32C {self._crc_declared:08x} as declared, got {self._crc:08x}.",
            )
        if self._layout is None:
            raise Refusal(
                Code.MALFORMED, f"Expected a safetensors header, got {self._size} bytes in all."
            )
        self._masks.finish(self._layout)
        if self._codes is not None:
            for tensor, decoded in self._codes.finish():
                self._values.check(tensor, decoded)
        return BodyStats(self._values.norm(), self._values.max_abs)


def _code_checker(planned: Sequence[PlannedPart], layout: Layout) -> CodeChecker | None:
    coded = [
        (part.values, part.tensor, part.shape, part.code)
        for part in planned
        if part.code is not None and part.shape is not None
    ]
    return CodeChecker(coded, layout) if coded else None
