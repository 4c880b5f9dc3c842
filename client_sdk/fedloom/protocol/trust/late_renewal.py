"""Renewal after a certificate has expired: the statement that a device signs.

An expired certificate opens no connection, so the device proves its identity with the old key: it
signs its request for a new certificate. The statement binds the expired certificate and the
request, so that a signature is valid for that pair alone. A replay makes the server certify again
a key that only the device has.

Source: FIPS 186-5, section 6 (ECDSA, here on P-256 with SHA-256).
"""

import hashlib

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from fedloom.protocol.trust.identity import key_from_pem

PURPOSE = b"fedloom late renewal 1\0"
_ECDSA = ec.ECDSA(hashes.SHA256())


def statement(certificate: x509.Certificate, csr_pem: bytes) -> bytes:
    """The signed bytes: the purpose, and the SHA-256 of the certificate and of the request."""
    ended = hashlib.sha256(certificate.public_bytes(Encoding.DER)).digest()
    return PURPOSE + ended + hashlib.sha256(csr_pem).digest()


def sign(identity_pem: bytes, csr_pem: bytes) -> bytes:
    """Sign a request with the key of an identity.

    Args:
        identity_pem: the key and the expired certificate, as stored on a device.
        csr_pem: for the new key.

    Returns:
        ECDSA signature, DER.

    Raises:
        IntegrityError: there is no P-256 key in the identity.
    """
    certificate = x509.load_pem_x509_certificate(identity_pem)
    return key_from_pem(identity_pem).sign(statement(certificate, csr_pem), _ECDSA)


def is_signed(certificate: x509.Certificate, csr_pem: bytes, signature: bytes) -> bool:
    """Whether the key of this certificate signed this request."""
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(signature, statement(certificate, csr_pem), _ECDSA)
    except InvalidSignature:
        return False
    return True
