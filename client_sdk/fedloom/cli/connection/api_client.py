"""The operator's side of the API: HTTP over the server's socket or to a URL.

By the standard library alone, so that operating a server needs none of its libraries.

One connection a request; bodies stream in both directions, so a model of any size passes in one
block of memory.
"""

import hashlib
import http.client
import json
import socket
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
"""Longest silence of the server: it syncs a large model to disk before it answers."""


class Control:
    """A server, seen from beside it, or, with `--url`, from anywhere.

    Args:
        directory: the server's state directory.
        timeout_s: longest silence of the server in an answer.

    Raises:
        UsageError: `--url` or what belongs to it is not what it must be.
    """

    def __init__(self, directory: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        self._remote = Remote.of_context()

    @property
    def where(self) -> str:
        """Which server this is, for people."""
        return str(self._directory) if self._remote is None else self._remote.url

    def _connect(self) -> "_Connection":
        if self._remote is not None:
            return _Connection(_Elsewhere(self._remote, self._timeout_s))
        return _Connection(_Beside(self._directory, self._timeout_s))

    def get(self, *path: str, **query: str | int | list[str]) -> Any:
        """Ask for a JSON document.

        Args:
            path: segments under /v1.
            query: parameters.

        Raises:
            FedloomError: the server is not there, or says no.
        """
        return self._json("GET", path, query=query)

    def post(self, *path: str, body: Any = None, **query: str | int) -> Any:
        """Send a JSON document and return the answer's.

        Raises:
            FedloomError: as `get`; UsageError also where `body` is not JSON.
        """
        try:
            data = json.dumps({} if body is None else body, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise UsageError(f"Expected settings that JSON can hold: {error}.") from None
        headers = {"Content-Type": "application/json"}
        return self._json("POST", path, query=query, body=data, headers=headers)

    @contextmanager
    def stream(self, *path: str, **query: str | int) -> Iterator[http.client.HTTPResponse]:
        """An answer that is read as it comes.

        Raises:
            FedloomError: as `get`.
        """
        with self._connect() as connection:
            yield connection.answer("GET", _url(path, query))

    def upload(self, *path: str, file: IO[bytes], size_bytes: int) -> Any:
        """Send a file's bytes and return the answer's JSON document.

        Raises:
            FedloomError: as `get`.
        """
        headers = {"Content-Length": str(size_bytes), "Content-Type": "application/octet-stream"}
        return self._json("PUT", path, body=file, headers=headers)

    def download(self, *path: str, out: Path) -> tuple[str, int]:
        """Receive a model into `out`, which appears whole and verified or not at all.

        Returns:
            Its digest and its size in bytes.

        Raises:
            IntegrityError: what came is not what the digest says.
            FedloomError: as `get`.
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
                    f"Expected the model {digest[:12]}, got bytes of {seen.hexdigest()[:12]}: "
                    "try again; if it stays so, restore the file from a backup."
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


def _url(path: tuple[str, ...], query: dict[str, Any] | None = None) -> str:
    url = "/".join(("/v1", *(quote(segment, safe="") for segment in path)))
    return f"{url}?{urlencode(query, doseq=True)}" if query else url


class _Beside(http.client.HTTPConnection):
    """A connection to the socket in a state directory."""

    def __init__(self, directory: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s, blocksize=BLOCK_BYTES)
        self._directory = directory
        self.name = f"the server in {directory}"
        self.headers: dict[str, str] = {}

    def connect(self) -> None:
        """Open the socket.

        Raises:
            UnavailableError: no server runs here.
            UsageError: there is no server here, or it is not ours.
        """
        path = self._directory / local_socket.NAME
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            with local_socket.address(path) as address:
                self.sock.connect(address)
        except PermissionError:
            raise UsageError(
                f"Expected a server that is ours, got no permission for {path}: "
                "run this as the user who runs the server."
            ) from None
        except OSError:
            raise _absent(self._directory) from None


class _Elsewhere:
    """A connection to a URL, with the token that lets us in."""

    def __init__(self, remote: Remote, timeout_s: float) -> None:
        self._remote = remote
        self._inner = remote.connection(timeout_s, BLOCK_BYTES)
        self.name = remote.url
        self.headers = {"Authorization": f"Bearer {remote.token}"}
        self.getresponse = self._inner.getresponse
        self.request = self._inner.request
        self.close = self._inner.close

    def connect(self) -> None:
        """Open the connection.

        Raises:
            UnavailableError: there is no server, or not the one that the URL names.
        """
        try:
            self._inner.connect()
        except OSError as error:
            raise self._remote.absent(error) from None

    @property
    def sock(self) -> socket.socket | None:
        """The open socket, if any."""
        return self._inner.sock


class _Connection:
    """One request and its answer."""

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
        """Send a request and return the answer, its body unread.

        Raises:
            FedloomError: what the server said no with.
            UnavailableError: the server went away.
        """
        try:
            self._transport.connect()
            self._send(method, url, body, {**self._transport.headers, **(headers or {})})
            response = self._transport.getresponse()
            if response.status < 400:
                return response
            text = response.read()
        except (http.client.HTTPException, OSError) as error:
            raise UnavailableError(
                f"Expected an answer from {self._transport.name}, got {error!r}: see its log."
            ) from error
        raise _said(response.status, text)

    def _send(
        self, method: str, url: str, body: bytes | IO[bytes] | None, headers: dict[str, str]
    ) -> None:
        try:
            self._transport.request(method, url, body, headers)
        except (BrokenPipeError, ConnectionResetError):
            # The server has said no before it had the whole body. Its answer is there to be read.
            if self._transport.sock is None:
                raise


def _absent(directory: Path) -> FedloomError:
    if (directory / "server.toml").exists():
        return UnavailableError(
            f"Expected a running server in {directory}, got none: start it with "
            f"`fedloom server run --dir {directory}`."
        )
    return UsageError(
        f"Expected a server in {directory}, got none: name its state directory by --dir or "
        f"FEDLOOM_DIR, or make one with `fedloom server init --dir {directory}`."
    )


_KINDS: dict[str, type[FedloomError]] = {
    "usage": UsageError,
    "not_found": UsageError,
    "conflict": UsageError,
    "denied": DeniedError,
    "integrity": IntegrityError,
    "unavailable": UnavailableError,
}


def _said(status: int, text: bytes) -> FedloomError:
    """The error that a server's answer stands for."""
    try:
        error = json.loads(text)["error"]
        message, kind, code = str(error["message"]), error["kind"], error["code"]
    except (ValueError, KeyError, TypeError):
        return FedloomError(f"Expected an answer of fedloom, got status {status}.")
    if kind == "refused":
        return Refusal(Code(code), message)
    return _KINDS.get(kind, FedloomError)(message)
