"""The spool of a server whose updates lie in an object store; its folder holds copies.

A body is put in parts while it arrives, and all of them are durable before the update is accepted.
The ledger's row of a body names its durable parts, so a server with an empty disk resumes an upload
after the last of them, and folds accepted updates again. Objects are deleted with their round.

Nothing in the folder is trusted after a start, since it is not synced: it is emptied.

Invariants: a part's name is used once. A row names only parts that are durable, and all parts only
of a body that was checked: an upload may be accepted with the parts of another one of its header.
"""

import logging
import os
import secrets
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

from crc32c import crc32c
from sqlalchemy.exc import SQLAlchemyError

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.ledger.objects.stored_bodies import BodyObject, StoredPart
from fedloom.server.storage.objects.interface import (
    DamagedObjectError,
    MissingObjectError,
    StoreFaultError,
    unique,
)
from fedloom.server.storage.objects.parts import PART_BYTES, length_of, num_parts
from fedloom.server.storage.objects.remote import RemoteStorage
from fedloom.server.storage.spool import Spool, SpoolFile, write_footer

log = logging.getLogger(__name__)

UPDATES, SUMS = "updates", "sums"

_ATTEMPTS: Final = 3
"""Times that a part is fetched before it counts as damaged."""


class ObjectSpoolFile(SpoolFile):
    """One body being received; call `begin` first. See `SpoolFile`.

    Args:
        remote: the object store.
        body: the row to begin with, unless there is one of the same header.
        key: run and round.
        given_up: objects of bodies that were dropped, shared by the spool's files.
    """

    def __init__(
        self, path: Path, handle: int, received: int, writing: set[str], *, remote: RemoteStorage,
        body: BodyObject, key: tuple[str, int], given_up: set[str],
    ) -> None:  # fmt: skip
        super().__init__(path, handle, received, body.size_bytes, writing)
        self._remote = remote
        self._body = body
        self._key = key
        self._parts: list[StoredPart] = []
        self._given_up = given_up

    def begin(self) -> None:
        """Continue an earlier upload of the same body, or begin a new one.

        Raises:
            StoreFaultError: the object store does not return the earlier parts.
        """
        remote = self._remote
        found = remote.ask(remote.ledger.body_object, self.name)
        if found is not None and self._is_same(found) and self._continue(found):
            return
        remote.ask(remote.ledger.begin_body, self.name, *self._key, self._body)
        if found is not None:
            remote.deletions.add(found.names)

    def _is_same(self, found: BodyObject) -> bool:
        return found.header == self._body.header and found.object not in self._given_up

    def _continue(self, found: BodyObject) -> bool:
        """Take over the parts of an earlier upload; False if one of them is lost or damaged."""
        durable = min(len(found.parts) * PART_BYTES, self.size_bytes)
        try:
            while self.received < durable:
                number = self.received // PART_BYTES
                self._rewrite(number, fetched(self._remote, found, number))
        except (DamagedObjectError, MissingObjectError) as error:
            log.warning("an upload begins anew after %d bytes: %s", self.received, error)
            return False
        self._body, self._parts = found, [*found.parts]
        log.info("the upload of %s continues after %d bytes", self.name, self.received)
        return True

    def _rewrite(self, number: int, data: bytes) -> None:
        os.pwrite(self._handle, data, number * PART_BYTES)
        self.received = number * PART_BYTES + len(data)
        self._note_received()

    def restart(self) -> None:
        """Drop the received bytes, on this disk and in the store."""
        super().restart()
        self.give_up()
        self._parts = []

    def give_up(self) -> None:
        """Delete the stored parts, unless the update was accepted from them."""
        body, remote = self._body, self._remote
        names = [f"{body.object}.{part.suffix}" for part in self._parts]
        self._given_up.add(body.object)

        def forget() -> list[str]:
            return names if remote.ask(remote.ledger.give_up_body, body.object) else []

        remote.deletions.add_found(forget)

    def write_back(self) -> None:
        """Store the parts that have arrived, but for the last; what fails, `sync` tries again."""
        self._written = self.received
        ready = min(self.received // PART_BYTES, num_parts(self.size_bytes) - 1)
        try:
            while len(self._parts) < ready:
                self._put_part()
        except (StoreFaultError, SQLAlchemyError) as error:
            log.warning("a part is stored when its body is complete: %s", error)

    def sync(self) -> None:
        """Store what is left of the body, which was checked.

        Raises:
            StoreFaultError: the object store does not take it; the update is not accepted.
        """
        while len(self._parts) < num_parts(self.size_bytes):
            self._put_part()

    def _put_part(self) -> None:
        remote, number = self._remote, len(self._parts)
        data = self.read(number * PART_BYTES, length_of(number, self.size_bytes))
        part = StoredPart(crc32c(data), f"{number}-{secrets.token_hex(4)}")
        name = f"{self._body.object}.{part.suffix}"
        remote.objects.put(name, data)
        crossing("store.part")
        if not remote.ask(remote.ledger.note_parts, self._body.object, [*self._parts, part]):
            remote.deletions.add([name])
            raise StoreFaultError(f"{name} is not needed any more: its round is over.")
        self._parts.append(part)


class ObjectSpool(Spool):
    """A spool over an object store; see `Spool`. Objects are deleted in the background.

    Args:
        directory: of the copies, created if needed, and emptied.
        remote: the object store.
        is_new: whether the folder's files are being moved to the store: it is not emptied.
    """

    def __init__(self, directory: Path, remote: RemoteStorage, *, is_new: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        for path in () if is_new else directory.iterdir():
            path.unlink()
        super().__init__(directory)
        self._remote = remote
        self._given_up: set[str] = set()

    def open(self, run: str, number: int, header: fleet_pb2.UpdateHeader) -> ObjectSpoolFile:
        """Begin or resume receiving the body of a header; see `ObjectSpoolFile.begin`."""
        path = self.path(f"{run}.{number}.{header.client}")
        raw = header.SerializeToString(deterministic=True)
        handle, received = self._open(path, raw, header.size_bytes)
        name = unique(f"{UPDATES}/{run}/{number}/{secrets.token_hex(2)}")
        body = BodyObject(object=name, header=raw, size_bytes=header.size_bytes)
        return ObjectSpoolFile(
            path, handle, received, self._writing, remote=self._remote, body=body,
            key=(run, number), given_up=self._given_up,
        )  # fmt: skip

    def fetch(self, name: str) -> None:
        """Make sure that the copy of a stored file is on this disk.

        Raises:
            IntegrityError: the ledger names no such file.
            StoreFaultError: the object store does not return it.
        """
        path, remote = self.path(name), self._remote
        if path.exists():
            return
        body = remote.ask(remote.ledger.body_object, name)
        if body is None or len(body.parts) < num_parts(body.size_bytes):
            raise IntegrityError(f"The accepted update {name} is missing in {remote.url}.")
        draft = self.path(f"fetch-{secrets.token_hex(8)}")
        try:
            self._write_copy(draft, body)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    def fetch_kept(self, name: str) -> None:
        """Make sure that the copy of a file is on this disk, if one is stored; as `fetch`."""
        if self._remote.ask(self._remote.ledger.body_object, name) is not None:
            self.fetch(name)

    def take_in(self, name: str, run: str, number: int, *, is_body: bool) -> None:
        """Store a whole file of the folder, unless it is stored, and read it back.

        Args:
            name: of the file.
            run: of its round.
            number: of its round.
            is_body: whether it is a body with its footer; else all of it is stored.

        Raises:
            StoreFaultError: the object store does not take it, or returns other bytes.
        """
        remote, path = self._remote, self.path(name)
        header = self.header(name) if is_body else None
        raw = b"" if header is None else header.SerializeToString(deterministic=True)
        size_bytes = path.stat().st_size if header is None else header.size_bytes
        found = remote.ask(remote.ledger.body_object, name)
        with path.open("rb") as file:
            if found is not None and (found.header, found.size_bytes) == (raw, size_bytes):
                sums = [crc32c(data) for data in _read_parts(file, size_bytes)]
                if sums == [part.crc32c for part in found.parts] and self._reads_back(found):
                    return
            body = BodyObject(
                object=unique(f"{UPDATES if is_body else SUMS}/{run}/{number}/moved"),
                header=raw, size_bytes=size_bytes, parts=(),
            )  # fmt: skip
            parts = []
            for each, data in enumerate(_read_parts(file, size_bytes)):
                parts.append(StoredPart(crc32c(data), f"{each}-{secrets.token_hex(4)}"))
                remote.objects.put(f"{body.object}.{parts[-1].suffix}", data)
        body = replace(body, parts=tuple(parts))
        for each in range(len(parts)):
            fetched(remote, body, each)
        for old in remote.ask(remote.ledger.replace_body, name, run, number, body):
            remote.deletions.add(old.names)

    def _reads_back(self, body: BodyObject) -> bool:
        """Whether the object store has a body."""
        try:
            for number in range(len(body.parts)):
                fetched(self._remote, body, number)
        except (DamagedObjectError, MissingObjectError):
            return False
        return True

    def _write_copy(self, path: Path, body: BodyObject) -> None:
        with path.open("wb") as file:
            for number in range(len(body.parts)):
                file.write(fetched(self._remote, body, number))
            if body.header:
                file.flush()
                write_footer(file.fileno(), body.header, body.size_bytes, body.size_bytes)

    def keep(self, name: str, run: str, number: int) -> None:
        """Store a file of a round that was written to this disk."""
        path, remote = self.path(name), self._remote
        size_bytes = path.stat().st_size
        body = BodyObject(
            object=unique(f"{SUMS}/{run}/{number}/sum"), header=b"", size_bytes=size_bytes
        )
        found = remote.ask(remote.ledger.body_object, name)
        handle = os.open(path, os.O_RDONLY)
        file = ObjectSpoolFile(
            path, handle, size_bytes, set(), remote=remote, body=body, key=(run, number),
            given_up=self._given_up,
        )  # fmt: skip
        try:
            remote.ask(remote.ledger.begin_body, name, run, number, body)
            if found is not None:
                remote.deletions.add(found.names)
            file.sync()
        finally:
            file.close()

    def release(self, name: str) -> None:
        """Free a file whose content is no longer needed, and delete its objects."""
        super().release(name)
        self._forget(lambda: self._remote.ledger.bodies_of_file(name))

    def discard(self, name: str) -> None:
        """Delete a file and its objects."""
        super().discard(name)
        self._forget(lambda: self._remote.ledger.bodies_of_file(name))

    def discard_late(self, name: str, run: str, number: int) -> None:
        """Delete a file of a round that came late, unless its update was accepted elsewhere."""
        self.drop_copy(name)
        remote = self._remote

        def forget() -> list[str]:
            found = remote.ask(remote.ledger.drop_unaccepted, name, run, number)
            return [each for body in found for each in body.names]

        remote.deletions.add_found(forget)

    def drop_copy(self, name: str) -> None:
        """Drop the copy of a file that another server accepted.

        It may be a part of the update, or of another one: of an upload that began here.
        """
        super().discard(name)

    def drop_copies(self, run: str, number: int) -> None:
        """Drop the copies of all files of a round, not their objects."""
        super().discard_round(run, number)

    def discard_round(self, run: str, number: int) -> None:
        """Delete all files and objects of a round."""
        super().discard_round(run, number)
        self._forget(lambda: self._remote.ledger.bodies_of_round(run, number))

    def release_round(self, run: str, number: int) -> None:
        """Release all files of a round, and delete its objects."""
        super().release_round(run, number)
        self._forget(lambda: self._remote.ledger.bodies_of_round(run, number))

    def sweep(self, open_rounds: Collection[tuple[str, int]]) -> None:
        """Delete the objects of all rounds but these."""
        super().sweep(open_rounds)
        kept, ledger = set(open_rounds), self._remote.ledger

        def ended() -> list[BodyObject]:
            others = [key for key in ledger.rounds_with_bodies() if key not in kept]
            return [body for key in others for body in ledger.bodies_of_round(*key)]

        self._forget(ended)

    def _forget(self, find: Callable[[], list[BodyObject]]) -> None:
        """Delete the objects that a call returns, which is made in the ledger's thread."""
        remote = self._remote

        def forget() -> list[str]:
            bodies = remote.ask(find)
            if bodies:
                remote.ask(remote.ledger.forget_bodies, [body.object for body in bodies])
            return [name for body in bodies for name in body.names]

        remote.deletions.add_found(forget)


def _read_parts(file: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    """Yield the parts of an open file of which so many bytes are stored."""
    for number in range(num_parts(size_bytes)):
        yield os.pread(file.fileno(), length_of(number, size_bytes), number * PART_BYTES)


def fetched(remote: RemoteStorage, body: BodyObject, number: int) -> bytes:
    """Return a part of a body.

    Raises:
        DamagedObjectError: it has other bytes than were written, several times.
    """
    name, length = body.names[number], length_of(number, body.size_bytes)
    wanted = body.parts[number].crc32c
    for _ in range(_ATTEMPTS):
        data = remote.objects.get(name)
        found = crc32c(data)
        if (len(data), found) == (length, wanted):
            return data
    raise DamagedObjectError(
        f"Expected {length} bytes with the CRC-32C {wanted:08x} in the object {name}, got "
        f"{len(data)} with {found:08x}: restore it from a backup of {remote.url}."
    )
