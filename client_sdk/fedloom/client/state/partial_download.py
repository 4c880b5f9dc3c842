"""A partial download on disk: the received bytes, followed by their count.

A download that was interrupted, also by the end of the process, resumes where it stopped. The count
is only a hint: resuming hashes the earlier bytes again, and the digest of the whole decides.

Writing a new file costs three times the CPU of overwriting an old one (new pages), so the file of a
model that is no longer needed is reused.
"""

import hashlib
import os
from pathlib import Path

from fedloom.protocol.positional_files import BINARY, read_at, write_at

_COUNT = 8
_READ_BYTES = 1 << 20


class PartialDownload:
    """A download in progress.

    Args:
        path: created if missing.
        size_bytes: of the whole model.
        reuse: a file to overwrite if `path` does not exist; it must not be mapped.

    Attributes:
        path: as given.
        received: bytes so far.
    """

    def __init__(self, path: Path, size_bytes: int, reuse: Path | None = None) -> None:
        self.path = path
        self._size = size_bytes
        begun = path.exists()
        self._handle = os.open(
            path if begun or reuse is None else reuse, os.O_RDWR | os.O_CREAT | BINARY, 0o600
        )
        self.received = self._count() if begun else 0
        if not self.received:
            # Set the size first: the count is only valid at the very end of the file.
            os.ftruncate(self._handle, size_bytes + _COUNT)
            self._note()
        if not begun and reuse is not None:
            reuse.rename(path)

    @property
    def is_whole(self) -> bool:
        """Whether all bytes are received."""
        return self.received == self._size

    def append(self, chunk: bytes) -> None:
        """Write the next bytes."""
        view = memoryview(chunk)
        while view:
            written = write_at(self._handle, view, self.received)
            self.received += written
            view = view[written:]
        self._note()

    def hash(self) -> "hashlib._Hash":
        """The SHA-256 of the bytes so far."""
        digest = hashlib.sha256()
        offset = 0
        while offset < self.received:
            block = read_at(self._handle, min(_READ_BYTES, self.received - offset), offset)
            digest.update(block)
            offset += len(block)
        return digest

    def close(self) -> None:
        """Close the file; a complete one is cut to the model's bytes."""
        if self.is_whole:
            os.ftruncate(self._handle, self._size)
        os.close(self._handle)

    def _note(self) -> None:
        write_at(self._handle, self.received.to_bytes(_COUNT, "little"), self._size)

    def _count(self) -> int:
        if os.fstat(self._handle).st_size != self._size + _COUNT:
            return 0
        count = int.from_bytes(read_at(self._handle, _COUNT, self._size), "little")
        return count if count <= self._size else 0
