"""The update of a site: the exact sum of its devices' updates, as one body.

The header describes the sum (`SiteSum`), the body holds a U8 vector of packed integers for each
tensor (`fedloom.strategies.exact.packed`). docs/protocol.md has the format.

Invariant: equal sums have equal headers and bodies.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from crc32c import crc32c

from fedloom.protocol import positional_files
from fedloom.protocol.atomic_files import sync_directory
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.tensors.container import TensorEntry, build_header, read_layout_at
from fedloom.protocol.trust.private_files import private_opener
from fedloom.protocol.updates.compression import weights_name
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import Partial
from fedloom.strategies.exact.packed import Bytes, Packing
from fedloom.strategies.exact.unpacking import Unpacking
from fedloom.strategies.summed_metrics import SummedMetrics

# ---- writing -------------------------------------------------------------------------------------


def write_site_sum(path: Path, partial: Partial, header: fleet_pb2.UpdateHeader) -> None:
    """Write the body of a sum durably and atomically, and describe it in the header."""
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
        name, size = f"{len(site.tensors)}", partial.specs[key].size
        part = header.parts.add(group=key[0], tensor=key[1], values=name)
        part.full.SetInParent()
        tensor = site.tensors.add(units=_bytes(units), bits=packing.bits, low=packing.low)
        weights = partial.packed_weights(key)
        if weights is not None:  # before the sums, whose bounds follow from them
            how, their = weights
            tensor.weights.bits, tensor.weights.low = how.bits, how.low
            entries.append(TensorEntry(weights_name(part), "U8", (how.num_bytes(size),)))
            every.append(their)
        entries.append(TensorEntry(name, "U8", (packing.num_bytes(size),)))
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
    for name, (least, most) in sums.extremes.items():
        message.values[name].least, message.values[name].most = least, most
    for name, counts in sums.counts.items():
        message.values[name].counts.extend(counts)
    return message


def metrics_of_site(message: fleet_pb2.SiteMetrics) -> SummedMetrics:
    """Return the summed metrics of a message."""
    every = message.values.items()
    return SummedMetrics(
        message.num_examples,
        {n: (tuple(m.products), tuple(m.weights)) for n, m in every},
        {n: (m.least, m.most) for n, m in every if m.HasField("least")},
        {n: tuple(m.counts) for n, m in every if m.counts},
    )


# ---- adding --------------------------------------------------------------------------------------


def add_site_sum(partial: Partial, path: Path, header: fleet_pb2.UpdateHeader) -> None:
    """Add an accepted site's sum to the round's, reading its file block by block."""
    handle = os.open(path, os.O_RDONLY | positional_files.BINARY)
    try:
        layout = read_layout_at(handle)
        for part, tensor in zip(header.parts, header.site.tensors, strict=True):
            key, named = (part.group, part.tensor), {part.values: sums_of(partial, part, tensor)}
            if tensor.HasField("weights"):
                named[weights_name(part)] = weights_of(partial, part, tensor)
            for name, unpacking in named.items():
                start = layout.data_start + layout.tensors[name].start
                unpacking.add(_reader(handle, start))
            partial.count_units(key, units_of(tensor))
    finally:
        os.close(handle)
    site = header.site
    partial.count_all(site.updates, site.nonzero, site.vanished)


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


def sums_of(partial: Partial, part: fleet_pb2.Part, tensor: fleet_pb2.SiteTensor) -> Unpacking:
    """Return what reads the sums of a part.

    Raises:
        ValueError: they do not fit the partial.
    """
    return partial.unpacking((part.group, part.tensor), Packing(tensor.bits, tensor.low))


def weights_of(partial: Partial, part: fleet_pb2.Part, tensor: fleet_pb2.SiteTensor) -> Unpacking:
    """Return what reads the weights per coordinate of a part.

    Raises:
        ValueError: no weights are packed so.
    """
    packing = Packing(tensor.weights.bits, tensor.weights.low)
    return partial.unpacking_weights((part.group, part.tensor), packing)


def units_of(tensor: fleet_pb2.SiteTensor) -> int:
    """Return the weight of a tensor's sum, in units of `WEIGHT_UNIT`."""
    return int.from_bytes(tensor.units, "little")
