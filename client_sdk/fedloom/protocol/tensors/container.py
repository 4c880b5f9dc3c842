"""The safetensors container: parsed strictly from untrusted bytes, written in one pass.

The form of models and updates (https://huggingface.co/docs/safetensors, "Format"): an 8-byte
little-endian length, that many bytes of JSON naming each tensor's dtype, shape and byte range, then
the tensors' bytes. It contains no code, so untrusted files are safe to read. The parser accepts a
header only if the tensors tile the body exactly, in order, each aligned to its item size, so that a
receiver can check every value of a stream without holding a tensor.

bfloat16 has no numpy dtype: such tensors are widened to float32, which is exact, when read.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol import positional_files
from fedloom.protocol.atomic_files import sync_directory
from fedloom.protocol.errors import Code, IntegrityError, Refusal, UsageError
from fedloom.strategies.exact.lazy_arrays import Pieces, Values, pieces_of

PREFIX_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_KEPT_BYTES = 1 << 16
"""Headers up to this length are kept with their layouts: a few megabytes of memory at most."""
_WRITE_VALUES = 1 << 17
READ_UP_TO_BYTES = 64 << 20
"""Files up to this size are read if pages would be copied: a third of the cost of page faults."""
MAX_DIMENSIONS = 32

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),  # raw bits: see widen()
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a container.

    Attributes:
        name: unique in its container.
        dtype: a key of `DTYPES`.
        shape: may be empty (a scalar).
        start: first byte, counted from the end of the header.
        stop: byte after the last.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a container.

    Attributes:
        tensors: by name, in the order of their bytes.
        data_start: file offset of the first tensor byte.
        size_bytes: the whole container's length.
    """

    tensors: Mapping[str, TensorInfo]
    data_start: int
    size_bytes: int


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for name, value in pairs:
        if name in entries:
            raise Refusal(
                Code.DUPLICATE_TENSOR,
                f"Expected each name once in the header, got {name[:80]!r} twice.",
            )
        entries[name] = value
    return entries


def _reject_constant(name: str) -> None:
    raise ValueError(name)  # NaN and Infinity are not JSON


def header_length(prefix: bytes) -> int:
    """Length of the JSON header that an 8-byte prefix declares."""
    return int.from_bytes(prefix[:PREFIX_BYTES], "little")


def parse_header(header: bytes) -> Layout:
    """Parse the JSON part of a container strictly; the last few short ones are kept.

    The updates of a round have the same header, and a device reads that of a model several times.

    Args:
        header: the JSON bytes, without the 8-byte prefix.

    Raises:
        Refusal: MALFORMED, DUPLICATE_TENSOR or WRONG_DTYPE.
    """
    return _parse_again(header) if len(header) <= _KEPT_BYTES else _parse(header)


def _parse(header: bytes) -> Layout:
    if not header.startswith(b"{"):
        raise _malformed("a JSON object from the first byte on", repr(header[:8]))
    try:
        # Decoded here: json alone would also accept UTF-16 and UTF-32.
        text = header.decode()
        entries = json.loads(
            text, object_pairs_hook=_reject_duplicates, parse_constant=_reject_constant
        )
        if "\\u" in text:  # a lone surrogate is no text, which Python would accept
            json.dumps(entries, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise _malformed("JSON in UTF-8", type(error).__name__) from None
    _check_metadata(entries.pop("__metadata__", {}))
    infos = sorted((_entry(name, value) for name, value in entries.items()), key=_order)
    position = 0
    for info in infos:
        if info.start != position or info.start % DTYPES[info.dtype].itemsize:
            raise _malformed(
                f"tensor {info.name[:80]!r} to start at byte {position}, aligned", str(info.start)
            )
        position = info.stop
    data_start = PREFIX_BYTES + len(header)
    tensors = MappingProxyType({info.name: info for info in infos})
    return Layout(tensors, data_start, data_start + position)


_parse_again = lru_cache(maxsize=8)(_parse)


def _check_metadata(metadata: object) -> None:
    if not isinstance(metadata, dict) or not all(type(v) is str for v in metadata.values()):
        raise _malformed("strings by name in __metadata__", "something else")


def _order(info: TensorInfo) -> tuple[int, int]:
    return info.start, info.stop


def _malformed(expected: str, got: str) -> Refusal:
    return Refusal(Code.MALFORMED, f"Expected {expected} in the safetensors header, got {got}.")


def _entry(name: str, value: object) -> TensorInfo:
    match value:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [start, stop]}:
            pass
        case _:  # not quoted: the repr of deeply nested values raises
            raise _malformed(
                f"dtype, shape and two data_offsets for {name[:80]!r}", type(value).__name__
            )
    if dtype not in DTYPES:
        raise Refusal(
            Code.WRONG_DTYPE,
            f"Expected a dtype of {', '.join(DTYPES)} for {name[:80]!r}, got {dtype[:80]!r}.",
        )
    if not (type(start) is type(stop) is int and 0 <= start <= stop):
        raise _malformed(f"two rising whole numbers as data_offsets for {name[:80]!r}", "others")
    if len(shape) > MAX_DIMENSIONS or not all(type(n) is int and 0 <= n < 2**48 for n in shape):
        raise _malformed(f"at most {MAX_DIMENSIONS} whole dimensions for {name[:80]!r}", "others")
    info = TensorInfo(name, dtype, tuple(shape), start, stop)
    size_bytes = info.size * DTYPES[dtype].itemsize
    if stop - start != size_bytes:
        raise _malformed(
            f"{size_bytes} bytes for {name[:80]!r} of shape {shape}", f"{stop - start}"
        )
    return info


def read_layout(file: IO[bytes]) -> Layout:
    """Read and check the header of a file that this system or an operator wrote.

    Raises:
        IntegrityError: it is not a safetensors file, or its size does not match its header.
    """
    size_bytes = os.fstat(file.fileno()).st_size
    try:
        layout = read_layout_at(file.fileno())
    except IntegrityError as error:
        raise IntegrityError(f"{file.name}: {error}") from error
    if layout.size_bytes != size_bytes:
        raise IntegrityError(
            f"Expected {layout.size_bytes} bytes in {file.name}, got {size_bytes}."
        )
    return layout


def read_layout_at(handle: int) -> Layout:
    """The layout of a container at the start of a file that may be longer.

    Raises:
        IntegrityError: there is no container.
    """
    length = header_length(positional_files.read_at(handle, PREFIX_BYTES, 0))
    if not 2 <= length <= min(MAX_HEADER_BYTES, os.fstat(handle).st_size):
        raise IntegrityError(
            "Expected a safetensors file, got other bytes: `fedloom model init` and "
            "fedloom.client.save_file write one."
        )
    try:
        return parse_header(positional_files.read_at(handle, length, PREFIX_BYTES))
    except Refusal as refusal:
        raise IntegrityError(str(refusal)) from refusal


def widen(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The values of a stored array: bfloat16 bits become float32, other dtypes do not change."""
    if dtype != "BF16":
        return array
    return (array.astype(np.uint32) << 16).view(np.float32)


def narrow(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The inverse of `widen`: float32 rounded to the nearest bfloat16, ties to even."""
    if dtype != "BF16":
        return array.astype(DTYPES[dtype], copy=False)
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    quiet_nan = (bits >> 16) | 0x40
    return np.where(np.isnan(array), quiet_nan, rounded).astype(np.uint16)


def dtype_name(dtype: np.dtype[Any], tensor: str = "") -> str:
    """The container's name for a numpy dtype; `tensor` is whose it is, for the message.

    Raises:
        UsageError: the format has no such dtype.
    """
    name = _NAMES.get(dtype.newbyteorder("<") if dtype.byteorder == ">" else dtype)
    if name is None:
        of = f" for {tensor[:80]!r}" if tensor else ""
        raise UsageError(f"Expected a dtype of {', '.join(DTYPES)}{of}, got {dtype}.")
    return name


def read_params(path: Path, *, writable: bool = False) -> dict[str, NDArray[Any]]:
    """The tensors of a file, memory-mapped: pages load when touched.

    Args:
        path: a safetensors file.
        writable: return private copies (copy-on-write for a large file); the file never changes.

    Returns:
        Arrays by name in their shapes; bfloat16 as float32.
    """
    with path.open("rb") as file:
        layout = read_layout(file)
    if layout.data_start == layout.size_bytes:
        return {n: np.empty(i.shape, DTYPES[i.dtype]) for n, i in layout.tensors.items()}
    data: NDArray[np.uint8]
    if writable and layout.size_bytes <= READ_UP_TO_BYTES:
        data = np.fromfile(path, np.uint8, offset=layout.data_start)
    else:
        data = np.memmap(path, np.uint8, mode="c" if writable else "r", offset=layout.data_start)
    params = {}
    for name, info in layout.tensors.items():
        raw: NDArray[Any] = data[info.start : info.stop]
        raw = raw.view(np.ndarray)
        if (layout.data_start + info.start) % DTYPES[info.dtype].itemsize:
            raw = raw.copy()  # from a writer that does not pad headers
        params[name] = widen(raw.view(DTYPES[info.dtype]), info.dtype).reshape(info.shape)
    return params


class TensorEntry(NamedTuple):
    """A tensor about to be written: its name, container dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def build_header(entries: Iterable[TensorEntry]) -> tuple[bytes, Layout]:
    """The prefix and header of a container with these tensors.

    Wider dtypes come first, then the given order, so that every tensor is aligned to its item
    size; the header is padded with spaces to a multiple of 8.
    """
    ordered = sorted(entries, key=lambda entry: -DTYPES[entry.dtype].itemsize)
    described: dict[str, object] = {}
    infos: dict[str, TensorInfo] = {}
    position = 0
    for entry in ordered:
        stop = position + math.prod(entry.shape) * DTYPES[entry.dtype].itemsize
        infos[entry.name] = TensorInfo(entry.name, entry.dtype, entry.shape, position, stop)
        described[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [position, stop],
        }
        position = stop
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    prefix = len(text).to_bytes(PREFIX_BYTES, "little")
    data_start = PREFIX_BYTES + len(text)
    return prefix + text, Layout(infos, data_start, data_start + position)


class Sink(Protocol):
    """A sink of bytes."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Write all of `data`."""


def container_bytes(params: Mapping[str, Values], dtypes: Mapping[str, str] | None = None) -> int:
    """The length of the container that `write_params` writes."""
    return _layout(params, dtypes)[1].size_bytes


def _layout(params: Mapping[str, Values], dtypes: Mapping[str, str] | None) -> tuple[bytes, Layout]:
    stored = {n: (dtypes or {}).get(n) or dtype_name(a.dtype, n) for n, a in params.items()}
    return build_header(TensorEntry(n, stored[n], a.shape) for n, a in params.items())


def write_params(
    file: Sink, params: Mapping[str, Values], dtypes: Mapping[str, str] | None = None
) -> str:
    """Write a container and return its SHA-256, lower-case hex.

    Args:
        file: open for writing in binary; neither synced nor closed.
        params: arrays by name.
        dtypes: container dtypes by name, if they differ from the arrays' own.
    """
    params = {n: a if isinstance(a, Pieces) else np.asarray(a) for n, a in params.items()}
    header, layout = _layout(params, dtypes)
    digest = hashlib.sha256(header)
    file.write(header)
    for name, info in layout.tensors.items():
        for _, piece in pieces_of(params[name], _WRITE_VALUES):
            block = np.ascontiguousarray(narrow(piece, info.dtype)).view(np.uint8).data
            file.write(block)
            digest.update(block)
    return digest.hexdigest()


def write_file(
    path: Path,
    params: Mapping[str, Values],
    dtypes: Mapping[str, str] | None = None,
    opener: Callable[[str, int], int] | None = None,
) -> str:
    """Write `path` durably and atomically: it holds the old bytes or the new ones, never a part.

    `opener` is that of `open`; it decides the mode of the file.

    Returns:
        The SHA-256 of the file, lower-case hex.
    """
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb", opener=opener) as file:
        digest = write_params(file, params, dtypes)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)
    return digest
