"""First contact: a device verifies the server with its token alone.

The token pins the root certificate of the federation. The device opens a TLS connection without
verifying anything, reads the chain that the server presents (leaf, issuing authority, root), looks
for the certificate that has the pin, and then verifies the chain against that root and the host
name. Only a root that passed is returned, and gRPC uses it as its sole root when the token is sent
over a second, verified connection: no secret is sent over the unverified one.

Sources: RFC 5280 section 6 (path validation, by cryptography.x509.verification); the pin is that of
RFC 7469, over the certificate instead of its key.
Invariant: a root is returned only if its SHA-256 is the pin and the chain is valid for this host
now.
"""

import hashlib
import hmac
import socket
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import verification

from fedloom.protocol.errors import Code, Refusal, UnavailableError, UsageError
from fedloom.protocol.trust.identity import UNREADABLE

_DER = 2  # _ssl.ENCODING_DER, which no public module exports


def fetch_root(host: str, port: int, pin: bytes, timeout_s: float) -> bytes:
    """Fetch the root certificate that a token pins from the server that presents it.

    Args:
        host: DNS name or IP address, as the enrolment call will use it.
        port: the enrolment port.
        pin: SHA-256 of the root certificate's DER, 32 bytes.
        timeout_s: for connecting, and again for the handshake.

    Returns:
        The root certificate in PEM.

    Raises:
        UsageError: host or port is not valid.
        UnavailableError: no server answers there, or it does not use TLS.
        Refusal: `BAD_TOKEN` when nothing presented has the pin, `EXPIRED` when the server's
            certificate is not valid now, `WRONG_IDENTITY` when it is not for this host or does not
            lead to the root.
    """
    chain = presented_chain(host, port, timeout_s)
    return verified_root(chain, host, pin, datetime.now(UTC))


def presented_chain(host: str, port: int, timeout_s: float) -> list[bytes]:
    """Read the certificates that a TLS server presents, without verification.

    Returns:
        DER certificates, the leaf first.

    Raises:
        UsageError: host or port cannot be an address.
        UnavailableError: no TLS handshake was possible.
    """
    if not 1 <= port <= 65535:  # getaddrinfo would silently take it modulo 65536
        raise UsageError(f"Expected a port from 1 to 65535, got {port}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # read, not trusted: `verified_root` decides
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), timeout=timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=host) as tls,
        ):
            return _unverified_chain(tls)
    except ssl.SSLError as error:
        raise UnavailableError(
            f"{host}:{port} answers, but not with TLS 1.3 as the enrolment port does: check the "
            f"port ({error.reason or error})"
        ) from error
    except OSError as error:
        raise UnavailableError(
            f"Cannot reach {host}:{port} ({error}): check that the server runs, the address and "
            "the firewall"
        ) from error
    except ValueError as error:  # UnicodeError is one
        raise UsageError(f"Expected a host name or IP address, got {host!r} ({error})") from error


def verified_root(chain: Sequence[bytes], host: str, pin: bytes, now: datetime) -> bytes:
    """Find the pinned root in a presented chain and verify the chain for the host.

    Args:
        chain: DER certificates, the leaf first.
        host: the name or address that the leaf must be for.
        pin: SHA-256 of the root's DER, 32 bytes.
        now: time of verification.

    Returns:
        The root certificate in PEM.

    Raises:
        Refusal: as in `fetch_root`.
    """
    root_der = next(
        (der for der in chain if hmac.compare_digest(hashlib.sha256(der).digest(), pin)), None
    )
    if root_der is None:
        raise Refusal(
            Code.BAD_TOKEN,
            f"{host} does not present the root certificate that the token pins, so it is not the "
            "server that made the token, or something in between poses as it. Check that host and "
            "port are right, that the token is from this server (a reinstalled server has a new "
            "root), and that no proxy intercepts TLS. Nothing secret was sent.",
            detail=f"presented={[hashlib.sha256(der).hexdigest() for der in chain]}",
        )
    try:
        root, leaf, *others = (x509.load_der_x509_certificate(der) for der in (root_der, *chain))
        _verify(root, leaf, others, host, now)
    except UNREADABLE as error:
        raise Refusal(
            Code.WRONG_IDENTITY,
            f"{host} presents a certificate that cannot be read: check host and port",
            detail=repr(error),
        ) from None
    return root.public_bytes(Encoding.PEM)


def _verify(
    root: x509.Certificate,
    leaf: x509.Certificate,
    others: list[x509.Certificate],
    host: str,
    now: datetime,
) -> None:
    policy = verification.PolicyBuilder().store(verification.Store([root])).time(now)
    try:
        verifier = policy.build_server_verifier(_subject(host))
    except ValueError:
        raise UsageError(
            "Expected a host name of letters, digits, hyphens and dots, or an IP address, got "
            f"{host!r}"
        ) from None
    try:
        verifier.verify(leaf, others)
    except verification.VerificationError as error:
        raise _diagnosis(leaf, host, now, str(error)) from None


def _diagnosis(leaf: x509.Certificate, host: str, now: datetime, error: str) -> Refusal:
    """Return a refusal with the probable reason; the verifier's message is logged."""
    begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if not begin <= now <= end:
        return Refusal(
            Code.EXPIRED,
            f"{host} presents a certificate for {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} "
            f"UTC, but this device's clock says {now:%Y-%m-%d %H:%M}: set the clock, or restart "
            "the server to renew its certificate",
            detail=error,
        )
    names = _names(leaf)
    if host.lower() not in names:
        return Refusal(
            Code.WRONG_IDENTITY,
            f"The server's certificate is for {', '.join(names) or 'no host'}, not for {host}: "
            "connect by one of these, or add this one to the server's names",
            detail=error,
        )
    return Refusal(
        Code.WRONG_IDENTITY,
        f"{host} presents the pinned root, but its own certificate does not lead to it: something "
        "in between may pose as the server. Nothing secret was sent.",
        detail=error,
    )


def _subject(host: str) -> x509.DNSName | x509.IPAddress:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host.lower())


def _names(leaf: x509.Certificate) -> list[str]:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except UNREADABLE:
        return []
    return [
        str(name.value).lower() for name in names if isinstance(name, x509.DNSName | x509.IPAddress)
    ]


def _unverified_chain(tls: ssl.SSLSocket) -> list[bytes]:
    """Read the presented chain as DER, the leaf first.

    Python 3.13 made `get_unverified_chain` public. 3.10 to 3.12 have it on the private object
    alone, and `getpeercert` returns the leaf only; the alternative would be another TLS library.
    """
    public = getattr(tls, "get_unverified_chain", None)
    if public is not None:
        return list(public())
    private: Any = tls._sslobj  # type: ignore[attr-defined]  # noqa: SLF001 - the reason is above
    return [certificate.public_bytes(_DER) for certificate in private.get_unverified_chain() or ()]
