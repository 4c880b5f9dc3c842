"""One-time enrolment tokens: they let a device and a server trust each other at first contact.

    fl1.<id>.<secret>.<root pin>      e.g. fl1.0f3a9c21.<43 characters>.<43 characters>

The id (8 hex digits) finds the token in the ledger and may be shown; the secret (256 random bits,
base64url) proves to the server that the device was invited; the pin (base64url SHA-256 of the root
certificate's DER) proves to the device which server invited it.

The server stores a plain SHA-256 of the secret. A slow password hash would add nothing: it protects
low-entropy secrets, and 256 random bits cannot be guessed at any speed.

Invariants: `parse_token(token.text())` equals `token`; each token has exactly one text form; no
message, `repr` or log line shows a secret.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedloom.protocol.errors import Code, Refusal

_SCHEME = "fl1"
_ID = re.compile(r"[0-9a-f]{8}")
_BASE64URL = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """An enrolment token.

    Attributes:
        id: 8 lower-case hex digits.
        secret: 32 random bytes.
        pin: SHA-256 of the root certificate's DER, 32 bytes.
    """

    id: str
    secret: bytes = field(repr=False)
    pin: bytes

    def text(self) -> str:
        """The text form for a device, with the secret."""
        return f"{_SCHEME}.{self.id}.{_encode(self.secret)}.{_encode(self.pin)}"


def make_token(pin: bytes) -> Token:
    """Draw a token for the authority whose root has this pin (32 bytes).

    Ids are 32 bits, so 10,000 tokens collide with probability 0.01: detect that by the ledger's
    primary key, and draw again.
    """
    return Token(id=secrets.token_hex(4), secret=secrets.token_bytes(32), pin=pin)


def parse_token(text: str) -> Token:
    """Read the text form of a token; surrounding white space is ignored.

    Raises:
        Refusal: `BAD_TOKEN` if it is malformed; the message never repeats the input.
    """
    parts = text.strip().split(".")
    if len(parts) != 4 or parts[0] != _SCHEME:
        raise _malformed(f"it has {len(parts)} part(s), or does not begin with '{_SCHEME}.'")
    _, token_id, secret, pin = parts
    if not _ID.fullmatch(token_id):
        raise _malformed("its id is not 8 hex digits")
    return Token(id=token_id, secret=_decode("secret", secret), pin=_decode("root pin", pin))


def secret_hash(secret: bytes) -> str:
    """Hash a secret for the ledger: SHA-256, 64 hex digits."""
    return hashlib.sha256(secret).hexdigest()


def secret_matches(secret: bytes, stored_hash: str) -> bool:
    """Whether `secret` has this hash, in constant time."""
    return hmac.compare_digest(secret_hash(secret).encode(), stored_hash.encode())


def root_pin(root_pem: bytes) -> bytes:
    """Pin a root certificate: SHA-256 of its DER form, 32 bytes."""
    der = x509.load_pem_x509_certificate(root_pem).public_bytes(Encoding.DER)
    return hashlib.sha256(der).digest()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(part: str, text: str) -> bytes:
    if not _BASE64URL.fullmatch(text):
        raise _malformed(f"its {part} is not 43 characters of A-Z a-z 0-9 _ - ({len(text)} came)")
    try:
        data = base64.urlsafe_b64decode(text + "=")
    except binascii.Error:
        raise _malformed(f"its {part} is not base64url") from None
    if _encode(data) != text:  # 43 characters carry two bits too many; they must be zero
        raise _malformed(f"its {part} is not base64url in canonical form")
    return data


def _malformed(why: str) -> Refusal:
    return Refusal(
        Code.BAD_TOKEN,
        f"Expected a token of the form {_SCHEME}.<id>.<secret>.<root pin>, but {why}: copy it "
        "whole, in one line, from where it was made (fedloom token create)",
    )
