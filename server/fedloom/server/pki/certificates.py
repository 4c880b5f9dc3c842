"""Builds the certificates of a federation: pure functions of keys, names and time.

    root (10 years, signs only the issuing authority)
    └── issuing authority (2 years, path length 0)
        ├── client: SPIFFE URI, clientAuth, hours to days
        └── server: DNS names and addresses, serverAuth, 90 days

Sources: RFC 5280 section 4.2 (extensions), X509-SVID (the client's URI), CA/Browser Forum baseline
requirements 7.1 (random serial numbers).
Invariants: every key is P-256; of a request, only the public key enters a certificate; no leaf
outlives the authority that signed it.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedloom.protocol.errors import Code, Refusal, UsageError
from fedloom.protocol.trust.identity import UNREADABLE, check_client_name, spiffe_uri

ROOT_LIFE = timedelta(days=3652)
ISSUING_LIFE = timedelta(days=730)
SERVER_LIFE_S = 90 * 24 * 3600

_MAX_CSR_BYTES = 16 * 1024
_MAX_SKEW = timedelta(minutes=15)
"""Clients' certificates start this long before they are made: servers check them, and the clock of
one may be set back, or be slower than that of the replica which made one."""
_DEVICE_SKEW = timedelta(days=1)
"""Certificates that devices check start this long before they are made, as their clocks differ."""
# Path validation refuses underscores in host names.
_DNS_NAME = re.compile(
    r"(\*\.)?[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
)


@dataclass(frozen=True, slots=True)
class Issuer:
    """An authority that signs leaves.

    Attributes:
        key: its private key.
        certificate: its certificate over that key.
    """

    key: ec.EllipticCurvePrivateKey = field(repr=False)
    certificate: x509.Certificate


def make_root(key: ec.EllipticCurvePrivateKey, federation: str, now: datetime) -> x509.Certificate:
    """Sign a root over its own key; its organisation is the federation's name."""
    subject = _name(federation, "fedloom root")
    builder = _ca_builder(subject, key.public_key(), now, ROOT_LIFE, path_length=1)
    return builder.issuer_name(subject).sign(key, hashes.SHA256())


def make_issuing(
    key: ec.EllipticCurvePrivateKey,
    root: x509.Certificate,
    root_key: ec.EllipticCurvePrivateKey,
    now: datetime,
) -> x509.Certificate:
    """Sign an issuing authority over `key` by the root."""
    subject = _name(federation_of(root), "fedloom issuing authority")
    life = min(ISSUING_LIFE, root.not_valid_after_utc - now)
    builder = _ca_builder(subject, key.public_key(), now, life, path_length=0)
    builder = builder.add_extension(_authority_key_id(root), critical=False)
    return builder.issuer_name(root.subject).sign(root_key, hashes.SHA256())


def make_client_leaf(
    public_key: ec.EllipticCurvePublicKey, client: str, ttl_s: float, issuer: Issuer, now: datetime
) -> x509.Certificate:
    """Sign a certificate that names a client of the issuer's federation.

    Raises:
        UsageError: the name is not allowed, or `ttl_s` is not above 0.
    """
    federation = federation_of(issuer.certificate)
    names = [x509.UniformResourceIdentifier(spiffe_uri(federation, check_client_name(client)))]
    builder = _leaf_builder(public_key, _name(federation, client), ttl_s, issuer, now)
    return _with_purpose(builder, names, ExtendedKeyUsageOID.CLIENT_AUTH).sign(
        issuer.key, hashes.SHA256()
    )


def make_server_leaf(
    public_key: ec.EllipticCurvePublicKey,
    names: Iterable[str],
    ttl_s: float,
    issuer: Issuer,
    now: datetime,
) -> x509.Certificate:
    """Sign a certificate for a server with `names` (DNS names, IP addresses).

    Raises:
        UsageError: `names` is empty, one is not a valid host name, or `ttl_s` is not above 0.
    """
    hosts = [_host(name) for name in normal_names(names)]
    subject = _name(federation_of(issuer.certificate), "fedloom server")
    builder = _leaf_builder(public_key, subject, ttl_s, issuer, now, skew=_DEVICE_SKEW)
    return _with_purpose(builder, hosts, ExtendedKeyUsageOID.SERVER_AUTH).sign(
        issuer.key, hashes.SHA256()
    )


def read_csr(csr_pem: bytes) -> ec.EllipticCurvePublicKey:
    """Return the public key of a certificate request that is signed by that key.

    Raises:
        Refusal: with `BAD_CSR`, if the request cannot be read, its key is not P-256, or its
            signature is not by that key.
    """
    if len(csr_pem) > _MAX_CSR_BYTES:
        raise Refusal(
            Code.BAD_CSR,
            f"Expected a certificate request of at most {_MAX_CSR_BYTES} bytes, got {len(csr_pem)}",
        )
    try:
        request = x509.load_pem_x509_csr(csr_pem)
        key = request.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
            raise _wrong_key(key)
        proven = request.is_signature_valid
    except UNREADABLE as error:
        raise Refusal(
            Code.BAD_CSR,
            "Expected a PKCS#10 certificate request in PEM over a P-256 key, got something else",
            detail=repr(error),
        ) from None
    if not proven:
        raise Refusal(
            Code.BAD_CSR,
            "The certificate request is not signed by the key in it: make a new one with the "
            "device's key",
        )
    return key


def key_of(csr_pem: bytes) -> str:
    """Return the SHA-256, in hex, of a certificate request's public key as DER.

    Raises:
        Refusal: as `read_csr`.
    """
    info = PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(read_csr(csr_pem).public_bytes(Encoding.DER, info)).hexdigest()


def normal_names(names: Iterable[str]) -> tuple[str, ...]:
    """Normalise host names: lower case, addresses as `ipaddress` writes them, no repeats.

    Raises:
        UsageError: `names` is empty.
    """
    normal = tuple(dict.fromkeys(str(_host(name).value).lower() for name in names))
    if not normal:
        raise UsageError("Expected at least one DNS name or IP address for the server, got none")
    return normal


def names_of(leaf: x509.Certificate) -> tuple[str, ...]:
    """Read the host names of a server's certificate, in the form of `normal_names`."""
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return tuple(
        str(name.value).lower() for name in names if isinstance(name, x509.DNSName | x509.IPAddress)
    )


def federation_of(authority: x509.Certificate) -> str:
    """Read the federation's name from a root or issuing authority.

    Raises:
        ValueError: its subject has not exactly one organisation.
    """
    (attribute,) = authority.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return str(attribute.value)


def _ca_builder(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    life: timedelta,
    path_length: int,
) -> x509.CertificateBuilder:
    usage = _key_usage(key_cert_sign=True, crl_sign=True)
    return (
        _builder(subject, key, now - _DEVICE_SKEW, now + life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .add_extension(usage, critical=True)
    )


def _leaf_builder(
    key: ec.EllipticCurvePublicKey,
    subject: x509.Name,
    ttl_s: float,
    issuer: Issuer,
    now: datetime,
    *,
    skew: timedelta = _MAX_SKEW,
) -> x509.CertificateBuilder:
    if not ttl_s > 0:
        raise UsageError(f"Expected ttl_s > 0, got {ttl_s}")
    ttl = timedelta(seconds=ttl_s)
    # Start early, so that the certificate is valid for a clock that is slow; but at most a tenth
    # of the life, so that a short-lived certificate is not due for renewal from the start.
    not_before = now - min(skew, ttl / 10)
    not_after = min(now + ttl, issuer.certificate.not_valid_after_utc)
    return (
        _builder(subject, key, not_before, not_after)
        .issuer_name(issuer.certificate.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(_authority_key_id(issuer.certificate), critical=False)
    )


def _with_purpose(
    builder: x509.CertificateBuilder,
    names: Iterable[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
) -> x509.CertificateBuilder:
    return builder.add_extension(x509.SubjectAlternativeName(names), critical=False).add_extension(
        x509.ExtendedKeyUsage([purpose]), critical=False
    )


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, not_before: datetime, not_after: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())  # 159 bits, from the system's generator
        .not_valid_before(not_before.replace(microsecond=0))
        .not_valid_after(not_after.replace(microsecond=0))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _authority_key_id(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    extension = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(extension.value)


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _name(federation: str, common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _host(name: str) -> x509.DNSName | x509.IPAddress:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        pass
    host = name.lower()
    if len(host) > 253 or not _DNS_NAME.fullmatch(host):
        raise UsageError(
            "Expected a DNS name (letters, digits, hyphens and dots) or an IP address, got "
            f"{name[:80]!r}"
        )
    return x509.DNSName(host)


def _wrong_key(key: object) -> Refusal:
    kind = key.curve.name if isinstance(key, ec.EllipticCurvePublicKey) else type(key).__name__
    return Refusal(
        Code.BAD_CSR,
        f"Expected a certificate request over a P-256 (secp256r1) key, got {kind.strip('_')}: "
        "make a P-256 key",
    )
