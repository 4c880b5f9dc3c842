"""Single sign-on by OpenID Connect: the authorization code flow with PKCE.

Sources: OpenID Connect Core 1.0; RFC 6749, RFC 7636 (PKCE), RFC 9207 (`iss` in the response); RFC
9700, "Best Current Practice for OAuth 2.0 Security". joserfc checks signatures.

Invariants: a response is valid once, and only in the browser that began the login; an ID token is
valid only if the issuer signed it, for this client, now, and for this login; users without a claim
that maps to a scope are refused.
"""

import base64
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlencode

from fedloom.protocol.errors import printable
from fedloom.server.access.errors import UnauthenticatedError
from fedloom.server.ledger.access.accounts import Scope
from fedloom.server.oidc_config import OidcConfig

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
"""Public-key signatures only: HS256 would accept a public key as its secret, `none` anything."""

LEEWAY_S = 60
PENDING_S = 600.0
MAX_PENDING = 1000
"""Logins in progress; beyond this, the oldest is dropped."""

MAX_OF_NETWORK = 50
"""Logins in progress of one address, so that no address displaces all others."""


def scope_of(config: OidcConfig, claims: Mapping[str, Any]) -> Scope | None:
    """The highest scope that a user's claims map to; None for none."""
    given = claims.get(config.scope_claim)
    values = {given} if isinstance(given, str) else set(_texts(given))
    allowed = {
        Scope.ADMIN: config.admin,
        Scope.OPERATOR: config.operator,
        Scope.VIEWER: config.viewer,
    }
    return next((scope for scope, some in allowed.items() if values & set(some)), None)


def _texts(given: object) -> list[str]:
    return [text for text in given if isinstance(text, str)] if isinstance(given, list) else []


class Provider(Protocol):
    """Requests to a provider."""

    async def metadata(self) -> Mapping[str, Any]:
        """Its discovery document."""

    async def keys(self, *, renewed: bool = False) -> Mapping[str, Any]:
        """Its public keys as a JWK set; fetched again if `renewed`."""

    async def exchange(self, fields: Mapping[str, str]) -> Mapping[str, Any]:
        """The response of its token endpoint to a form."""


@dataclass(frozen=True, slots=True)
class _Pending:
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    there: str
    network: str
    begun_at: float


class Oidc:
    """Logins through one provider, which redirects browsers to `redirect_uri`."""

    def __init__(self, config: OidcConfig, provider: Provider, redirect_uri: str) -> None:
        self.config = config
        self._provider = provider
        self._redirect_uri = redirect_uri
        self._pending: OrderedDict[str, _Pending] = OrderedDict()

    async def begin(self, there: str, network: str = "") -> tuple[str, str]:
        """Begin a login.

        Args:
            there: path on this server to open after it.
            network: of the browser, from `network_of`.

        Returns:
            The provider's URL for the browser, and the state that it keeps in a cookie.

        Raises:
            UnavailableError: the provider does not answer.
        """
        metadata = await self._provider.metadata()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        self._forget(network)
        self._pending[state] = _Pending(nonce, verifier, there, network, time.monotonic())
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        query = {
            "response_type": "code",
            "client_id": self.config.client_id,
            "redirect_uri": self._redirect_uri,
            "scope": " ".join(self.config.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge.rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        endpoint = str(metadata["authorization_endpoint"])
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}", state

    def _forget(self, network: str) -> None:
        """Drop the oldest logins beyond the limits."""
        own = [state for state, each in self._pending.items() if each.network == network]
        if len(own) >= MAX_OF_NETWORK:
            del self._pending[own[0]]
        while len(self._pending) >= MAX_PENDING:
            self._pending.popitem(last=False)

    async def end(self, answer: Mapping[str, str], kept: str) -> tuple[str, Scope, str]:
        """Finish a login.

        Args:
            answer: the query of the provider's redirect.
            kept: the state in the browser's cookie.

        Returns:
            The name, the scope, and the path to open.

        Raises:
            UnauthenticatedError: a check failed.
            UnavailableError: the provider does not answer.
        """
        state = answer.get("state", "")
        pending = self._pending.pop(state, None)
        if pending is None or not hmac.compare_digest(state.encode(), kept.encode()):
            raise _refused("this browser did not begin the login, or it has expired")
        if time.monotonic() - pending.begun_at > PENDING_S:
            raise _refused("it took too long")
        if "error" in answer:
            raise _refused(f"the provider answered {printable(answer['error'], 80)}")
        if answer.get("iss", self.config.issuer) != self.config.issuer or "code" not in answer:
            raise _refused("the response is not from the provider")
        fields = {
            "grant_type": "authorization_code",
            "code": answer["code"],
            "redirect_uri": self._redirect_uri,
            "client_id": self.config.client_id,
            "code_verifier": pending.verifier,
        }
        token = (await self._provider.exchange(fields)).get("id_token")
        claims = await self._claims(token if isinstance(token, str) else "", pending.nonce)
        return *self._who(claims), pending.there

    async def _claims(self, token: str, nonce: str) -> Mapping[str, Any]:
        from joserfc import errors, jwt  # noqa: PLC0415 - an optional extra
        from joserfc.jwk import KeySet  # noqa: PLC0415

        found = None
        for renewed in (False, True):  # the provider may have rotated its keys
            try:
                keys = KeySet.import_key_set(await self._provider.keys(renewed=renewed))  # type: ignore[arg-type]
                found = jwt.decode(token, keys, algorithms=ALGORITHMS)
                break
            except (errors.JoseError, ValueError, KeyError, TypeError):
                continue
        if found is None:
            raise _refused("the provider's signature is not valid")
        wanted = jwt.JWTClaimsRegistry(
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self.config.issuer},
            sub={"essential": True},
            aud={"essential": True, "value": self.config.client_id},
            exp={"essential": True},
            iat={"essential": True},
        )
        claims: dict[str, Any] = found.claims
        try:
            wanted.validate(claims)
        except (errors.JoseError, ValueError, TypeError) as error:
            raise _refused(f"the ID token is not valid ({type(error).__name__})") from None
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise _refused("the ID token is of another login")
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if several else self.config.client_id) != self.config.client_id:
            raise _refused("the ID token is for another application")
        return claims

    def _who(self, claims: Mapping[str, Any]) -> tuple[str, Scope]:
        name, scope = claims.get(self.config.name_claim), scope_of(self.config, claims)
        if not isinstance(name, str) or not name:
            raise _refused(f"the ID token has no claim {self.config.name_claim!r}")
        if self.config.name_claim == "email" and claims.get("email_verified") is not True:
            raise _refused(
                "expected email_verified = true in the ID token, got "
                f"{str(claims.get('email_verified', 'none'))[:20]!r}: let the provider send it, or "
                "set oidc.name_claim to a claim that users cannot choose, such as sub"
            )
        if scope is None:
            raise _refused(
                f"no value of {self.config.scope_claim!r} gives {printable(name, 80)} a scope "
                "here: ask an administrator"
            )
        return printable(name, 200), scope


def _refused(why: str) -> UnauthenticatedError:
    return UnauthenticatedError(f"The login through the provider failed: {why}.")
