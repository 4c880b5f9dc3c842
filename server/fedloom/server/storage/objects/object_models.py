"""The model store of a server whose models lie in an object store; its folder is a cache.

Invariants: a model is durable in the object store before its row is in the ledger, and the row is
there before `adopt` returns. A file of the cache has the digest of its name, also after a power
cut. What the cache drops is fetched again.
"""

import hashlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import IntegrityError
from fedloom.server.storage.model_store import ModelStore
from fedloom.server.storage.objects.interface import DamagedObjectError, unique
from fedloom.server.storage.objects.parts import get_file, part_names, put_file
from fedloom.server.storage.objects.remote import RemoteStorage

FOLDER = "models"

UNUSED_S: Final = 600.0
"""Age below which a file of the cache is kept: it may be about to be read."""

_ATTEMPTS: Final = 3
"""Times that a model is fetched before it counts as damaged."""


class ObjectModels(ModelStore):
    """Models in an object store; see `ModelStore`. Its methods wait for the store and the ledger.

    Args:
        directory: of the cache, created if needed.
        remote: the object store.
    """

    def __init__(self, directory: Path, remote: RemoteStorage) -> None:
        super().__init__(directory)
        self._remote = remote
        self._fetching = threading.Lock()

    def adopt(self, temporary: Path, digest: str) -> str:
        """Store a complete file of the cache's folder under its digest, durably."""
        super().adopt(temporary, digest)
        self.put(digest)
        return digest

    def put(self, digest: str) -> None:
        """Store a model that the cache has, unless it is stored."""
        remote = self._remote
        if remote.ask(remote.ledger.hold_model_object, digest):
            return
        name = unique(f"{FOLDER}/{digest}")
        remote.storing.add(name)
        try:
            self._store(digest, name)
        finally:
            remote.storing.discard(name)

    def stored(self, digest: str) -> Iterator[bytes]:
        """Yield the parts of a model as the object store returns them.

        Raises:
            IntegrityError: the model is not stored, or a part has another length.
        """
        found = self._remote.ask(self._remote.ledger.model_object, digest)
        if found is None:
            raise self._missing(digest)
        return get_file(self._remote.objects, found.object, found.size_bytes)

    def _store(self, digest: str, name: str) -> None:
        remote = self._remote
        with self.path(digest).open("rb") as file:
            size_bytes = put_file(remote.objects, name, file.fileno())
        crossing("store.model")
        if not remote.ask(remote.ledger.add_model_object, digest, name, size_bytes):
            remote.deletions.add(part_names(name, size_bytes))

    def find(self, prefix: str) -> list[str]:
        """Digests of stored models that begin with `prefix` (hex digits)."""
        return self._remote.ask(self._remote.ledger.find_stored_models, prefix)

    def kept(self, digests: Iterable[str]) -> set[str]:
        """Those of these models that are stored."""
        return self._remote.ask(self._remote.ledger.stored_models, [*digests])

    def require(self, digests: Iterable[str]) -> None:
        """Check that models are stored.

        Raises:
            IntegrityError: one is missing.
        """
        wanted = set(digests)
        for digest in sorted(wanted - self.kept(wanted)):
            raise self._missing(digest)

    def size(self, digest: str) -> int | None:
        """Bytes of a model; None if it is not stored."""
        found = self._remote.ask(self._remote.ledger.model_object, digest)
        return None if found is None else found.size_bytes

    def hold(self, digest: str) -> bool:
        """Reset a model's age, so that `discard` keeps it; False if it is not stored."""
        return self._remote.ask(self._remote.ledger.hold_model_object, digest)

    def discard(self, digest: str, younger_than_s: float) -> bool:
        """Remove a model unless it is younger (written or held); True if it no longer exists."""
        remote = self._remote
        found = remote.ask(remote.ledger.model_object, digest)
        if not remote.ask(remote.ledger.drop_model_object, digest, younger_than_s):
            return False
        self.path(digest).unlink(missing_ok=True)
        if found is not None:
            remote.deletions.add(part_names(found.object, found.size_bytes))
        return True

    def local(self, digest: str) -> Path:
        """The path of a model's file in the cache, fetched if it lacks it.

        Raises:
            IntegrityError: the model is not stored.
            StoreFaultError: the object store does not return it.
        """
        path = self.path(digest)
        if not _touched(path):
            with self._fetching:
                if not _touched(path):
                    self._fetch(digest)
        return path

    def trim(self, limit_bytes: int) -> None:
        """Remove the least recently used files of the cache beyond a limit."""
        files = [(path.stat(), path) for path in self._directory.glob("*.safetensors")]
        total = sum(stat.st_size for stat, _ in files)
        for stat, path in sorted(files, key=lambda each: each[0].st_mtime):
            if total <= limit_bytes or time.time() - stat.st_mtime < UNUSED_S:
                break
            path.unlink(missing_ok=True)
            total -= stat.st_size

    def _fetch(self, digest: str) -> None:
        remote = self._remote
        found = remote.ask(remote.ledger.model_object, digest)
        if found is None:
            raise self._missing(digest)
        temporary = self.temporary()
        try:
            for _ in range(_ATTEMPTS):
                if self._download(temporary, found.object, found.size_bytes) == digest:
                    super().adopt(temporary, digest)
                    return
        finally:
            temporary.unlink(missing_ok=True)
        raise DamagedObjectError(
            f"Expected the bytes of the model {digest[:12]} in {found.object}, got others "
            f"{_ATTEMPTS} times: restore the object from a backup of {remote.url}."
        )

    def _download(self, path: Path, name: str, size_bytes: int) -> str:
        """Write an object to a file and sync it; returns its digest."""
        digest = hashlib.sha256()
        with path.open("wb") as file:
            for part in get_file(self._remote.objects, name, size_bytes):
                digest.update(part)
                file.write(part)
            file.flush()
            os.fdatasync(file.fileno())
        return digest.hexdigest()

    def _missing(self, digest: str) -> IntegrityError:
        return IntegrityError(f"The model {digest[:12]} is missing in {self._remote.url}.")


def _touched(path: Path) -> bool:
    """Mark a file as used; False if it does not exist."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True
