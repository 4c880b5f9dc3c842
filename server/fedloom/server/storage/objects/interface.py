"""What the server needs of an object store: named bytes that are written whole and read back.

Needed are an atomic PUT, a GET that sees an acknowledged PUT, DELETE, and LIST, which may lag.
Neither conditional writes nor multipart uploads are: no name is used twice, and an object counts
only where a row of the ledger names it, so a late PUT or DELETE never hits another's object.
"""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedloom.protocol.errors import UnavailableError


class StoreFaultError(UnavailableError, OSError):
    """A request to the object store failed; the same request may succeed later.

    It is an `OSError`, too, so that rounds wait for the store as they wait for a full disk.
    """


class MissingObjectError(StoreFaultError):
    """The store has no such object, or no such bucket."""


class DamagedObjectError(StoreFaultError):
    """An object has other bytes than were written."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a listing.

    Attributes:
        name: of the object.
        modified_at: seconds since the epoch, by the store's clock.
    """

    name: str
    modified_at: float


class Objects(Protocol):
    """An object store; its methods block, and may be called from any thread.

    Names have segments between slashes. Every method raises `StoreFaultError`.
    """

    def put(self, name: str, data: bytes) -> None:
        """Store an object whole, durably, or not at all."""

    def get(self, name: str) -> bytes:
        """Return the bytes of an object."""

    def get_range(self, name: str, start: int, size: int) -> bytes:
        """Return `size` > 0 bytes of an object from `start` on."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that do not exist are no error."""

    def list(self, folder: str) -> Iterator[StoredObject]:
        """Yield all objects whose names begin with these segments; "" for all."""


def unique(stem: str) -> str:
    """Return a name that was never used before."""
    return f"{stem}-{secrets.token_hex(8)}"
