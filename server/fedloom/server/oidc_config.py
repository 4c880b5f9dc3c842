"""Settings of an OpenID Connect provider, `[oidc]` in server.toml."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import setting

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcConfig:
    """Settings of a provider, `[oidc]` in server.toml."""

    issuer: str = setting(doc="URL of the provider, as in its discovery document")
    client_id: str = setting(doc="id of this server, as registered there")
    client_secret_file: str = setting(
        "",
        doc="file of the client secret, mode 0600, relative to the state directory; empty: a "
        "public client",
    )
    label: str = setting("single sign-on", doc="text of the login button, after `Log in with`")
    name_claim: str = setting("email", doc="claim that names an operator in the audit trail")
    scope_claim: str = setting("groups", doc="claim that grants scopes: a text or a list of texts")
    viewer: tuple[str, ...] = setting((), doc="values of the claim that grant the scope viewer")
    operator: tuple[str, ...] = setting((), doc="values of the claim that grant operator")
    admin: tuple[str, ...] = setting((), doc="values of the claim that grant admin")
    scopes: tuple[str, ...] = setting(
        ("openid", "profile", "email"), doc="scopes to request from the provider, with openid"
    )

    def __post_init__(self) -> None:
        check_url(self.issuer, "oidc.issuer")
        if not self.client_id:
            raise UsageError("Expected oidc.client_id, got none.")
        if not (self.viewer or self.operator or self.admin):
            raise UsageError(
                "Expected values of the claim in oidc.viewer, oidc.operator or oidc.admin, got "
                "none: no user could log in."
            )
        if "openid" not in self.scopes:
            raise UsageError("Expected `openid` among oidc.scopes.")


def check_url(url: str, what: str) -> str:
    """Return the URL if it is https, or http on loopback.

    Raises:
        UsageError: it is not.
    """
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return url
    if parts.scheme == "http" and parts.hostname in _LOOPBACK:
        return url
    raise UsageError(f"Expected {what} as https://..., got {url[:200]!r}.")
