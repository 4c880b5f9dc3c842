"""An object store that speaks S3, through the library obstore (the extra `s3`).

Credentials come from the environment (AWS_ACCESS_KEY_ID and others) or from the machine's role.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from fedloom.server.storage.objects.interface import (
    MissingObjectError,
    StoredObject,
    StoreFaultError,
)
from fedloom.server.store_url import StoreUrl

CONNECT_S, REQUEST_S = 5.0, 60.0
"""Longest time of a connection's set-up, and of a whole request."""

_PAGE: Final = 1000


class S3Objects:
    """An object store that speaks S3; see `Objects`.

    The library's own retries are off: ours are logged.
    """

    def __init__(self, url: StoreUrl) -> None:
        given = {name: value for name in ("endpoint", "region") if (value := getattr(url, name))}
        self._store = S3Store(
            url.bucket,
            prefix=url.prefix or None,
            client_options={
                "allow_http": url.endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=CONNECT_S),
                "timeout": timedelta(seconds=REQUEST_S),
            },
            retry_config={"max_retries": 0},
            **given,
        )

    def put(self, name: str, data: bytes) -> None:
        """See `Objects.put`."""
        with _faults(f"PUT {name}"):
            obstore.put(self._store, name, data, use_multipart=False)

    def get(self, name: str) -> bytes:
        """See `Objects.get`."""
        with _faults(f"GET {name}"):
            return bytes(obstore.get(self._store, name).bytes())

    def get_range(self, name: str, start: int, size: int) -> bytes:
        """See `Objects.get_range`."""
        with _faults(f"GET {name}"):
            data = bytes(obstore.get_range(self._store, name, start=start, length=size))
        if len(data) != size:
            raise StoreFaultError(f"Expected {size} bytes of {name} at {start}, got {len(data)}.")
        return data

    def delete(self, names: Sequence[str]) -> None:
        """See `Objects.delete`."""
        if names:
            with _faults(f"DELETE {names[0]}"):
                obstore.delete(self._store, list(names))

    def list(self, folder: str) -> Iterator[StoredObject]:
        """See `Objects.list`."""
        with _faults(f"LIST {folder}"):
            for page in obstore.list(self._store, folder, chunk_size=_PAGE):
                for each in page:
                    yield StoredObject(each["path"], each["last_modified"].timestamp())


@contextmanager
def _faults(what: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise MissingObjectError(f"{what}: {_first_line(error)}") from None
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise StoreFaultError(
            f"{what}: the store refuses the credentials: {_first_line(error)}"
        ) from None
    except (BaseError, OSError, ValueError) as error:
        raise StoreFaultError(f"{what}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """Return the library's message without its structures for debugging."""
    return str(error).partition("\n\nDebug source")[0].replace("\n", " ")[:400]
