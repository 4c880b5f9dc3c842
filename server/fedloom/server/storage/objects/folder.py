"""An object store in a folder, such as one of a network file system."""

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedloom.protocol.atomic_files import sync_directory
from fedloom.protocol.trust.private_files import private_directory, private_opener
from fedloom.server.storage.objects.interface import (
    MissingObjectError,
    StoredObject,
    StoreFaultError,
)

_TEMPORARY = ".tmp"


class FolderObjects:
    """An object store in a folder, created if needed; see `Objects`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with _faults("the folder", folder):
            private_directory(folder)

    def put(self, name: str, data: bytes) -> None:
        """See `Objects.put`."""
        path = self._folder / name
        draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}{_TEMPORARY}")
        with _faults(f"PUT {name}", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with open(draft, "wb", opener=private_opener) as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)
            for folder in path.relative_to(self._folder).parents:
                sync_directory(self._folder / folder)

    def get(self, name: str) -> bytes:
        """See `Objects.get`."""
        with _faults(f"GET {name}", self._folder / name):
            return (self._folder / name).read_bytes()

    def get_range(self, name: str, start: int, size: int) -> bytes:
        """See `Objects.get_range`."""
        with _faults(f"GET {name}", self._folder / name), (self._folder / name).open("rb") as file:
            file.seek(start)
            data = file.read(size)
        if len(data) != size:
            raise StoreFaultError(f"Expected {size} bytes of {name} at {start}, got {len(data)}.")
        return data

    def delete(self, names: Sequence[str]) -> None:
        """See `Objects.delete`."""
        for name in names:
            with _faults(f"DELETE {name}", self._folder / name):
                (self._folder / name).unlink(missing_ok=True)

    def list(self, folder: str) -> Iterator[StoredObject]:
        """See `Objects.list`."""
        for path in sorted((self._folder / folder).rglob("*")):
            if path.suffix != _TEMPORARY and path.is_file():
                name = path.relative_to(self._folder).as_posix()
                yield StoredObject(name, path.stat().st_mtime)


@contextmanager
def _faults(what: str, path: Path) -> Iterator[None]:
    try:
        yield
    except StoreFaultError:
        raise
    except FileNotFoundError as error:
        raise MissingObjectError(f"{what}: there is no file {path}.") from error
    except OSError as error:
        raise StoreFaultError(f"{what}: {error}") from error
