"""Secrets of 256 random bits: session ids, API tokens and login links.

    fla1.<id>.<secret>      an API token, e.g. fla1.0f3a9c21.<43 characters>

Only SHA-256 hashes are stored. 256 random bits cannot be guessed, so a slow hash adds nothing.
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
    """The credential of a program.

    Attributes:
        id: 8 hex digits; not secret.
        secret: 43 characters of base64url.
    """

    id: str
    secret: str = field(repr=False)

    def text(self) -> str:
        """The token as text, with its secret."""
        return f"fla1.{self.id}.{self.secret}"


def make_api_token() -> ApiToken:
    """Draw a token."""
    return ApiToken(id=secrets.token_hex(4), secret=make_secret())


def read_api_token(text: str) -> ApiToken | None:
    """Read a token's text; None if it is not valid."""
    found = _API_TOKEN.fullmatch(text.strip())
    return ApiToken(id=found[1], secret=found[2]) if found else None


def make_secret() -> str:
    """Draw 256 bits, as 43 characters for a URL or a cookie."""
    return secrets.token_urlsafe(32)


def is_secret(text: str) -> bool:
    """Whether a text has the form of `make_secret`'s."""
    return _SECRET.fullmatch(text) is not None


def kept(secret: str) -> str:
    """The stored form of a secret: its SHA-256, 64 hex digits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def same(secret: str, hashed: str) -> bool:
    """Whether a secret has this hash; compared in constant time."""
    return hmac.compare_digest(kept(secret), hashed)


def csrf_token(session: str) -> str:
    """The token that forms of a session send, which other sites do not know.

    It is derived from the session's secret, so it ends with the session and is not stored. The
    secret cannot be derived from it.
    """
    return hmac.new(session.encode(), b"fedloom csrf 1", hashlib.sha256).hexdigest()
