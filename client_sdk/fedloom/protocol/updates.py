"""An update on the wire: how a client writes one, and how a server checks every byte of one.

An update is a typed header (`UpdateHeader`) and a safetensors body. The header says which
coordinates of which tensors the body covers; the checker holds both against the model's manifest
and the round's limits while the bytes pass, so nothing is allocated for a body that lies and no
value reaches a sum unchecked.

Invariants: `BodyChecker.finish` returns only for a body of the declared length and checksum whose
tensors are exactly those that the header names, with every value finite and within the bound.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from fedloom.protocol.codecs import Codec
from fedloom.protocol.compression import (
    CodeChecker,
    Coded,
    PlannedCode,
    array_name,
    check_arrays,
    check_compression,
    plan_code,
)
from fedloom.protocol.container import (
    DTYPES,
    PREFIX_BYTES,
    Entry,
    Layout,
    TensorInfo,
    build_header,
    header_length,
    parse_header,
)
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.v1 import fleet_pb2
from fedloom.protocol.values import ValueChecker, check_scalars, check_weight
from fedloom.strategies.algebra import Coverage, Full, Mask, Slice

MAX_METRICS = 256
MAX_NAME = 256
MAX_METRIC = 1e100
"""Largest magnitude of a metric: with `MAX_EXAMPLES` it keeps every weighted mean finite."""
MAX_EXAMPLES = 1 << 42
_BLOCK = 1 << 16
"""Values written at a time: subtracted, checksummed and written while they are in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a round accepts.

    Attributes:
        max_abs: largest magnitude of a value.
        max_norm: largest Euclidean norm of all values together; None for no limit.
        max_weight: largest weight of one update.
        weighting: how the weight follows from the header.
        groups: the groups that the strategy sums.
        max_bytes: longest body.
        codec: by which updates are encoded; None: not at all.
        scalars: names of the numbers that the strategy averages.
        kept: tensors of the model that stay with the clients.
    """

    max_abs: float
    max_norm: float | None
    max_weight: float
    weighting: fleet_pb2.Weighting
    groups: Sequence[str]
    max_bytes: int
    codec: Codec | None = None
    scalars: Sequence[str] = ()
    kept: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TensorPart:
    """Values for some coordinates of one tensor.

    Attributes:
        group: which sum they belong to.
        tensor: name in the manifest.
        coverage: which coordinates.
        values: array whose row-major order follows the coverage.
        less: of the same shape; what is sent are the values less these.
        coded: what is sent in place of the values.
    """

    group: str
    tensor: str
    coverage: Coverage
    values: NDArray[Any]
    less: NDArray[Any] | None = None
    coded: Coded | None = None


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A part of a header, checked against the manifest.

    Attributes:
        group: as in the header.
        tensor: as in the header.
        values: name of the values in the body.
        shape: that they must have; None under a mask.
        dtype: that they must have.
        mask: name of the mask's bits in the body, if it is one.
        slice: the covered ranges, if it is one.
        code: how the values are encoded, if they are.
    """

    group: str
    tensor: str
    values: str
    shape: tuple[int, ...] | None
    dtype: str
    mask: str | None = None
    slice: Slice | None = None
    code: PlannedCode | None = None

    @property
    def names(self) -> list[str]:
        """The tensors of the body that belong to it."""
        masks = [] if self.mask is None else [self.mask]
        if self.code is None:
            return [self.values, *masks]
        return [array_name(self.values, role) for role in self.code.roles]


# ---- client side -----------------------------------------------------------------------------


def write_body(
    path: Path, parts: Iterable[TensorPart], manifest: Manifest
) -> tuple[list[fleet_pb2.Part], int, int]:
    """Write an update's body and describe it.

    Returns:
        The header's parts, the body's length in bytes and its CRC-32C.
    """
    entries: list[Entry] = []
    arrays: dict[str, tuple[NDArray[Any], NDArray[Any] | None]] = {}
    described: list[fleet_pb2.Part] = []
    for number, part in enumerate(parts):
        message = fleet_pb2.Part(group=part.group, tensor=part.tensor, values=f"{number}")
        shape: tuple[int, ...] = part.values.shape
        match part.coverage:
            case Full():
                message.full.SetInParent()
            case Slice(ranges):
                message.slice.ranges.extend(fleet_pb2.Range(start=a, stop=b) for a, b in ranges)
            case Mask(bits):
                message.mask.bits = f"{number}.mask"
                packed = np.packbits(bits, bitorder="little")
                arrays[message.mask.bits] = packed, None
                entries.append(Entry(message.mask.bits, "U8", packed.shape))
                shape = (part.values.size,)
        if part.coded is not None:
            message.encoding.CopyFrom(part.coded.describe())
            for entry, array in part.coded.entries(message.values):
                entries.append(entry)
                arrays[entry.name] = array, None
        else:
            entries.append(Entry(message.values, manifest.wire_dtype(part.tensor), shape))
            arrays[message.values] = part.values, part.less
        described.append(message)
    if not described:
        path.write_bytes(b"")
        return [], 0, 0
    header, layout = build_header(entries)
    checksum = crc32c(header)
    with path.open("wb") as file:
        file.write(header)
        for name, info in layout.tensors.items():
            for block in _blocks(*arrays[name], DTYPES[info.dtype]):
                raw = block.view(np.uint8).data
                checksum = crc32c(raw, checksum)
                file.write(raw)
    return described, layout.size_bytes, checksum


def _blocks(
    values: NDArray[Any], less: NDArray[Any] | None, dtype: np.dtype[Any]
) -> Iterator[NDArray[Any]]:
    """The values, less `less`, a block at a time: no whole difference is ever held."""
    flat = np.ascontiguousarray(values).reshape(-1)
    before = None if less is None else np.ascontiguousarray(less).reshape(-1)
    buffer = np.empty(min(_BLOCK, flat.size), dtype)
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        if before is None:
            yield block.astype(dtype, copy=False)
        else:
            out = buffer[: block.size]
            yield np.subtract(block, before[start : start + _BLOCK], out=out, dtype=dtype)


# ---- server side -----------------------------------------------------------------------------


def header_limit_bytes(manifest: Manifest, groups: int) -> int:
    """Longest header worth parsing: protobuf can amplify memory some twenty times."""
    names = sum(3 * len(name.encode()) + 512 for name in manifest.specs)
    return 64 * 1024 + groups * names


def check_header(
    header: fleet_pb2.UpdateHeader, limits: Limits, manifest: Manifest
) -> list[PlannedPart]:
    """Check everything that can be checked before the body: weight, size, metrics, coverage.

    Raises:
        Refusal: with the first thing that is wrong.
    """
    _check_weight(header, limits)
    _check_metrics(header.training)
    _check_metrics(header.evaluation)
    _check_scalars(header, limits)
    if header.size_bytes > limits.max_bytes:
        raise Refusal(
            Code.TOO_LARGE,
            f"Expected at most {limits.max_bytes} bytes, got a declaration of {header.size_bytes}.",
        )
    if bool(header.parts) != bool(header.size_bytes):
        raise Refusal(
            Code.MALFORMED,
            f"Expected a body just where there are parts, got {len(header.parts)} parts "
            f"and {header.size_bytes} bytes.",
        )
    check_compression(header.compression, limits.codec)
    method = limits.codec if header.compression.codec else None
    planned = [_plan(part, limits, manifest, method) for part in header.parts]
    _check_unique([(p.group, p.tensor) for p in planned])
    _check_unique([name for p in planned for name in p.names])
    return planned


def _check_weight(header: fleet_pb2.UpdateHeader, limits: Limits) -> None:
    weight = header.weight
    check_weight(weight, limits.max_weight)
    wanted = {
        fleet_pb2.WEIGHTING_EXAMPLES: float(header.training.num_examples),
        fleet_pb2.WEIGHTING_UNIFORM: 1.0,
    }.get(limits.weighting, weight)
    if weight != wanted and header.parts:
        raise Refusal(
            Code.WEIGHT_OUT_OF_RANGE,
            f"Expected weight={wanted:g} by this run's weighting, got {weight:g}.",
        )


def _check_scalars(header: fleet_pb2.UpdateHeader, limits: Limits) -> None:
    expected = sorted(limits.scalars) if header.parts else []
    if sorted(header.scalars) != expected:
        got = ", ".join(repr(name[:MAX_NAME]) for name in sorted(header.scalars)[:4])
        raise Refusal(
            Code.MALFORMED,
            f"Expected the numbers that the strategy averages ({', '.join(expected) or 'none'}), "
            f"got {got or 'none'}.",
        )
    check_scalars(header.scalars, limits.max_abs)


def _check_metrics(metrics: fleet_pb2.Metrics) -> None:
    if metrics.num_examples > MAX_EXAMPLES:
        raise Refusal(
            Code.WEIGHT_OUT_OF_RANGE,
            f"Expected at most {MAX_EXAMPLES} examples, got {metrics.num_examples}.",
        )
    if len(metrics.values) > MAX_METRICS:
        raise Refusal(
            Code.MALFORMED, f"Expected at most {MAX_METRICS} metrics, got {len(metrics.values)}."
        )
    for name, value in metrics.values.items():
        if len(name) > MAX_NAME:
            raise Refusal(
                Code.MALFORMED,
                f"Expected metric names of at most {MAX_NAME} characters, got {len(name)}.",
            )
        if not math.isfinite(value):
            raise Refusal(Code.NOT_FINITE, f"Expected a finite metric {name!r}, got {value}.")
        if abs(value) > MAX_METRIC:
            raise Refusal(
                Code.MAGNITUDE_TOO_LARGE,
                f"Expected metrics of at most {MAX_METRIC:g}, got {value:g} for {name!r}.",
            )


def _check_unique(names: Sequence[object]) -> None:
    seen: set[object] = set()
    for name in names:
        if name in seen:
            raise Refusal(Code.DUPLICATE_TENSOR, f"Expected {name!r} once, got it twice.")
        seen.add(name)


def _plan(
    part: fleet_pb2.Part, limits: Limits, manifest: Manifest, method: Codec | None
) -> PlannedPart:
    planned = _plan_coverage(part, limits, manifest)
    code = plan_code(part, method, planned.shape, planned.dtype)
    return replace(planned, code=code)


def _plan_coverage(part: fleet_pb2.Part, limits: Limits, manifest: Manifest) -> PlannedPart:
    spec = manifest.specs.get(part.tensor)
    if spec is None or part.group not in limits.groups:
        raise Refusal(
            Code.UNKNOWN_TENSOR,
            f"Expected a tensor of the model in a group of {', '.join(limits.groups)}, "
            f"got {part.tensor[:MAX_NAME]!r} in {part.group[:MAX_NAME]!r}.",
        )
    if part.tensor in limits.kept:
        raise Refusal(
            Code.UNKNOWN_TENSOR,
            f"Expected no values of {part.tensor!r}, which this run leaves with its clients "
            "(personal.keep), got some. Do not send it.",
        )
    dtype = manifest.wire_dtype(part.tensor)
    kind = part.WhichOneof("coverage")
    if kind == "full":
        return PlannedPart(part.group, part.tensor, part.values, spec.shape, dtype)
    if kind == "mask":
        return PlannedPart(part.group, part.tensor, part.values, None, dtype, mask=part.mask.bits)
    if kind == "slice":
        covered = Slice(tuple((r.start, r.stop) for r in part.slice.ranges))
        try:
            covered.check(spec.shape)
        except ValueError as error:
            raise Refusal(Code.WRONG_SHAPE, f"{part.tensor}: {error}") from None
        shape = tuple(stop - start for start, stop in covered.ranges)
        return PlannedPart(part.group, part.tensor, part.values, shape, dtype, slice=covered)
    raise Refusal(
        Code.MALFORMED, f"Expected a coverage for {part.tensor!r} (full, slice or mask), got none."
    )


def check_layout(layout: Layout, planned: Sequence[PlannedPart], manifest: Manifest) -> None:
    """Hold a body's own header against what the update's header announced.

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
            raise _wrong_shape(part.tensor, part.shape, info.shape)
        if part.mask is not None:
            _check_mask_layout(part, layout, manifest)


def _check_mask_layout(part: PlannedPart, layout: Layout, manifest: Manifest) -> None:
    bits = layout.tensors[part.mask or ""]
    wanted = ((manifest.specs[part.tensor].size + 7) // 8,)
    if bits.dtype != "U8":
        raise Refusal(
            Code.WRONG_DTYPE, f"Expected U8 mask bits for {part.tensor!r}, got {bits.dtype}."
        )
    if bits.shape != wanted:
        raise _wrong_shape(f"{part.tensor} (mask)", wanted, bits.shape)
    if len(layout.tensors[part.values].shape) != 1:
        raise _wrong_shape(part.tensor, ("count of set bits",), layout.tensors[part.values].shape)


def _wrong_shape(tensor: str, expected: Sequence[object], got: Sequence[object]) -> Refusal:
    return Refusal(
        Code.WRONG_SHAPE, f"Expected shape {tuple(expected)} for {tensor!r}, got {tuple(got)}."
    )


@dataclass(frozen=True, slots=True)
class BodyStats:
    """What passing over a body's values told.

    Attributes:
        norm: Euclidean norm of all values.
        max_abs: largest magnitude.
    """

    norm: float
    max_abs: float


class BodyChecker:
    """Checks a body as its bytes pass, in chunks of any size.

    Args:
        header: already checked by `check_header`.
        planned: what that returned.
        limits: of the round.
        manifest: of the model.

    Attributes:
        slow: whether to check in a thread: milliseconds for a chunk, or more in the end.
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
        self._masks = {p.mask: p for p in planned if p.mask is not None}
        self._popcount = dict.fromkeys(self._masks, 0)
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
        """Collect the container's header; return what of `data` follows it."""
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
            self._check_bits(info, values)
        elif self._codes is not None and info.name in self._codes:
            for tensor, decoded in self._codes.feed(info.name, values):
                self._values.check(tensor, decoded)
        else:
            self._values.check(self._tensor_of[info.name], values)

    def _check_bits(self, info: TensorInfo, values: NDArray[Any]) -> None:
        self._popcount[info.name] += int(np.unpackbits(values).sum(dtype=np.int64))
        used = self._manifest.specs[self._masks[info.name].tensor].size % 8
        at_end = self._position + len(values) == info.stop
        if at_end and used and int(values[-1]) >> used:
            raise Refusal(
                Code.MALFORMED, f"Expected zeros after the mask's last bit, got {values[-1]:#04x}."
            )

    def finish(self) -> BodyStats:
        """Everything has come: is it whole, and what was announced?

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
        self._check_masks(self._layout)
        if self._codes is not None:
            for tensor, decoded in self._codes.finish():
                self._values.check(tensor, decoded)
        return BodyStats(self._values.norm(), self._values.max_abs)

    def _check_masks(self, layout: Layout) -> None:
        for bits, part in self._masks.items():
            values = layout.tensors[part.values].size
            if self._popcount[bits] != values:
                raise _wrong_shape(part.tensor, (self._popcount[bits],), (values,))


def _code_checker(planned: Sequence[PlannedPart], layout: Layout) -> CodeChecker | None:
    """What looks at the encoded parts, if there are any."""
    coded = [
        (part.values, part.tensor, part.shape, part.code)
        for part in planned
        if part.code is not None and part.shape is not None
    ]
    return CodeChecker(coded, layout) if coded else None
