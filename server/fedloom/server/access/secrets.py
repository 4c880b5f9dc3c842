"""Secrets of 256 random bits: session ids, API tokens and login links.

    fla1.<id>.<secret>      an API token, e.g. fla1.0f3a9c21.<43 characters>

Only SHA-256 hashes are kept: nobody guesses 256 random bits, so a slow hash would add nothing.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

_API_TOKEN = re.compile(r"fla1\.([0-9a-f]{8})\.([A-Za-z0-9_-]{43})")

_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiToken:
    """What a program shows to be let in.

    Attributes:
        id: 8 hex digits; no secret.
        secret: 43 characters of base64url.
    """

    id: str
    secret: str = field(repr=False)

    def text(self) -> str:
        """Write the form that is handed out. It holds the secret."""
        return f"fla1.{self.id}.{self.secret}"


def make_api_token() -> ApiToken:
    """Draw a token."""
    return ApiToken(id=secrets.token_hex(4), secret=make_secret())


def read_api_token(text: str) -> ApiToken | None:
    """Read a token's text; None if it is none."""
    found = _API_TOKEN.fullmatch(text.strip())
    return ApiToken(id=found[1], secret=found[2]) if found else None


def make_secret() -> str:
    """Draw 256 bits, as 43 characters that may stand in a URL or a cookie."""
    return secrets.token_urlsafe(32)


def is_secret(text: str) -> bool:
    """Has this the form of `make_secret`'s?"""
    return _SECRET.fullmatch(text) is not None


def kept(secret: str) -> str:
    """What is kept of a secret: its SHA-256, 64 hex digits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def same(secret: str, hashed: str) -> bool:
    """Is this the secret behind what was kept? Compared in constant time."""
    return hmac.compare_digest(kept(secret), hashed)


def csrf_token(session: str) -> str:
    """What forms of a session carry: it proves that the page, not another site's, sent them.

    Derived from the session's id, so that it ends with it and nothing has to be kept; whoever
    reads it cannot find the id.
    """
    return hmac.new(session.encode(), b"fedloom csrf 1", hashlib.sha256).hexdigest()
