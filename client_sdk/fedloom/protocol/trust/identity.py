"""Identities: P-256 keys, certificate requests, and the client that a certificate names.

A client is named by one SPIFFE URI in its certificate, `spiffe://FEDERATION/client/NAME`; subject
names are ignored. P-256, because Ed25519 and P-521 leaves fail gRPC's handshake and RSA costs a
device more at every connection.

Sources: SPIFFE-ID and X509-SVID (spiffe.io); RFC 5280 (certificates); RFC 2986 (requests).
Invariants: `parse_spiffe_uri` inverts `spiffe_uri`, and a `Peer` exists only for a certificate with
exactly one URI of that form. The handshake proves that our authority signed a certificate; the
ledger knows whether it is revoked.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from fedloom.protocol.errors import Code, IntegrityError, Refusal, UsageError

# 64 is the longest common name of X.520. The first character prevents names that act as `..`,
# hidden files or options in paths and command lines.
_CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FEDERATION = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SPIFFE = re.compile(rf"spiffe://({_FEDERATION.pattern})/client/({_CLIENT_NAME.pattern})")

UNREADABLE = (
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""The errors that `cryptography` raises on invalid bytes; most are no ValueError."""

_RENEW_AT = 2 / 3
_JITTER_SPAN = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The client that a certificate names.

    Attributes:
        federation: its trust domain.
        client: its name there.
        serial: the certificate's serial number, 40 lower-case hex digits.
        not_after: when the certificate ends, UTC.
    """

    federation: str
    client: str
    serial: str
    not_after: datetime


def check_client_name(name: str) -> str:
    """Check the name of a client, and return it.

    Raises:
        UsageError: the name is not valid.
    """
    if not _CLIENT_NAME.fullmatch(name):
        raise UsageError(
            "Expected a client name of 1 to 64 characters out of A-Z a-z 0-9 . _ -, the first a "
            f"letter or a digit, got {name[:80]!r}"
        )
    return name


def check_federation(name: str) -> str:
    """Check the name of a federation (a SPIFFE trust domain), and return it.

    Raises:
        UsageError: the name is not valid.
    """
    if not _FEDERATION.fullmatch(name):
        raise UsageError(
            "Expected a federation name of 1 to 64 characters out of a-z 0-9 . _ -, the first a "
            f"letter or a digit, got {name[:80]!r}"
        )
    return name


def spiffe_uri(federation: str, client: str) -> str:
    """Build the URI of a client: `spiffe://FEDERATION/client/NAME`.

    Raises:
        UsageError: one of the names is not valid.
    """
    return f"spiffe://{check_federation(federation)}/client/{check_client_name(client)}"


def parse_spiffe_uri(uri: str) -> tuple[str, str]:
    """Return (federation, client) of a URI from `spiffe_uri`.

    Raises:
        Refusal: `NO_CERTIFICATE` for any other URI.
    """
    match = _SPIFFE.fullmatch(uri)
    if match is None:
        raise Refusal(
            Code.NO_CERTIFICATE,
            "Expected a certificate that names spiffe://FEDERATION/client/NAME, got another "
            "name: enrol this device to get one",
            detail=f"uri={uri[:200]!r}",
        )
    return match[1], match[2]


def peer_from_certificate(certificate: x509.Certificate) -> Peer:
    """Read the client that a certificate names.

    Raises:
        Refusal: with `NO_CERTIFICATE`, when it is not one that this system issues to clients.
    """
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        uris = extension.value.get_values_for_type(x509.UniformResourceIdentifier)
    except UNREADABLE as error:
        raise _not_ours(repr(error)) from None
    if len(uris) != 1:
        raise _not_ours(f"{len(uris)} URIs")
    federation, client = parse_spiffe_uri(uris[0])
    return Peer(
        federation=federation,
        client=client,
        serial=f"{certificate.serial_number:040x}",
        not_after=certificate.not_valid_after_utc,
    )


@lru_cache(maxsize=4096)
def peer_from_pem(pem: bytes) -> Peer:
    """Read the client that a PEM certificate names (of a chain, the first).

    Cached by its bytes, since every RPC needs it; 4,096 entries take about 4 MB.

    Raises:
        Refusal: with `NO_CERTIFICATE`, when it is not one that this system issues to clients.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except UNREADABLE as error:
        raise _not_ours(repr(error)) from None
    return peer_from_certificate(certificate)


def generate_key() -> ec.EllipticCurvePrivateKey:
    """Generate a P-256 private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Serialise a private key as PKCS#8 PEM; store it with `private_files.write_private`."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def key_from_pem(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Read the private key of a PEM file; certificates may follow it.

    Raises:
        IntegrityError: there is no P-256 key in it.
    """
    try:
        key = load_pem_private_key(pem, password=None)
    except (*UNREADABLE, TypeError) as error:  # TypeError: it has a password
        raise IntegrityError(f"Expected a private key in PEM form: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IntegrityError("Expected a P-256 private key, got one of another kind")
    return key


def build_csr(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Build a certificate request for `key`, in PEM.

    It has no names: the token identifies the client.
    """
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def leaf_pem(pem: bytes) -> bytes:
    """The first certificate of a key and chain in one PEM."""
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.PEM)


def chain_pem(pem: bytes) -> bytes:
    """Every certificate of a key and chain in one PEM, leaf first."""
    chain = x509.load_pem_x509_certificates(pem)
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in chain)


def validity(pem: bytes) -> tuple[datetime, datetime]:
    """Read (not_before, not_after), both UTC, of the first certificate in a PEM file.

    Raises:
        IntegrityError: there is no certificate in it.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except UNREADABLE as error:
        raise IntegrityError(f"Expected a certificate in PEM form: {error}") from None
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def seconds_until_renewal(
    not_before: datetime, not_after: datetime, now: datetime, jitter: float = 0.0
) -> float:
    """Return the time until a certificate should be renewed.

    Renewal is due at two thirds of its life, which leaves the last third for retries.

    Args:
        not_before: start of its life.
        not_after: end of its life.
        now: the time.
        jitter: in [0, 1], drawn once by each client; moves renewal earlier by up to a tenth of the
            life, so that clients that enrolled together do not renew together.

    Returns:
        Seconds, 0.0 when renewal is due.
    """
    life: timedelta = not_after - not_before
    due = not_before + life * (_RENEW_AT - _JITTER_SPAN * jitter)
    return max(0.0, (due - now).total_seconds())


def _not_ours(detail: str) -> Refusal:
    return Refusal(
        Code.NO_CERTIFICATE,
        "Expected a client certificate of this federation, got none that can be read as one: "
        "enrol this device to get one",
        detail=detail,
    )
