"""The update of a site: the exact sum of its devices' updates, as one body.

The header describes the sum (`SiteSum`), the body holds a U8 vector of packed integers for each
tensor (`fedloom.strategies.exact.packed`). docs/protocol.md has the format.

Invariants: equal sums have equal headers and bodies. `check_site_header`, and `SiteSumChecker`
for the body, pass only what so many devices could have sent together: no weight, value or number of
devices above theirs.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np
from crc32c import crc32c

from fedloom.protocol import positional_files
from fedloom.protocol.errors import Code, IntegrityError, Refusal
from fedloom.protocol.tensors.container import (
    TensorEntry,
    build_header,
    read_layout_at,
    sync_directory,
)
from fedloom.protocol.trust.private_files import private_opener
from fedloom.protocol.updates.header import (
    MAX_EXAMPLES,
    MAX_METRIC,
    MAX_METRICS,
    MAX_NAME,
    PlannedPart,
)
from fedloom.protocol.updates.message import Limits
from fedloom.protocol.updates.site_members import read_members
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import Partial
from fedloom.strategies.exact.fixed_point import MIN_WEIGHT, WEIGHT_UNIT, weight_units
from fedloom.strategies.exact.packed import Bytes, Packing
from fedloom.strategies.exact.partial import Key
from fedloom.strategies.metrics import SummedMetrics

MAX_TERMS: Final = 64
"""Most numbers whose sum is one sum of a metric."""


# ---- writing -------------------------------------------------------------------------------------


def write_site_sum(path: Path, partial: Partial, header: fleet_pb2.UpdateHeader) -> None:
    """Write the body of a sum durably and atomically, and describe it in the header.

    Raises:
        ValueError: an update in it covers a part of a tensor.
    """
    site = header.site
    site.exponent, site.narrow = partial.exponent, partial.narrow
    site.nonzero, site.vanished = partial.nonzero, partial.vanished
    entries: list[TensorEntry] = []
    every: list[Iterator[Bytes]] = []
    for key in sorted(partial.specs):
        found = partial.packed(key)
        if found is None:
            continue
        units, packing, blocks = found
        name = f"{len(entries)}"
        part = header.parts.add(group=key[0], tensor=key[1], values=name)
        part.full.SetInParent()
        site.tensors.add(units=_bytes(units), bits=packing.bits, low=packing.low)
        entries.append(TensorEntry(name, "U8", (packing.num_bytes(partial.specs[key].size),)))
        every.append(blocks)
    if entries:
        _write(path, entries, every, header)
    else:
        path.write_bytes(b"")


def _write(
    path: Path,
    entries: Sequence[TensorEntry],
    every: Sequence[Iterator[Bytes]],
    header: fleet_pb2.UpdateHeader,
) -> None:
    head, layout = build_header(entries)
    checksum, temporary = crc32c(head), path.with_name(path.name + ".tmp")
    with open(temporary, "wb", opener=private_opener) as file:
        file.write(head)
        for blocks in every:
            for block in blocks:
                file.write(block.data)
                checksum = crc32c(block.data, checksum)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)
    header.size_bytes, header.crc32c = layout.size_bytes, checksum


def metrics_message(sums: SummedMetrics) -> fleet_pb2.SiteMetrics:
    """Return the message of summed metrics."""
    message = fleet_pb2.SiteMetrics(num_examples=sums.num_examples)
    for name, (products, weights) in sums.values.items():
        message.values[name].products.extend(products)
        message.values[name].weights.extend(weights)
    return message


def metrics_of_site(message: fleet_pb2.SiteMetrics) -> SummedMetrics:
    """Return the summed metrics of a message."""
    values = {n: (tuple(m.products), tuple(m.weights)) for n, m in message.values.items()}
    return SummedMetrics(message.num_examples, values)


# ---- checking ------------------------------------------------------------------------------------


def check_site_header(
    header: fleet_pb2.UpdateHeader, limits: Limits, empty: Partial, devices: int
) -> list[PlannedPart]:
    """Check the header of a site's sum before its body.

    Args:
        header: of the update.
        limits: on the updates of the round's devices.
        empty: the round's sum before any update.
        devices: most of them whose updates the sum may have.

    Returns:
        The parts of the body.

    Raises:
        Refusal: the first fault found.
    """
    site = header.site
    if (site.exponent, site.narrow) != (empty.exponent, empty.narrow):
        raise Refusal(
            Code.MALFORMED,
            f"Expected a sum with exponent {empty.exponent} and narrow={empty.narrow}, got "
            f"{site.exponent} and {site.narrow}. Update the site's server.",
        )
    if not 1 <= site.devices <= devices:
        raise Refusal(
            Code.WEIGHT_OUT_OF_RANGE,
            f"Expected a sum of 1 to {devices} devices, as the site's task allows, got "
            f"{site.devices}.",
        )
    _check_total(header, limits)
    read_members(site)
    for metrics in (site.training, site.evaluation):
        _check_metrics(metrics, site.devices)
    if len(site.tensors) != len(header.parts) or bool(header.parts) != bool(header.size_bytes):
        raise Refusal(
            Code.MALFORMED,
            f"Expected a description of each part, and a body if there are parts, got "
            f"{len(header.parts)} parts, {len(site.tensors)} descriptions and "
            f"{header.size_bytes} bytes.",
        )
    planned, known = [], set[Key]()
    for part, tensor in zip(header.parts, site.tensors, strict=True):
        key = part.group, part.tensor
        if key in known:
            raise Refusal(Code.DUPLICATE_TENSOR, f"Expected {part.tensor!r} once, got it twice.")
        known.add(key)
        planned.append(_plan(part, tensor, header, limits, empty))
    return planned


def _check_total(header: fleet_pb2.UpdateHeader, limits: Limits) -> None:
    devices, uniform = header.site.devices, limits.weighting == "uniform"
    least = float(devices) if uniform else MIN_WEIGHT
    most = devices * (1.0 if uniform else limits.max_weight)
    if not least <= header.weight <= most * _ROUNDED:
        raise Refusal(
            Code.WEIGHT_OUT_OF_RANGE,
            f"Expected a weight from {least:g} to {most:g} of {devices} devices, got "
            f"{header.weight:g}.",
        )
    forbidden = [f.name for f, _ in header.ListFields() if f.name in _OF_DEVICES]
    if forbidden:
        raise Refusal(
            Code.MALFORMED, f"Expected no {forbidden[0]} beside a site's sum, got some of it."
        )


_ROUNDED: Final = 1 + 2.0**-50
"""Factor for the rounding of a sum of weights to float64."""
_OF_DEVICES: Final = frozenset(
    {"training", "evaluation", "scalars", "compression", "masking_session"}
)


def _plan(
    part: fleet_pb2.Part,
    tensor: fleet_pb2.SiteTensor,
    header: fleet_pb2.UpdateHeader,
    limits: Limits,
    empty: Partial,
) -> PlannedPart:
    key = part.group, part.tensor
    spec = empty.specs.get(key)
    if spec is None:
        raise Refusal(
            Code.UNKNOWN_TENSOR,
            f"Expected one of the {len(empty.specs)} tensors that this run sums, got "
            f"{part.tensor[:MAX_NAME]!r} in {part.group[:MAX_NAME]!r}.",
        )
    if part.WhichOneof("coverage") != "full" or part.HasField("encoding"):
        raise Refusal(Code.MALFORMED, f"Expected {part.tensor!r} whole and packed, got a part.")
    packing = Packing(tensor.bits, tensor.low)
    try:
        empty.unpacking(key, packing)
    except ValueError as error:
        raise Refusal(Code.MAGNITUDE_TOO_LARGE, f"{part.tensor}: {error}") from None
    units, devices = units_of(tensor), header.site.devices
    heaviest = 1.0 if limits.weighting == "uniform" else limits.max_weight
    if not 0 < units <= devices * weight_units(heaviest):
        raise Refusal(
            Code.WEIGHT_OUT_OF_RANGE,
            f"Expected a weight of {part.tensor!r} above 0 and at most {devices} times "
            f"{heaviest:g}, got {float(units * Fraction(WEIGHT_UNIT)):g}.",
        )
    return PlannedPart(part.group, part.tensor, part.values, (packing.num_bytes(spec.size),), "U8")


def _check_metrics(message: fleet_pb2.SiteMetrics, devices: int) -> None:
    most = devices * MAX_EXAMPLES
    if message.num_examples > most:
        raise Refusal(
            Code.WEIGHT_OUT_OF_RANGE,
            f"Expected at most {most} examples of {devices} devices, got {message.num_examples}.",
        )
    if len(message.values) > MAX_METRICS * devices:
        raise Refusal(
            Code.MALFORMED,
            f"Expected at most {MAX_METRICS * devices} metrics, got {len(message.values)}.",
        )
    for name, metric in message.values.items():
        terms = (*metric.products, *metric.weights)
        if len(name) > MAX_NAME or not name.isprintable() or len(terms) > 2 * MAX_TERMS:
            raise Refusal(
                Code.MALFORMED,
                f"Expected metrics by printable names of at most {MAX_NAME} characters, each of at "
                f"most {2 * MAX_TERMS} numbers, got {name[:80]!r} of {len(terms)}.",
            )
        if not all(map(math.isfinite, terms)):
            raise Refusal(Code.NOT_FINITE, f"Expected finite sums of the metric {name!r}.")
        product = sum(map(Fraction, metric.products), Fraction())
        weight = sum(map(Fraction, metric.weights), Fraction())
        if not (
            0 < weight <= message.num_examples and abs(product) <= Fraction(MAX_METRIC) * weight
        ):
            raise Refusal(
                Code.MAGNITUDE_TOO_LARGE,
                f"Expected a mean of {name!r} of at most {MAX_METRIC:g}, over at most "
                f"{message.num_examples} examples, got {float(weight):g} examples.",
            )


# ---- adding --------------------------------------------------------------------------------------


def add_site_sum(partial: Partial, path: Path, header: fleet_pb2.UpdateHeader) -> None:
    """Add an accepted site's sum to the round's, reading its file block by block."""
    handle = os.open(path, os.O_RDONLY | positional_files.BINARY)
    try:
        layout = read_layout_at(handle)
        for part, tensor in zip(header.parts, header.site.tensors, strict=True):
            info = layout.tensors[part.values]
            unpacking = partial.unpacking(
                (part.group, part.tensor), Packing(tensor.bits, tensor.low)
            )
            unpacking.add(units_of(tensor), _reader(handle, layout.data_start + info.start))
    finally:
        os.close(handle)
    site = header.site
    partial.count_all(site.devices, site.nonzero, site.vanished)


def _reader(handle: int, position: int) -> Callable[[int], Bytes]:
    def read(count: int) -> Bytes:
        nonlocal position
        raw = positional_files.read_at(handle, count, position)
        if len(raw) != count:
            raise IntegrityError(f"Expected {count} bytes of a sum, got {len(raw)}.")
        position += count
        return np.frombuffer(raw, np.uint8)

    return read


def _bytes(units: int) -> bytes:
    return units.to_bytes(-(-units.bit_length() // 8), "little")


def units_of(tensor: fleet_pb2.SiteTensor) -> int:
    """Return the weight of a tensor's sum, in units of `WEIGHT_UNIT`."""
    return int.from_bytes(tensor.units, "little")
