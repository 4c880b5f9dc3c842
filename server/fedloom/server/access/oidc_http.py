"""An HTTPS client of an OpenID Connect provider, by the standard library, off the event loop.

Invariants: no redirect is followed; responses are short JSON objects; the client's secret is sent
only to the token endpoint, in a header, and appears in no message.
"""

import asyncio
import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fedloom.protocol.errors import FedloomError, UnavailableError, UsageError
from fedloom.protocol.trust.private_files import read_private
from fedloom.server.access.oidc import Oidc
from fedloom.server.oidc_config import OidcConfig, check_url

TIMEOUT_S = 10.0
MAX_BYTES = 1 << 20
KEPT_S = 3600.0
RENEW_S = 30.0
"""Shortest interval between fetches of the keys, whatever unauthenticated peers send, seconds."""


def load(config: OidcConfig, state_dir: Path, url: str) -> Oidc:
    """Build the logins through the configured provider.

    Raises:
        UsageError: the secret cannot be read, or the extra `oidc` is not installed.
    """
    try:
        import joserfc  # noqa: F401, PLC0415 - fail at the start, not at the first login
    except ModuleNotFoundError:
        raise UsageError("[oidc] needs an extra: pip install 'fedloom[oidc]'") from None
    secret = ""
    if config.client_secret_file:
        path = state_dir / config.client_secret_file
        try:
            secret = read_private(path).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"Expected the client's secret in {path}, got {error}.") from None
    return Oidc(config, HttpProvider(config, secret), f"{url}/login/oidc/callback")


class HttpProvider:
    """A provider whose documents are cached for an hour; a public client has no secret."""

    def __init__(self, config: OidcConfig, secret: str = "") -> None:
        self._config = config
        self._secret = secret
        self._kept: dict[str, tuple[float, Mapping[str, Any]]] = {}

    async def metadata(self) -> Mapping[str, Any]:
        """Its discovery document.

        Raises:
            UnavailableError: it does not answer, or not with a valid document.
        """
        issuer = self._config.issuer
        url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        found = await self._document(url, KEPT_S)
        try:
            if found["issuer"] != issuer:
                raise _wrong(f"its issuer is {str(found['issuer'])[:200]!r}, not {issuer!r}")
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                check_url(str(found[name]), name)
        except (KeyError, UsageError) as error:
            raise _wrong(str(error)) from None
        return found

    async def keys(self, *, renewed: bool = False) -> Mapping[str, Any]:
        """Its public keys.

        Raises:
            UnavailableError: as `metadata`.
        """
        url = str((await self.metadata())["jwks_uri"])
        return await self._document(url, RENEW_S if renewed else KEPT_S)

    async def exchange(self, fields: Mapping[str, str]) -> Mapping[str, Any]:
        """Send a form to its token endpoint.

        Raises:
            UnavailableError: as `metadata`.
        """
        request = urllib.request.Request(  # noqa: S310 - `metadata` has checked the scheme
            str((await self.metadata())["token_endpoint"]), urlencode(fields).encode()
        )
        if self._secret:
            pair = f"{quote(self._config.client_id, '')}:{quote(self._secret, '')}".encode()
            request.add_header("Authorization", f"Basic {base64.b64encode(pair).decode()}")
        return await _ask(request)

    async def _document(self, url: str, kept_s: float) -> Mapping[str, Any]:
        at, found = self._kept.get(url, (0.0, {}))
        if not found or time.monotonic() - at > kept_s:
            found = await _ask(urllib.request.Request(url))  # noqa: S310 - as above
            self._kept[url] = (time.monotonic(), found)
        return found


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follow no redirect: its target is not checked."""


async def _ask(request: urllib.request.Request) -> Mapping[str, Any]:
    request.add_header("Accept", "application/json")
    try:
        text = await asyncio.to_thread(_fetch, request)
        found = json.loads(text)
    except (OSError, ValueError) as error:  # urllib's errors are OSErrors
        raise _wrong(f"{type(error).__name__}: {error}") from None
    if not isinstance(found, dict):
        raise _wrong("no JSON object")
    return found


def _fetch(request: urllib.request.Request) -> bytes:
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=TIMEOUT_S) as response:
            text: bytes = response.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise OSError(f"status {error.code}") from None
    if len(text) > MAX_BYTES:
        raise OSError("more than a mebibyte")
    return text


def _wrong(why: str) -> FedloomError:
    return UnavailableError(f"The login provider did not answer correctly: {why}. Try again later.")
