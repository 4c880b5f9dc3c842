"""Checks the header of an update against the round's limits and the model's manifest.

Everything that can be checked before the body is checked here: weight, metrics, sizes, and the
coordinates that the body covers. So nothing is allocated for an invalid header.

Invariants: `check_header` returns only for parts of the model in groups that the round sums, each
named once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedloom.protocol.codecs import Codec
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.value_checks import check_scalars, check_weight
from fedloom.protocol.updates.compression import (
    PlannedCode,
    array_name,
    check_compression,
    plan_code,
)
from fedloom.protocol.updates.message import Limits
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies.exact.partial import Coverage, Full, Slice

MAX_METRICS = 256
MAX_NAME = 256
MAX_METRIC = 1e100
"""Largest magnitude of a metric: with `MAX_EXAMPLES` it keeps every weighted mean finite."""
MAX_EXAMPLES = 1 << 42


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A part of a header, checked against the manifest.

    Attributes:
        group: as in the header.
        tensor: as in the header.
        values: name of the values in the body.
        shape: of the values; None under a mask.
        dtype: of the values.
        mask: name of the mask's bits in the body, for a mask.
        slice: the covered ranges, for a slice.
        code: encoding of the values, if any.
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
    def coverage(self) -> Coverage | None:
        """The coordinates of the values; None under a mask, whose bits are in the body."""
        return self.slice or (None if self.shape is None else Full())

    @property
    def names(self) -> list[str]:
        """The tensors of the body that belong to it."""
        masks = [] if self.mask is None else [self.mask]
        if self.code is None:
            return [self.values, *masks]
        return [array_name(self.values, role) for role in self.code.roles]


def header_limit_bytes(manifest: Manifest, groups: int) -> int:
    """Largest header to parse: protobuf can amplify memory about twenty times."""
    names = sum(3 * len(name.encode()) + 512 for name in manifest.specs)
    return 64 * 1024 + groups * names


def check_header(
    header: fleet_pb2.UpdateHeader, limits: Limits, manifest: Manifest
) -> list[PlannedPart]:
    """Check everything that can be checked before the body: weight, size, metrics, coverage.

    Raises:
        Refusal: the first fault found.
    """
    _check_weight(header, limits)
    for metrics in (header.training, header.evaluation):
        check_metrics(metrics.num_examples, metrics.values)
    _check_scalars(header, limits)
    if header.size_bytes > limits.max_bytes:
        raise Refusal(
            Code.TOO_LARGE,
            f"Expected at most {limits.max_bytes} bytes, got a declaration of {header.size_bytes}.",
        )
    if bool(header.parts) != bool(header.size_bytes):
        raise Refusal(
            Code.MALFORMED,
            f"Expected a body if and only if there are parts, got {len(header.parts)} parts "
            f"and {header.size_bytes} bytes.",
        )
    check_compression(header.compression, limits.codec)
    method = limits.codec if header.compression.codec else None
    planned = [_plan(part, limits, manifest, method) for part in header.parts]
    check_unique([(p.group, p.tensor) for p in planned])
    check_unique([name for p in planned for name in p.names])
    for group in limits.groups:
        covered = {p.tensor: p.coverage for p in planned if p.group == group}
        check_ranks(covered, limits, manifest)
    return planned


def check_ranks(covered: Mapping[str, Coverage | None], limits: Limits, manifest: Manifest) -> None:
    """Check the ranks of low-rank adapters.

    Args:
        covered: what an update covers of each tensor, in one group; None under a mask.
        limits: of the run.
        manifest: of the model.

    Raises:
        Refusal: WRONG_SHAPE.
    """
    if limits.adapters is None:
        return
    try:
        limits.adapters.check_update(covered, manifest.specs)
    except ValueError as error:
        raise Refusal(Code.WRONG_SHAPE, str(error)) from None


def _check_weight(header: fleet_pb2.UpdateHeader, limits: Limits) -> None:
    weight = header.weight
    check_weight(weight, limits.max_weight)
    wanted = {"examples": float(header.training.num_examples), "uniform": 1.0}.get(
        limits.weighting, weight
    )
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


def check_metrics(num_examples: int, values: Mapping[str, float]) -> None:
    """Check what a client measured, on a server and in a simulation.

    Raises:
        Refusal: WEIGHT_OUT_OF_RANGE, MALFORMED, NOT_FINITE or MAGNITUDE_TOO_LARGE.
    """
    if num_examples > MAX_EXAMPLES:
        raise Refusal(
            Code.WEIGHT_OUT_OF_RANGE,
            f"Expected at most {MAX_EXAMPLES} examples, got {num_examples}.",
        )
    if len(values) > MAX_METRICS:
        raise Refusal(Code.MALFORMED, f"Expected at most {MAX_METRICS} metrics, got {len(values)}.")
    for name, value in values.items():
        if len(name) > MAX_NAME or not name.isprintable():
            raise Refusal(
                Code.MALFORMED,
                f"Expected metric names of at most {MAX_NAME} printable characters, got "
                f"{len(name)}: {name[:80]!r}.",
            )
        if not math.isfinite(value):
            raise Refusal(Code.NOT_FINITE, f"Expected a finite metric {name!r}, got {value}.")
        if abs(value) > MAX_METRIC:
            raise Refusal(
                Code.MAGNITUDE_TOO_LARGE,
                f"Expected metrics of at most {MAX_METRIC:g}, got {value:g} for {name!r}.",
            )


def check_unique(names: Sequence[object]) -> None:
    """Check that names differ.

    Raises:
        Refusal: DUPLICATE_TENSOR.
    """
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
    if part.tensor in limits.fixed:
        raise Refusal(
            Code.UNKNOWN_TENSOR,
            f"Expected no values of {part.tensor!r} in a private run, whose noise is for "
            f"floating point, got some of {manifest.dtypes[part.tensor]}. Update the client.",
        )
    if part.tensor in limits.unasked:
        raise Refusal(
            Code.UNKNOWN_TENSOR,
            f"Expected no values of {part.tensor!r}, which this run does not train (train.only or "
            "adapters.aggregate), got some. Send what the task asks for, or update the client.",
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
