"""Renewal after a certificate's end: the statement that a device signs to prove its identity.

A certificate that has ended opens no connection, so there is nothing but its key to go by: the
device signs its request for a new one with the old key. The statement binds the ended certificate
and the request, so that a signature is valid for that pair alone; a replay makes the server
certify once more a key that only the device has.

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
    """What is signed: the purpose, and the SHA-256 of the certificate's DER and of the request."""
    ended = hashlib.sha256(certificate.public_bytes(Encoding.DER)).digest()
    return PURPOSE + ended + hashlib.sha256(csr_pem).digest()


def sign(identity_pem: bytes, csr_pem: bytes) -> bytes:
    """Sign for a request by the key of an identity.

    Args:
        identity_pem: the key and the certificate that has ended, as a device keeps them.
        csr_pem: for the new key.

    Returns:
        ECDSA signature, DER.

    Raises:
        IntegrityError: there is no P-256 key in the identity.
    """
    certificate = x509.load_pem_x509_certificate(identity_pem)
    return key_from_pem(identity_pem).sign(statement(certificate, csr_pem), _ECDSA)


def is_signed(certificate: x509.Certificate, csr_pem: bytes, signature: bytes) -> bool:
    """Did the key of this certificate sign for this request?"""
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(signature, statement(certificate, csr_pem), _ECDSA)
    except InvalidSignature:
        return False
    return True
