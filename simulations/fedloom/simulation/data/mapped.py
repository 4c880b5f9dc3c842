"""Rows of an array in a file, read when they are used: for data larger than memory.

Rows are read by position (pread), which all processes can do at once, and not through a mapping: a
fault maps up to 64 KiB around a row, so 2,600 rows at random of a file of 400 MB made 160 MB
resident. What was read stays in the kernel's page cache, which all processes share.

Invariant: a row has the values of `as_model_input` of the row in the file.
"""

import os
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError

_KINDS: dict[str, type[np.generic]] = {
    "f": np.float32,
    "b": np.float32,
    "i": np.int64,
    "u": np.int64,
}

_MOST = np.iinfo(np.int64).max


def model_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which models get inputs: bytes are pixels.

    Raises:
        UsageError: they are not numbers.
    """
    if dtype == np.uint8:
        return np.dtype(np.float32)
    if dtype.kind not in _KINDS:
        raise UsageError(f"Expected inputs as numbers, got {dtype}.")
    return np.dtype(_KINDS[dtype.kind])


def as_model_input(x: NDArray[Any]) -> NDArray[Any]:
    """Inputs in `model_dtype`; pixels are divided by 255. No copy if nothing changes."""
    wanted = model_dtype(x.dtype)
    if x.dtype == np.uint8:
        out = x.astype(np.float32)
        out /= 255.0
        return out
    if x.dtype.kind == "u" and x.dtype.itemsize == 8 and x.size and x.max() > _MOST:
        raise UsageError(f"Expected whole numbers up to {_MOST:,}, got {x.max():,}.")
    with np.errstate(over="ignore"):  # `flaws` reports infinite values
        return np.ascontiguousarray(x, dtype=wanted)


class MappedRows:
    """An array in a file, or some of its rows.

    Args:
        file: holds the values, row by row.
        dtype: in the file.
        shape: in the file.
        offset: of the first value, in bytes.
        rows: indices of the rows; None for all.
    """

    def __init__(
        self,
        file: Path,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        offset: int = 0,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        self._file, self._stored, self._whole, self._offset = file, dtype, shape, offset
        self._rows = rows
        self.dtype = model_dtype(dtype)
        self.shape = (shape[0] if rows is None else len(rows), *shape[1:])

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of values."""
        return prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """A copy of these rows: an index, a slice, or an array of indices from 0."""
        wanted = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        if self._rows is not None:
            wanted = self._rows[wanted]
        found = self._read(np.atleast_1d(wanted))
        return as_model_input(found if np.ndim(wanted) else found[0])

    def subset(self, rows: NDArray[np.int64]) -> "MappedRows":
        """Some of the rows, not read."""
        chosen = rows if self._rows is None else self._rows[rows]
        return MappedRows(self._file, self._stored, self._whole, self._offset, chosen)

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedRows, (self._file, self._stored, self._whole, self._offset, self._rows)

    def _read(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """These rows of the file, shape (len(rows), …); neighbours are read together."""
        out = np.empty((len(rows), *self._whole[1:]), self._stored)
        if not out.size:
            return out
        row_bytes = out.nbytes // len(rows)
        into = memoryview(out.reshape(-1).view(np.uint8).data)
        cuts = np.flatnonzero(np.diff(rows) != 1) + 1
        starts = [0, *cuts.tolist(), len(rows)]
        try:
            with self._file.open("rb", buffering=0) as opened:
                for start, stop in pairwise(starts):
                    part = into[start * row_bytes : stop * row_bytes]
                    self._fill(opened.fileno(), part, int(rows[start]) * row_bytes)
        except OSError as error:
            raise self._damaged(error) from error
        return out

    def _fill(self, file: int, into: memoryview, position: int) -> None:
        position += self._offset
        while len(into):
            count = os.preadv(file, [into], position)
            if not count:
                raise self._damaged("its end")
            into, position = into[count:], position + count

    def _damaged(self, came: object) -> UsageError:
        return UsageError(
            f"Expected {self._whole[0]:,} rows of {self._stored} of shape {self._whole[1:]} in "
            f"{self._file}, got {came}. Do not change the file during a simulation."
        )


def of_memmap(array: np.memmap[Any, Any], where: str) -> MappedRows:
    """Rows of an array that NumPy has mapped.

    Raises:
        UsageError: its rows are not one after another.
    """
    if not array.flags.c_contiguous or array.filename is None or not array.ndim:
        raise UsageError(
            f"Expected {where} in C order, so that a row is in one place of the file, got an array "
            "in Fortran order. Write it with numpy.ascontiguousarray."
        )
    return MappedRows(Path(array.filename), array.dtype, array.shape, array.offset)


def chosen_rows(array: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """Some rows: a copy in memory, or unread if the array is in a file."""
    if isinstance(array, MappedRows):
        return array.subset(rows)  # type: ignore[return-value] # used as an array of rows
    return array[rows]


def in_memory(array: NDArray[Any], purpose: str) -> NDArray[Any]:
    """The array.

    Raises:
        UsageError: it is in a file.
    """
    if isinstance(array, MappedRows):
        raise UsageError(
            f"{purpose} reads all inputs at once, and they are mapped because they may exceed the "
            "memory. Choose another partition, or a source in memory."
        )
    return array
