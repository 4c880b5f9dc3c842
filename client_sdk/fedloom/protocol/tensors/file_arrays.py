"""Arrays in a file, read a piece at a time: memory holds a piece, not the file.

Touched pages of a memory-mapped file would count as memory of the process (RSS, and PSS if no other
process maps them) until they are released. Pieces read here do not, and the system's cache holds
the file all the same.

Invariant: the file stays open while one of its arrays is in use, so arrays survive when the file is
deleted or replaced.
"""

import os
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol import positional_files
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.tensors.container import DTYPES, read_layout, widen
from fedloom.strategies.exact.lazy_arrays import Pieces, Values, pieces_of


class _Handle:
    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


@dataclass(frozen=True, slots=True)
class FileArray(Pieces):
    """An array in a file.

    Attributes:
        shape: of the array.
        dtype: of its values in memory.
        stored: dtype in the file, a key of `container.DTYPES`, or "" for the same.
        handle: of the file.
        offset: of its first byte there.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stored: str
    handle: _Handle
    offset: int

    def piece(self, start: int, stop: int) -> NDArray[Any]:
        """Read them."""
        stop = min(stop, self.size)  # clipped like slices: the next bytes belong to another array
        raw = np.empty(max(stop - start, 0), DTYPES[self.stored] if self.stored else self.dtype)
        view = raw.view(np.uint8).data
        at = self.offset + start * raw.dtype.itemsize
        while view:
            if not (got := positional_files.read_into(self.handle.number, view, at)):
                raise IntegrityError(f"Expected {raw.nbytes} bytes of an array, got its end.")
            view, at = view[got:], at + got
        return widen(raw, self.stored)

    def put(self, start: int, piece: NDArray[Any]) -> None:
        """Write values from `start` on; only for arrays of a `Scratch`."""
        raw = np.ascontiguousarray(piece, self.dtype).reshape(-1)
        view = raw.view(np.uint8).data
        at = self.offset + start * self.dtype.itemsize
        while view:
            written = positional_files.write_at(self.handle.number, view, at)
            view, at = view[written:], at + written


def stored_params(path: Path) -> dict[str, FileArray]:
    """The tensors of a file, not yet read; bfloat16 as float32.

    Raises:
        IntegrityError: it is no safetensors file.
    """
    with path.open("rb") as file:
        layout = read_layout(file)
        handle = _Handle(os.dup(file.fileno()))
    return {
        name: FileArray(
            info.shape,
            np.dtype(np.float32) if info.dtype == "BF16" else DTYPES[info.dtype],
            info.dtype,
            handle,
            layout.data_start + info.start,
        )
        for name, info in layout.tensors.items()
    }


class Scratch:
    """An unnamed temporary file for arrays that live until their last reference.

    Args:
        directory: for the file, which is made with the first array.

    Attributes:
        size_bytes: allocated so far.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.size_bytes = 0

    @cached_property
    def _handle(self) -> _Handle:
        number, name = tempfile.mkstemp(dir=self._directory, prefix="scratch.")
        Path(name).unlink()
        return _Handle(number)

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> FileArray:
        """Return an array of zeros to `put` values into."""
        made = FileArray(shape, dtype, "", self._handle, self.size_bytes)
        self.size_bytes += made.size * dtype.itemsize
        os.ftruncate(self._handle.number, self.size_bytes)
        return made

    def keep(self, values: Values) -> FileArray:
        """Write an array's values and return them from the file."""
        values = values if isinstance(values, Pieces) else np.asarray(values)
        made = self.room(values.shape, values.dtype)
        for start, piece in pieces_of(values):
            made.put(start, piece)
        return made
