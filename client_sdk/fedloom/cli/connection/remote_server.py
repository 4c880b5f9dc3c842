"""A remote server: its URL, the certificate authority to trust, and an API token.

Invariant: a token is sent to another machine only over TLS, after the server's certificate was
verified.
"""

import http.client
import ipaddress
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import click

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.protocol.trust.private_files import read_private

PORT = 7445


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A server's TCP port.

    Attributes:
        url: without a path.
        token: text of an API token.
        ca: PEM file of trusted certificates; empty for the system's.
    """

    url: str
    token: str = field(repr=False)
    ca: str = ""

    @classmethod
    def of_context(cls) -> Self | None:
        """The server of `--url`, `--api-token` and `--ca` or their variables; None without a URL.

        Raises:
            UsageError: the URL or the token is invalid, or the token is missing.
        """
        context = click.get_current_context(silent=True)
        meta = context.meta if context else {}
        if not (url := meta.get("fedloom.url")):
            return None
        if not (given := meta.get("fedloom.api_token")):
            raise UsageError(
                "--url needs an API token. Create one with `fedloom api-token create` on the "
                "server's machine, and name it by --api-token @FILE or FEDLOOM_API_TOKEN."
            )
        return cls(url=_checked(url), token=_read(given), ca=meta.get("fedloom.ca") or "")

    def connection(self, timeout_s: float, block_bytes: int) -> http.client.HTTPConnection:
        """A connection, not yet open.

        Raises:
            UsageError: the CA file cannot be read, or is not PEM.
        """
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        if parts.scheme == "http":
            return http.client.HTTPConnection(
                parts.hostname, parts.port or PORT, timeout=timeout_s, blocksize=block_bytes
            )
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except OSError as error:  # ssl.SSLError is one
            raise UsageError(f"Expected PEM certificates in {self.ca}: {error}.") from None
        return http.client.HTTPSConnection(
            parts.hostname,
            parts.port or PORT,
            timeout=timeout_s,
            blocksize=block_bytes,
            context=context,
        )

    def absent(self, error: OSError) -> UnavailableError:
        """The error for a server that could not be reached, with a remedy."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return UnavailableError(
                f"The certificate of {self.url} cannot be verified: {error.verify_message}. Name "
                "its authority by --ca; fedloom's own is pki/root.pem in the server's directory."
            )
        if isinstance(error, ssl.SSLError):
            return UnavailableError(
                f"{self.url} does not speak TLS ({error.reason}). A console on loopback speaks "
                "http: see the line `console on …` of `fedloom server run`."
            )
        return UnavailableError(
            f"Cannot reach a server at {self.url}: {error}. Check that it runs, and its address in "
            "the line `console on …` of `fedloom server run`."
        )


def _checked(url: str) -> str:
    parts = urlsplit(url)
    try:
        parts.port  # noqa: B018 - raises for an invalid port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        raise UsageError(f"Expected --url as https://HOST:PORT, got {url!r}.")
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise UsageError(
            f"Expected https for another machine, got {url}: http would expose the token."
        )
    return url.rstrip("/")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read(given: str) -> str:
    text = given
    if given.startswith("@"):
        try:
            text = read_private(Path(given[1:])).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"Cannot read the API token in {given[1:]}: {error}.") from None
    text = text.strip()
    if not text.isascii() or not text.isprintable() or not text:
        raise UsageError("The value of --api-token is not an API token.")
    return text
