"""A model on its way in: its bytes, then a count of how many have come.

So a download that was cut, or that outlived the process, goes on where it stopped. The count is a
hint, not a proof: whoever goes on hashes the earlier bytes again, and only the digest of the whole
makes a file a model.

Growing a fresh file costs three times the CPU of overwriting an old one (new pages), so a model
that nobody needs any more gives its file away.
"""

import hashlib
import os
from pathlib import Path

_COUNT = 8
_READ_BYTES = 1 << 20


class PartialDownload:
    """A model being received.

    Args:
        path: made if needed.
        size_bytes: of the whole model.
        reuse: a file to overwrite where there is none at `path` yet; nobody may have it mapped.

    Attributes:
        path: as given.
        received: bytes that have come.
    """

    def __init__(self, path: Path, size_bytes: int, reuse: Path | None = None) -> None:
        self.path = path
        self._size = size_bytes
        begun = path.exists()
        self._handle = os.open(
            path if begun or reuse is None else reuse, os.O_RDWR | os.O_CREAT, 0o600
        )
        self.received = self._count() if begun else 0
        if not self.received:
            # The end moves first: the count is only believed at the very end of a file.
            os.ftruncate(self._handle, size_bytes + _COUNT)
            self._note()
        if not begun and reuse is not None:
            reuse.rename(path)

    @property
    def is_whole(self) -> bool:
        """Whether as many bytes have come as were promised."""
        return self.received == self._size

    def append(self, chunk: bytes) -> None:
        """Write the next bytes."""
        view = memoryview(chunk)
        while view:
            written = os.pwrite(self._handle, view, self.received)
            self.received += written
            view = view[written:]
        self._note()

    def hash(self) -> "hashlib._Hash":
        """The SHA-256 so far, of what has come."""
        digest = hashlib.sha256()
        offset = 0
        while offset < self.received:
            block = os.pread(self._handle, min(_READ_BYTES, self.received - offset), offset)
            digest.update(block)
            offset += len(block)
        return digest

    def close(self) -> None:
        """Let go of the file; what is whole is left as just the model's bytes."""
        if self.is_whole:
            os.ftruncate(self._handle, self._size)
        os.close(self._handle)

    def _note(self) -> None:
        os.pwrite(self._handle, self.received.to_bytes(_COUNT, "little"), self._size)

    def _count(self) -> int:
        if os.fstat(self._handle).st_size != self._size + _COUNT:
            return 0
        count = int.from_bytes(os.pread(self._handle, _COUNT, self._size), "little")
        return count if count <= self._size else 0
