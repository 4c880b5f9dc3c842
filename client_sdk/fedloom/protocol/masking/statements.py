"""What members of a masking session sign, by the keys of their certificates.

Each signature is ECDSA on P-256 with SHA-256, in DER, over the digest of a statement under its
purpose (`fedloom.protocol.trust.signed_bytes`). A member signs at most one of AGREE and CLOSED for
a session, and each once.
"""

from collections.abc import Callable
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking.encoding import digest
from fedloom.protocol.trust.signed_bytes import to_sign

READY: Final = "secagg.ready"
AGREE: Final = "secagg.agree"
CLOSED: Final = "secagg.closed"

MAX_SIGNATURE_BYTES: Final = 72

Sign = Callable[[bytes], bytes]
"""Signs bytes by the key of a certificate: ECDSA, SHA-256, DER."""


def signer(key: ec.EllipticCurvePrivateKey) -> Sign:
    """Signing by a private key."""
    return lambda data: key.sign(data, ec.ECDSA(hashes.SHA256()))


def agree_digest(sid: bytes, shared: bytes, masked: bytes) -> bytes:
    """H of an agreement on survivors: the bitmaps U2 and U3."""
    return digest("agree", sid, shared, masked)


def closed_digest(sid: bytes) -> bytes:
    """H of a member's word that it never reveals anything of a session."""
    return digest("closed", sid)


def check_signature(
    key: ec.EllipticCurvePublicKey, purpose: str, statement: bytes, signature: bytes, who: str
) -> None:
    """Check a member's signature.

    Args:
        key: of the member's certificate.
        purpose: READY, AGREE or CLOSED.
        statement: the digest that was signed.
        signature: in DER.
        who: the member's name, for the message.

    Raises:
        Refusal: BAD_SIGNATURE.
    """
    try:
        key.verify(signature, to_sign(purpose, statement), ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        raise Refusal(
            Code.BAD_SIGNATURE,
            f"Expected {who}'s signature for {purpose!r}, got one that its certificate's key did "
            "not make over this statement.",
        ) from None
