"""An update on the wire: the limits of a round, and the writing of a body.

An update is a typed header (`UpdateHeader`) and a safetensors body. The header lists the covered
coordinates of tensors (checked by `header`); the body is checked while its bytes arrive (`body`).

Invariants: no whole difference is held in memory; the checksum is of the written bytes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from fedloom.protocol.codecs import Codec
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.container import DTYPES, TensorEntry, build_header
from fedloom.protocol.trust.private_files import private_opener
from fedloom.protocol.updates.compression import EncodedPart
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import Adapters
from fedloom.strategies.exact.lazy_arrays import Values, changed, piece_of, pieces_of
from fedloom.strategies.exact.partial import Coverage, Full, Mask, Slice

_BLOCK = 1 << 16
"""Values subtracted, checksummed and written at a time, to fit the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a round accepts.

    Attributes:
        max_abs: largest magnitude of a value.
        max_norm: largest Euclidean norm of all values together; None for no limit.
        max_weight: largest weight of one update.
        weighting: source of the weight.
        groups: the groups that the strategy sums.
        max_bytes: longest body.
        codec: of updates; None: unencoded.
        scalars: names of the numbers that the strategy averages.
        kept: tensors of the model that clients keep.
        fixed: tensors that stay as they are, as all that are not floats in a private run.
        unasked: other tensors that the run does not train.
        adapters: settings that limit the ranks of low-rank adapters; None for any rank.
    """

    max_abs: float
    max_norm: float | None
    max_weight: float
    weighting: str
    groups: Sequence[str]
    max_bytes: int
    codec: Codec | None = None
    scalars: Sequence[str] = ()
    kept: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()
    unasked: frozenset[str] = frozenset()
    adapters: Adapters | None = None


class TensorPart(NamedTuple):
    """Values for some coordinates of one tensor.

    Attributes:
        group: of their sum.
        tensor: name in the manifest.
        coverage: coordinates covered.
        values: in row-major order of the coverage.
        less: of the same shape; subtracted from the values before sending.
        coded: encoding to send instead of the values.
    """

    group: str
    tensor: str
    coverage: Coverage
    values: Values
    less: Values | None = None
    coded: EncodedPart | None = None

    def sent(self, dtype: np.dtype[Any] | type[Any]) -> Values:
        """The unencoded values to send, in this dtype; `values` if nothing changes.

        An array if the values are one.
        """
        if self.less is not None:
            return changed(
                lambda of, _: np.subtract(of[0], of[1], dtype=dtype),
                self.values,
                self.less,
                dtype=dtype,
            )
        if self.values.dtype == dtype:
            return self.values
        return changed(lambda of, _: of[0], self.values, dtype=dtype)


_Stored: TypeAlias = tuple[TensorEntry, Values, Values | None]
_Planned: TypeAlias = tuple[
    list[fleet_pb2.Part], list[TensorEntry], dict[str, tuple[Values, Values | None]]
]


def write_body(
    path: Path, parts: Iterable[TensorPart], manifest: Manifest
) -> tuple[list[fleet_pb2.Part], int, int]:
    """Write an update's body and describe it.

    Returns:
        The header's parts, the body's length in bytes and its CRC-32C.
    """
    described, entries, arrays = _planned(parts, manifest)
    if not described:
        with open(path, "wb", opener=private_opener):
            return [], 0, 0
    header, layout = build_header(entries)
    checksum = crc32c(header)
    with open(path, "wb", opener=private_opener) as file:
        file.write(header)
        for name, info in layout.tensors.items():
            for block in _blocks(*arrays[name], DTYPES[info.dtype]):
                raw = block.view(np.uint8).data
                checksum = crc32c(raw, checksum)
                file.write(raw)
    return described, layout.size_bytes, checksum


def body_bytes(parts: Sequence[TensorPart], manifest: Manifest) -> int:
    """Return the length of an update's body."""
    if all(part.coded is None and not isinstance(part.coverage, Mask) for part in parts):
        return _plain_length(
            tuple((manifest.wire_dtype(part.tensor), part.values.shape) for part in parts)
        )
    stored = (each for number, part in enumerate(parts) for each in _stored(number, part, manifest))
    return _length(entry for entry, _, _ in stored)


@lru_cache(maxsize=256)
def _plain_length(values: tuple[tuple[str, tuple[int, ...]], ...]) -> int:
    return _length(TensorEntry(f"{number}", *each) for number, each in enumerate(values))


def _length(entries: Iterable[TensorEntry]) -> int:
    listed = list(entries)
    return build_header(listed)[1].size_bytes if listed else 0


def _planned(parts: Iterable[TensorPart], manifest: Manifest) -> _Planned:
    """The header's parts, the body's entries, and the arrays of each."""
    entries: list[TensorEntry] = []
    arrays: dict[str, tuple[Values, Values | None]] = {}
    described: list[fleet_pb2.Part] = []
    for number, part in enumerate(parts):
        message = fleet_pb2.Part(group=part.group, tensor=part.tensor, values=f"{number}")
        match part.coverage:
            case Full():
                message.full.SetInParent()
            case Slice(ranges):
                message.slice.ranges.extend(fleet_pb2.Range(start=a, stop=b) for a, b in ranges)
            case Mask():
                message.mask.bits = f"{number}.mask"
        if part.coded is not None:
            message.encoding.CopyFrom(part.coded.describe())
        for entry, values, less in _stored(number, part, manifest):
            entries.append(entry)
            arrays[entry.name] = values, less
        described.append(message)
    return described, entries, arrays


def _stored(number: int, part: TensorPart, manifest: Manifest) -> Iterator[_Stored]:
    """The entries of one part, each with its values and what is subtracted from them."""
    shape: tuple[int, ...] = part.values.shape
    if isinstance(part.coverage, Mask):
        packed = np.packbits(part.coverage.bits, bitorder="little")
        yield TensorEntry(f"{number}.mask", "U8", packed.shape), packed, None
        shape = (part.values.size,)
    if part.coded is None:
        entry = TensorEntry(f"{number}", manifest.wire_dtype(part.tensor), shape)
        yield entry, part.values, part.less
        return
    for entry, array in part.coded.entries(f"{number}"):
        yield entry, array, None


def _blocks(values: Values, less: Values | None, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    """The values minus `less`, a block at a time."""
    buffer = np.empty(min(_BLOCK, values.size), dtype)
    for start, block in pieces_of(values, _BLOCK):
        if less is None:
            yield block.astype(dtype, copy=False)
        else:
            before = piece_of(less, start, start + block.size)
            yield np.subtract(block, before, out=buffer[: block.size], dtype=dtype)
