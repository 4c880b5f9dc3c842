"""Reads accepted updates from their files block by block, for robust aggregations.

A block of each update is read, converted to float64 and dropped, so the memory of an aggregation
is a fixed budget for any model and number of clients. The simulator stores its updates in the same
format.

Invariant: the values do not depend on the size of the blocks.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.storage.update_parts import Span, parts_of
from fedloom.strategies import Key, TensorSpec, Updates
from fedloom.strategies.exact.partial import Floats
from fedloom.strategies.robust.base import Covered

BUDGET_BYTES: Final = 16 << 20
"""Bytes of float64 values in a block of all updates; working copies are a few times as large."""
MOST_VALUES: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class StoredUpdate:
    """One accepted update.

    Attributes:
        client: the sender.
        path: a file that begins with its body.
        header: of the update.
    """

    client: str
    path: Path
    header: fleet_pb2.UpdateHeader


class SpoolUpdates(Updates):
    """The updates of a round, in files.

    Args:
        specs: the tensors that updates may cover.
        stored: the updates, in any order; those without tensors are left out.
        budget_bytes: of the values in one block; does not change a bit of a result.

    Raises:
        IntegrityError: a file does not match its header.
    """

    def __init__(
        self,
        specs: Mapping[Key, TensorSpec],
        stored: Iterable[StoredUpdate],
        budget_bytes: int = BUDGET_BYTES,
    ) -> None:
        self._specs = dict(specs)
        files = [_File(update, specs) for update in stored if update.header.parts]
        self._files = sorted(files, key=lambda file: file.client)
        self._weights = np.array([file.weight for file in self._files], np.float64)
        count = max(1, len(self._files))
        self._width = max(1, min(MOST_VALUES, budget_bytes // (8 * count)))
        self._at: Key | None = None

    @property
    def clients(self) -> Sequence[str]:
        """The clients that sent them, sorted."""
        return [file.client for file in self._files]

    @property
    def weights(self) -> Floats:
        """Their weights, float64 [n]."""
        return self._weights

    @property
    def specs(self) -> Mapping[Key, TensorSpec]:
        """The tensors that updates may cover."""
        return self._specs

    @property
    def metrics(self) -> Sequence[Mapping[str, float]]:
        """The training metrics of each client, in the order of `clients`."""
        return [file.metrics for file in self._files]

    def covered(self, key: Key) -> bool:
        """Return whether any update covers this tensor."""
        return any(key in file.parts for file in self._files)

    def ranges(self, key: Key) -> Iterator[tuple[int, int]]:
        """Yield `(start, stop)` that tile the tensor; a block of all updates fits the budget."""
        size = self._specs[key].size
        for start in range(0, size, self._width):
            yield start, min(start + self._width, size)

    def block(self, key: Key, start: int, stop: int) -> tuple[Floats, Covered]:
        """Return the values of the flat coordinates `start:stop`, and which are covered.

        Raises:
            IntegrityError: a file is shorter than its header says.
        """
        self._come_to(key)
        values = np.zeros((len(self._files), stop - start))
        covered: NDArray[np.bool_] | None = None
        for number, file in enumerate(self._files):
            bits = self._read_into(values[number], file, key, start)
            if bits is not True:
                if covered is None:
                    covered = np.ones(values.shape, np.bool_)
                covered[number] = bits
        return values, True if covered is None else covered

    def one(self, number: int, key: Key) -> Floats | None:
        """Return a whole tensor of one update; see `Updates.one`.

        Raises:
            IntegrityError: a file is shorter than its header says.
        """
        file = self._files[number]
        if key not in file.parts:
            return None
        self._come_to(key)
        values = np.zeros(self._specs[key].size)
        self._read_into(values, file, key, 0)
        return values

    def _read_into(
        self, row: Floats, file: "_File", key: Key, start: int
    ) -> NDArray[np.bool_] | bool:
        """Fill a row with one update's values; returns which coordinates it covers."""
        part = file.parts.get(key)
        if part is None:
            return False
        with file.opened() as handle:
            span = Span(handle, self._specs[key].shape, start, start + row.size)
            first, bits = part.where(span)
            count = row.size if bits is True else int(np.count_nonzero(bits))
            if count:
                row[... if bits is True else bits] = part.values.read(handle, first, count)
        return bits

    def _come_to(self, key: Key) -> None:
        """Drop the decoders of the tensor read before."""
        if self._at is not None and self._at != key:
            for file in self._files:
                if self._at in file.parts:
                    file.parts[self._at].values.forget()
        self._at = key


class _File:
    """One update's file."""

    def __init__(self, update: StoredUpdate, specs: Mapping[Key, TensorSpec]) -> None:
        self.client = update.client
        self.weight = update.header.weight
        self.metrics = dict(update.header.training.values)
        self._path = update.path
        with self.opened() as handle:
            self.parts = parts_of(handle, update.header, specs)

    def opened(self) -> "_Handle":
        """Open the file for one read: there may be more updates than allowed open files."""
        return _Handle(self._path)


class _Handle:
    """An open file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1

    def __enter__(self) -> int:
        try:
            self._handle = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            raise IntegrityError(
                f"The accepted update {self._path.name} is missing in the spool."
            ) from None
        return self._handle

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)
