"""A server elsewhere: its URL, whom to trust there, and the API token that lets us in.

Invariant: a token never travels in the clear off this machine, and never to a server that has not
proved to be the one that the URL names.
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
        token: an API token's text.
        ca: PEM file of whom to trust; empty for the system's.
    """

    url: str
    token: str = field(repr=False)
    ca: str = ""

    @classmethod
    def of_context(cls) -> Self | None:
        """What `--url`, `--api-token` and `--ca` or their variables say; None without `--url`.

        Raises:
            UsageError: the URL is none, or there is no token.
        """
        context = click.get_current_context(silent=True)
        meta = context.meta if context else {}
        if not (url := meta.get("fedloom.url")):
            return None
        if not (given := meta.get("fedloom.api_token")):
            raise UsageError(
                "Expected an API token beside --url, got none: name one by --api-token @FILE or "
                "FEDLOOM_API_TOKEN; `fedloom api-token create` makes it, beside the server."
            )
        return cls(url=_checked(url), token=_read(given), ca=meta.get("fedloom.ca") or "")

    def connection(self, timeout_s: float, block_bytes: int) -> http.client.HTTPConnection:
        """A connection, not yet open.

        Raises:
            UsageError: the file of whom to trust is none.
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
            raise UsageError(f"Expected certificates in {self.ca}, in PEM, got: {error}.") from None
        return http.client.HTTPSConnection(
            parts.hostname,
            parts.port or PORT,
            timeout=timeout_s,
            blocksize=block_bytes,
            context=context,
        )

    def absent(self, error: OSError) -> UnavailableError:
        """Why it could not be reached, with what to do."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return UnavailableError(
                f"Expected {self.url} to prove who it is, got: {error.verify_message}. Name the "
                "authority by --ca: for one of fedloom's own, pki/root.pem of the server."
            )
        return UnavailableError(f"Expected a server at {self.url}, got: {error}.")


def _checked(url: str) -> str:
    parts = urlsplit(url)
    try:
        parts.port  # noqa: B018 - it raises where it is none
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        raise UsageError(f"Expected --url as https://HOST:PORT, got {url!r}.")
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise UsageError(
            f"Expected https to another machine, got {url}: the token would travel in the clear."
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
            raise UsageError(f"Expected an API token in {given[1:]}, got {error}.") from None
    text = text.strip()
    if not text.isascii() or not text.isprintable() or not text:
        raise UsageError("Expected an API token, got something else; it is not repeated here.")
    return text
