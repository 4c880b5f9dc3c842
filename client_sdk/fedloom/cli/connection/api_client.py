"""The client of the HTTP API, over the server's Unix socket or to a URL.

Uses only the standard library, so that operators need none of the server's libraries. Each request
opens one connection. Bodies are streamed in blocks, so memory does not grow with the model.
"""

import hashlib
import http.client
import json
import math
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self
from urllib.parse import quote, urlencode

from fedloom.cli.connection.remote_server import Remote
from fedloom.protocol.atomic_files import drafted
from fedloom.protocol.errors import (
    Code,
    DeniedError,
    FedloomError,
    IntegrityError,
    Refusal,
    UnavailableError,
    UsageError,
)
from fedloom.protocol.transport import local_socket

BLOCK_BYTES = 1 << 20
TIMEOUT_S = 600.0
"""Timeout of a read. The server syncs a large model to disk before it answers."""


class Control:
    """A server's API, over its Unix socket or `--url`.

    Every request raises a FedloomError if the server is unreachable or refuses.

    Args:
        directory: the server's state directory.
        timeout_s: timeout of each read, seconds.

    Raises:
        UsageError: `--url`, `--api-token` or `--ca` is invalid.
    """

    def __init__(self, directory: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        self._remote = Remote.of_context()

    @property
    def where(self) -> str:
        """Name of the server for messages."""
        return str(self._directory) if self._remote is None else self._remote.url

    def _connect(self) -> "_Connection":
        if self._remote is not None:
            return _Connection(_Elsewhere(self._remote, self._timeout_s))
        return _Connection(_Beside(self._directory, self._timeout_s))

    def get(self, *path: str, **query: str | int | list[str]) -> Any:
        """Read the JSON document at a path of segments under /v1."""
        return self._json("GET", path, query=query)

    def post(self, *path: str, body: Any = None, **query: str | int) -> Any:
        """Send a JSON document and return the one in the response.

        Raises:
            UsageError: JSON cannot hold `body`.
        """
        try:
            data = json.dumps({} if body is None else body, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            for name, value in _not_finite(body, ()):
                raise UsageError(f"Expected a finite number for {name}, got {value}.") from None
            raise UsageError(f"JSON cannot hold these settings: {error}.") from None
        headers = {"Content-Type": "application/json"}
        return self._json("POST", path, query=query, body=data, headers=headers)

    def get_all(self, *path: str, key: str, page: str, **query: str | int) -> dict[str, Any]:
        """Read a whole list, page by page.

        Args:
            path: segments under /v1.
            key: of the list in each document.
            page: the parameter that takes the `more` of the page before.
            query: other parameters.
        """
        found: dict[str, Any] = self.get(*path, limit=1000, **query)
        while (more := found["more"]) is not None:
            following = self.get(*path, **{"limit": 1000, **query, page: more})
            found |= {key: found[key] + following[key], "more": following["more"]}
        return found

    @contextmanager
    def stream(self, *path: str, **query: str | int) -> Iterator[http.client.HTTPResponse]:
        """A response that is read as it arrives."""
        with self._connect() as connection:
            yield connection.answer("GET", _url(path, query))

    def upload(self, *path: str, file: IO[bytes], size_bytes: int) -> Any:
        """Send a file's bytes and return the JSON document in the response."""
        headers = {"Content-Length": str(size_bytes), "Content-Type": "application/octet-stream"}
        return self._json("PUT", path, body=file, headers=headers)

    def download(self, *path: str, out: Path) -> tuple[str, int]:
        """Download a model to `out`, which is written only if the digest matches.

        Returns:
            The digest, and the size in bytes.

        Raises:
            IntegrityError: the bytes do not match the digest.
        """
        with (
            drafted(out, sync=True) as draft,
            self._connect() as connection,
            draft.open("wb") as file,
        ):
            response = connection.answer("GET", _url(path))
            digest = (response.getheader("ETag") or "").strip('"')
            seen, size_bytes = hashlib.sha256(), 0
            while block := response.read(BLOCK_BYTES):
                seen.update(block)
                size_bytes += file.write(block)
            if seen.hexdigest() != digest:
                raise IntegrityError(
                    f"Expected the model {digest[:12]}, got bytes of {seen.hexdigest()[:12]}. "
                    "Try again; if it repeats, restore the server's file from a backup."
                )
        return digest, size_bytes

    def _json(
        self,
        method: str,
        path: tuple[str, ...],
        *,
        query: dict[str, Any] | None = None,
        body: bytes | IO[bytes] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        with self._connect() as connection:
            response = connection.answer(method, _url(path, query), body, headers)
            return json.loads(response.read())


def _not_finite(value: Any, at: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    """Infinities and NaN in a document, each with its name: keys joined by dots."""
    if isinstance(value, float) and not math.isfinite(value):
        yield ".".join(at).removeprefix("spec."), value
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, item in value.items() if isinstance(value, dict) else ():
        yield from _not_finite(item, (*at, str(key)))


def _url(path: tuple[str, ...], query: dict[str, Any] | None = None) -> str:
    url = "/".join(("/v1", *(quote(segment, safe="") for segment in path)))
    return f"{url}?{urlencode(query, doseq=True)}" if query else url


class NoServerError(UsageError):
    """No server can be reached from here; nothing that was sent is at fault."""


class _Beside(http.client.HTTPConnection):
    """A connection to the Unix socket in a state directory."""

    def __init__(self, directory: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s, blocksize=BLOCK_BYTES)
        self._directory = directory
        self.name = f"the server in {directory}"
        self.headers: dict[str, str] = {}

    def connect(self) -> None:
        if sys.platform == "win32":
            raise NoServerError("A server does not run on Windows. Give its address with --url.")
        path = self._directory / local_socket.NAME
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            with local_socket.address(path) as address:
                self.sock.connect(address)
        except PermissionError:
            raise NoServerError(
                f"No permission for {path}. Run this as the user who runs the server."
            ) from None
        except OSError:
            raise _absent(self._directory) from None


class _Elsewhere:
    """A connection to a URL with an API token."""

    def __init__(self, remote: Remote, timeout_s: float) -> None:
        self._remote = remote
        self._inner = remote.connection(timeout_s, BLOCK_BYTES)
        self.name = remote.url
        self.headers = {"Authorization": f"Bearer {remote.token}"}
        self.getresponse = self._inner.getresponse
        self.request = self._inner.request
        self.close = self._inner.close

    def connect(self) -> None:
        try:
            self._inner.connect()
        except OSError as error:
            raise self._remote.absent(error) from None

    @property
    def sock(self) -> socket.socket | None:
        return self._inner.sock


class _Connection:
    def __init__(self, transport: _Beside | _Elsewhere) -> None:
        self._transport = transport

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.close()

    def answer(
        self,
        method: str,
        url: str,
        body: bytes | IO[bytes] | None = None,
        headers: dict[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        """Send a request and return the response, its body unread; raises the server's error."""
        try:
            self._transport.connect()
            self._send(method, url, body, {**self._transport.headers, **(headers or {})})
            response = self._transport.getresponse()
            if response.status < 400:
                return response
            text = response.read()
        except (http.client.HTTPException, OSError) as error:
            raise UnavailableError(
                f"{self._transport.name} did not answer ({error!r}). See its log, and check that "
                "this is the console's address, not the fleet's."
            ) from error
        raise _error(response.status, text)

    def _send(
        self, method: str, url: str, body: bytes | IO[bytes] | None, headers: dict[str, str]
    ) -> None:
        try:
            self._transport.request(method, url, body, headers)
        except (BrokenPipeError, ConnectionResetError):
            # The server refused before it had read the whole body. Its response can still be read.
            if self._transport.sock is None:
                raise


def _absent(directory: Path) -> FedloomError:
    if (directory / "server.toml").exists():
        return UnavailableError(
            f"The server in {directory} is not running. Start it with "
            f"`fedloom server run --dir {directory}`."
        )
    return NoServerError(
        f"There is no server in {directory}. Name its state directory by --dir or FEDLOOM_DIR, "
        "the address of one on another machine by --url, or create one with "
        f"`fedloom server init --dir {directory}`."
    )


_KINDS: dict[str, type[FedloomError]] = {
    "usage": UsageError,
    "not_found": UsageError,
    "conflict": UsageError,
    "denied": DeniedError,
    "integrity": IntegrityError,
    "unavailable": UnavailableError,
}


def _error(status: int, text: bytes) -> FedloomError:
    try:
        error = json.loads(text)["error"]
        message, kind, code = str(error["message"]), error["kind"], error["code"]
    except (ValueError, KeyError, TypeError):
        return FedloomError(f"The server answered with HTTP status {status} and no fedloom error.")
    if kind == "refused":
        return Refusal(Code(code), message)
    return _KINDS.get(kind, FedloomError)(message)
