"""The model store: safetensors files named by their SHA-256, written once and never changed."""

import hashlib
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedloom.protocol.atomic_files import sync_directory
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.manifest import Manifest, read_manifest
from fedloom.protocol.tensors.container import read_params, write_params
from fedloom.server.storage.writeback import Early

_READ_BYTES = 1 << 20

_PROCESS = secrets.token_hex(4)
"""Begins the names of this process's temporary files: a folder may be opened twice in one."""


class ModelStore:
    """A directory of content-addressed model files, created if needed."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._ages = threading.Lock()
        for leftover in directory.glob("*.tmp"):
            if not leftover.name.startswith(_PROCESS):
                leftover.unlink()

    def path(self, digest: str) -> Path:
        """Path of a model's file, which may not exist."""
        return self._directory / f"{digest}.safetensors"

    def save(self, params: Mapping[str, NDArray[Any]], dtypes: Mapping[str, str]) -> str:
        """Write a model durably and return its digest.

        Args:
            params: arrays by name.
            dtypes: container dtypes by name; empty for the arrays' dtypes.
        """
        temporary = self._directory / f"{_PROCESS}-{id(params):x}.tmp"
        try:
            with temporary.open("wb") as file:
                digest = write_params(Early(file), params, dtypes)
                file.flush()
                os.fdatasync(file.fileno())
            return self.adopt(temporary, digest)
        finally:
            temporary.unlink(missing_ok=True)

    def add(self, source: Path) -> str:
        """Copy a model file into the store and return its digest; errors as `checked`."""
        read_manifest(source)
        temporary = self.temporary()
        try:
            shutil.copyfile(source, temporary)
            return self.take(temporary)
        finally:
            temporary.unlink(missing_ok=True)

    def temporary(self) -> Path:
        """A new path in the store's folder, for `take`; removed when another process opens it."""
        return self._directory / f"{_PROCESS}-{secrets.token_hex(8)}.tmp"

    def take(self, temporary: Path) -> str:
        """Move a file of the store's folder into the store; errors as `checked`."""
        return self.adopt(temporary, self.checked(temporary))

    def checked(self, temporary: Path) -> str:
        """Check and sync a file for `adopt`; return its digest.

        Raises:
            IntegrityError: it is not a complete safetensors file.
            UsageError: it has tensors that cannot be averaged.
        """
        read_manifest(temporary)
        digest = hashlib.sha256()
        with temporary.open("rb") as file:
            while block := file.read(_READ_BYTES):
                digest.update(block)
            os.fdatasync(file.fileno())
        return digest.hexdigest()

    def find(self, prefix: str) -> list[str]:
        """Digests of stored models that begin with `prefix` (hex digits)."""
        return sorted(path.stem for path in self._directory.glob(f"{prefix}*.safetensors"))

    def kept(self, digests: Iterable[str]) -> set[str]:
        """Those of these models whose files exist."""
        return {digest for digest in digests if self.path(digest).exists()}

    def adopt(self, temporary: Path, digest: str) -> str:
        """Rename a complete file of the store's folder to its digest, durably."""
        temporary.replace(self.path(digest))
        sync_directory(self._directory)
        return digest

    def params(self, digest: str) -> dict[str, NDArray[Any]]:
        """A model's tensors, mapped from its file.

        Raises:
            IntegrityError: the file is missing or damaged.
        """
        return read_params(self.local(digest))

    def manifest(self, digest: str) -> Manifest:
        """A model's manifest.

        Raises:
            IntegrityError: the file is missing or damaged.
        """
        return read_manifest(self.local(digest))

    def require(self, digests: Iterable[str]) -> None:
        """Check that the files of models exist.

        Raises:
            IntegrityError: one is missing.
        """
        for digest in digests:
            self.local(digest)

    def size(self, digest: str) -> int | None:
        """Bytes of a model's file; None if it does not exist."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            return None

    def hold(self, digest: str) -> bool:
        """Reset a file's age, so that `discard` keeps it; False if it does not exist."""
        with self._ages:
            try:
                os.utime(self.path(digest))
            except FileNotFoundError:
                return False
            return True

    def discard(self, digest: str, younger_than_s: float) -> bool:
        """Remove a file unless it is younger (written or held); True if it no longer exists."""
        path = self.path(digest)
        with self._ages:
            try:
                if time.time() - path.stat().st_mtime < younger_than_s:
                    return False
                path.unlink()
            except FileNotFoundError:
                pass
            return True

    def put(self, digest: str) -> None:
        """Store a model whose file is in the folder: it is stored."""

    def stored(self, digest: str) -> Iterator[bytes]:
        """Yield the bytes of a stored model.

        Raises:
            IntegrityError: the file is missing.
        """
        with self.local(digest).open("rb") as file:
            while block := file.read(_READ_BYTES):
                yield block

    def trim(self, limit_bytes: int) -> None:
        """Remove what another store has, beyond a limit: nothing."""

    def local(self, digest: str) -> Path:
        """The path of a model's file on this disk.

        Raises:
            IntegrityError: the file is missing.
        """
        path = self.path(digest)
        if not path.exists():
            raise IntegrityError(
                f"The model {digest[:12]} is missing in {self._directory}: restore it from a "
                "backup of the state directory."
            )
        return path
