"""The spool: bodies of updates on disk, from their first byte until a durable sum holds them.

A spool file is a body and a footer: the number of received bytes, the update's header and the
header's length. So an interrupted upload can be resumed, also after a restart, and an accepted
update can be folded again from its file alone. Overwriting a file in place is twice as fast as
growing a new one, so a limited number of finished files is kept for reuse.

The footer's count is only a hint: a resumed upload checks the earlier bytes again, and only a
complete body with the right checksum is accepted.
"""

import os
from collections import deque
from collections.abc import Collection
from pathlib import Path

from fedloom.protocol.atomic_files import sync_directory
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.storage import writeback

_COUNT = 8
_LENGTH = 4


class SpoolFile:
    """One body being received.

    Attributes:
        name: of the file in the spool.
        received: bytes received so far.
        size_bytes: bytes of the whole body.
    """

    def __init__(
        self, path: Path, handle: int, received: int, size_bytes: int, writing: set[str]
    ) -> None:
        self.name = path.name
        self._folder = path.parent
        self.received = received
        self.size_bytes = size_bytes
        self._handle = handle
        self._written = received
        self._writing = writing
        writing.add(self.name)

    def append(self, chunk: bytes) -> None:
        """Write the next bytes of the body."""
        view = memoryview(chunk)
        while view:
            written = os.pwrite(self._handle, view, self.received)
            self.received += written
            view = view[written:]
        self._note_received()

    def _note_received(self) -> None:
        os.pwrite(self._handle, self.received.to_bytes(_COUNT, "little"), self.size_bytes)

    def begin(self) -> None:
        """Continue after the received bytes: they are in this file."""

    @property
    def unwritten(self) -> int:
        """Bytes received since the last `write_back`."""
        return self.received - self._written

    def write_back(self) -> None:
        """Let the kernel begin to write the received bytes, without waiting; not a sync."""
        start, self._written = self._written, self.received
        writeback.begin(self._handle, start, self._written - start)

    def read(self, offset: int, size: int) -> bytes:
        """Read received bytes."""
        return os.pread(self._handle, size, offset)

    def restart(self) -> None:
        """Drop the received bytes."""
        self.received = self._written = 0
        os.pwrite(self._handle, bytes(_COUNT), self.size_bytes)

    def give_up(self) -> None:
        """Nothing: what the body's round leaves on this disk is freed with it."""

    def sync(self) -> None:
        """Sync the body and its name to disk.

        Raises:
            OSError: the disk failed. The body is dropped: a system reports a failed write once, so
                a second sync could succeed without the bytes.
        """
        try:
            os.fdatasync(self._handle)
        except OSError:
            self.restart()
            raise
        sync_directory(self._folder)

    def close(self) -> None:
        """Close the file; it stays in the spool."""
        self._writing.discard(self.name)
        os.close(self._handle)


class Spool:
    """A directory of spool files.

    Args:
        directory: created if needed.
        keep: finished files kept for reuse.
    """

    def __init__(self, directory: Path, keep: int = 32) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._keep = keep
        self._writing: set[str] = set()
        self._free = deque(sorted(directory.glob("free-*")))
        self._next_free = 1 + max((int(p.name[5:]) for p in self._free), default=0)

    def path(self, name: str) -> Path:
        """Path of a spool file."""
        return self._directory / name

    def open(self, run: str, number: int, header: fleet_pb2.UpdateHeader) -> SpoolFile:
        """Begin or resume receiving the body of a header.

        Raises:
            OSError: the disk is full.
        """
        path = self._directory / f"{run}.{number}.{header.client}"
        raw = header.SerializeToString(deterministic=True)
        handle, received = self._open(path, raw, header.size_bytes)
        return SpoolFile(path, handle, received, header.size_bytes, self._writing)

    def _open(self, path: Path, header: bytes, size_bytes: int) -> tuple[int, int]:
        """Open a file for a body; returns its handle and the bytes of the body that it has."""
        if path.exists():
            handle = os.open(path, os.O_RDWR)
            found = _read_footer(handle)
            if found is not None and found[0] == header:
                return handle, found[1]
        else:
            handle = self._take(path)
        write_footer(handle, header, size_bytes)
        return handle, 0

    def _take(self, path: Path) -> int:
        while self._free:
            free = self._free.popleft()
            try:
                free.rename(path)
            except FileNotFoundError:
                continue
            return os.open(path, os.O_RDWR)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def header(self, name: str) -> fleet_pb2.UpdateHeader:
        """The header of an accepted update.

        Raises:
            IntegrityError: the file is missing or damaged.
        """
        if not self.path(name).exists():
            raise IntegrityError(f"The accepted update {name} is missing in the spool.")
        handle = os.open(self._directory / name, os.O_RDONLY)
        try:
            footer = _read_footer(handle)
        finally:
            os.close(handle)
        if footer is None:
            raise IntegrityError(f"The accepted update {name} in the spool has no footer.")
        return fleet_pb2.UpdateHeader.FromString(footer[0])

    def fetch(self, name: str) -> None:
        """Make sure that a file is on this disk: it always is."""

    def fetch_kept(self, name: str) -> None:
        """Make sure that a file is on this disk, if there is one: it is."""

    def keep(self, name: str, run: str, number: int) -> None:
        """Make a file of a round durable that was written and synced: it is."""

    def release(self, name: str) -> None:
        """Free a file whose content is no longer needed."""
        self._free_file(name)

    def release_copy(self, name: str) -> None:
        """Free a file whose content is in a sum on this disk."""
        self._free_file(name)

    def _free_file(self, name: str) -> None:
        """Free a file for reuse.

        A file that an upload still writes to is deleted, not reused: otherwise that upload would
        write into the next update.
        """
        path = self._directory / name
        if len(self._free) >= self._keep or name in self._writing:
            path.unlink(missing_ok=True)
            return
        free = self._directory / f"free-{self._next_free:09d}"
        self._next_free += 1
        try:
            path.rename(free)
        except FileNotFoundError:
            return
        self._free.append(free)

    def discard(self, name: str) -> None:
        """Delete a file, so that nothing keeps its content."""
        self.path(name).unlink(missing_ok=True)

    def discard_late(self, name: str, run: str, number: int) -> None:  # noqa: ARG002 - of stores
        """Delete a file of a round that came late, unless its update was accepted elsewhere."""
        self.discard(name)

    def drop_copy(self, name: str) -> None:
        """Drop the copy of a file that another server accepted: there is none."""

    def drop_copies(self, run: str, number: int) -> None:
        """Drop the copies of all files of a round: there are none."""

    def discard_round(self, run: str, number: int) -> None:
        """Delete all files of a round."""
        for name in self._of_round(run, number):
            self.path(name).unlink(missing_ok=True)

    def sweep(self, open_rounds: Collection[tuple[str, int]]) -> None:
        """Release files that a killed server left of ended rounds."""
        kept = tuple(f"{run}.{number}." for run, number in open_rounds)
        for path in sorted(self._directory.iterdir()):
            if not path.name.startswith(("free-", *kept)):
                self._free_file(path.name)

    def release_round(self, run: str, number: int) -> None:
        """Release all files of a round: accepted, incomplete and refused updates."""
        for name in self._of_round(run, number):
            self._free_file(name)

    def _of_round(self, run: str, number: int) -> list[str]:
        """Names of a round's files; `glob` would compile a pattern for each round."""
        names = os.listdir(self._directory)  # noqa: PTH208 - without a Path each
        return sorted(name for name in names if name.startswith(f"{run}.{number}."))


def write_footer(handle: int, header: bytes, size_bytes: int, received: int = 0) -> None:
    """Resize a file for a body, and write the footer."""
    footer = received.to_bytes(_COUNT, "little") + header + len(header).to_bytes(_LENGTH, "little")
    # Resize first: only a footer at the end of the file is read.
    os.ftruncate(handle, size_bytes + len(footer))
    os.pwrite(handle, footer, size_bytes)


def _read_footer(handle: int) -> tuple[bytes, int] | None:
    """Header bytes and received count; None if the file does not end with a complete footer."""
    end = os.fstat(handle).st_size
    if end < _COUNT + _LENGTH:
        return None
    length = int.from_bytes(os.pread(handle, _LENGTH, end - _LENGTH), "little")
    start = end - _LENGTH - length - _COUNT
    if start < 0:
        return None
    footer = os.pread(handle, _COUNT + length, start)
    received = int.from_bytes(footer[:_COUNT], "little")
    return (footer[_COUNT:], received) if received <= start else None
