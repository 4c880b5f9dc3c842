"""Logging in by somebody else's word: OpenID Connect, the authorization code flow with PKCE.

Sources: OpenID Connect Core 1.0; RFC 6749, RFC 7636 (PKCE), RFC 9207 (`iss` in the answer); RFC
9700, "Best Current Practice for OAuth 2.0 Security". Signatures are checked by joserfc.

Invariants: an answer counts once, and only in the browser that asked; an ID token counts only if
the issuer signed it, for us, now, and for this very login; whoever has no claim that maps to a
scope is refused.
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
from fedloom.server.ledger.accounts import Scope
from fedloom.server.oidc_config import OidcConfig

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
"""Signatures alone: with HS256 a public key would pass for a shared secret, `none` is none."""

LEEWAY_S = 60
PENDING_S = 600.0
MAX_PENDING = 1000
"""Logins that have begun and not ended; the oldest is forgotten first."""

MAX_OF_NETWORK = 50
"""Of them, of one address: nobody makes the server forget everybody else's."""


def scope_of(config: OidcConfig, claims: Mapping[str, Any]) -> Scope | None:
    """The highest scope that somebody's claims map to; None for none."""
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
    """What is asked of a provider over the network."""

    async def metadata(self) -> Mapping[str, Any]:
        """Its discovery document."""

    async def keys(self, *, renewed: bool = False) -> Mapping[str, Any]:
        """Its public keys, a JWK set; fetched again if `renewed`."""

    async def exchange(self, fields: Mapping[str, str]) -> Mapping[str, Any]:
        """What its token endpoint answers to a form."""


@dataclass(frozen=True, slots=True)
class _Pending:
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    there: str
    network: str
    begun_at: float


class Oidc:
    """Logins through one provider.

    Args:
        config: its settings.
        provider: over the network.
        redirect_uri: where it sends browsers back to.
    """

    def __init__(self, config: OidcConfig, provider: Provider, redirect_uri: str) -> None:
        self.config = config
        self._provider = provider
        self._redirect_uri = redirect_uri
        self._pending: OrderedDict[str, _Pending] = OrderedDict()

    async def begin(self, there: str, network: str = "") -> tuple[str, str]:
        """Begin a login that leads to the path `there`.

        Args:
            there: on this server.
            network: what stands for the browser's address.

        Returns:
            Where to send the browser, and what it keeps meanwhile, in a cookie.

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
        """Make room for one more: of the same address, else of all."""
        own = [state for state, each in self._pending.items() if each.network == network]
        if len(own) >= MAX_OF_NETWORK:
            del self._pending[own[0]]
        while len(self._pending) >= MAX_PENDING:
            self._pending.popitem(last=False)

    async def end(self, answer: Mapping[str, str], kept: str) -> tuple[str, Scope, str]:
        """End a login.

        Args:
            answer: what the browser brought back from the provider.
            kept: what it was given when it left.

        Returns:
            The name, the scope, and the path to go on to.

        Raises:
            UnauthenticatedError: anything does not fit.
            UnavailableError: the provider does not answer.
        """
        state = answer.get("state", "")
        pending = self._pending.pop(state, None)
        if pending is None or not hmac.compare_digest(state.encode(), kept.encode()):
            raise _refused("this login was not begun in this browser, or is over")
        if time.monotonic() - pending.begun_at > PENDING_S:
            raise _refused("it took too long")
        if "error" in answer:
            raise _refused(f"the provider says {printable(answer['error'], 80)}")
        if answer.get("iss", self.config.issuer) != self.config.issuer or "code" not in answer:
            raise _refused("the answer is not the provider's")
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
        from joserfc import errors, jwt  # noqa: PLC0415 - an extra that few need
        from joserfc.jwk import KeySet  # noqa: PLC0415

        found = None
        for renewed in (False, True):  # the provider may have changed its keys since
            try:
                keys = KeySet.import_key_set(await self._provider.keys(renewed=renewed))  # type: ignore[arg-type]
                found = jwt.decode(token, keys, algorithms=ALGORITHMS)
                break
            except (errors.JoseError, ValueError, KeyError, TypeError):
                continue
        if found is None:
            raise _refused("the provider's signature is not good")
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
            raise _refused(f"the ID token does not do ({type(error).__name__})") from None
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise _refused("the ID token is of another login")
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if several else self.config.client_id) != self.config.client_id:
            raise _refused("the ID token is for another application")
        return claims

    def _who(self, claims: Mapping[str, Any]) -> tuple[str, Scope]:
        name, scope = claims.get(self.config.name_claim), scope_of(self.config, claims)
        if not isinstance(name, str) or not name:
            raise _refused(f"the provider does not say the claim {self.config.name_claim!r}")
        if self.config.name_claim == "email" and claims.get("email_verified") is False:
            raise _refused("the address is not verified")
        if scope is None:
            raise _refused(
                f"{printable(name, 80)} has no value of {self.config.scope_claim!r} that allows "
                "anything here: ask an administrator"
            )
        return printable(name, 200), scope


def _refused(why: str) -> UnauthenticatedError:
    return UnauthenticatedError(f"Expected a login through the provider, but {why}.")
