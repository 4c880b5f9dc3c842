"""Password hashes: scrypt, with the parameters stored beside each hash.

Sources: C. Percival, "Stronger key derivation via sequential memory-hard functions", 2009. Of the
parameters that OWASP's Password Storage Cheat Sheet lists as equivalent, those of 64 MiB, as the
server checks one password at a time.

Invariants: `matches(password, hashed(password))`; checking takes as long without a stored hash as
with one.
"""

import base64
import hmac
import os
import unicodedata
from dataclasses import dataclass

from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from fedloom.protocol.errors import UsageError

MIN_LENGTH = 12
"""Characters; NIST SP 800-63B asks for length rather than composition rules."""

MAX_LENGTH = 1024

_SALT_BYTES = 16
_HASH_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a guess costs.

    Attributes:
        n: iterations, a power of two; memory is 128 * n * r bytes.
        r: block size.
        p: parallelism.
    """

    n: int
    r: int
    p: int


COST = Cost(n=1 << 16, r=8, p=2)
"""Cost of new hashes. After it is raised, an older hash is replaced at the user's next login."""


def check_new(password: str) -> None:
    """Check a new password.

    Raises:
        UsageError: it is too short, too long or too uniform.
    """
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH or len(set(password)) < 4:
        raise UsageError(
            f"Expected a password of {MIN_LENGTH} to {MAX_LENGTH} characters, at least 4 of them "
            f"different, got {len(password)} characters. A few words in a row are good."
        )


def hashed(password: str, cost: Cost | None = None) -> str:
    """Hash a password as `scrypt$n$r$p$salt$hash`, salt and hash in base64."""
    cost, salt = cost or COST, os.urandom(_SALT_BYTES)
    digest = _derive(password, salt, cost)
    return "$".join(("scrypt", f"{cost.n}", f"{cost.r}", f"{cost.p}", _text(salt), _text(digest)))


def matches(password: str, stored: str | None) -> bool:
    """Whether a password matches a hash; takes as long if `stored` is None."""
    cost, salt, digest = _read(stored) if stored else (COST, b"\0" * _SALT_BYTES, b"")
    same = hmac.compare_digest(_derive(password, salt, cost), digest or b"\0" * _HASH_BYTES)
    return same and bool(digest)


def is_outdated(stored: str) -> bool:
    """Whether a hash was made at a lower cost than new ones."""
    cost, _, _ = _read(stored)
    return (cost.n * cost.r, cost.p) < (COST.n * COST.r, COST.p)


def _derive(password: str, salt: bytes, cost: Cost) -> bytes:
    # Equivalent Unicode forms are one password: NFKC, as in RFC 8265.
    plain = unicodedata.normalize("NFKC", password[:MAX_LENGTH]).encode("utf-8", "surrogatepass")
    return Scrypt(salt=salt, length=_HASH_BYTES, n=cost.n, r=cost.r, p=cost.p).derive(plain)


def _read(stored: str) -> tuple[Cost, bytes, bytes]:
    _, n, r, p, salt, digest = stored.split("$")
    return Cost(n=int(n), r=int(r), p=int(p)), _bytes(salt), _bytes(digest)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
