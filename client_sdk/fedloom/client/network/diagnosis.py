"""Diagnosis of a failed connection: a TLS handshake by hand, for details that gRPC does not report.

gRPC reports every failed handshake as `UNAVAILABLE`, and its server closes the socket without an
alert. This handshake shows whether the server's certificate leads to the root that this client
received at enrolment, and whether the server accepts this client's certificate: under TLS 1.3 a
client completes its handshake before the server can refuse it.
"""

import socket
import ssl
from pathlib import Path

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.trust.identity import validity

TIMEOUT_S = 5.0

_OF_TIME = frozenset({9, 10})
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""


def diagnose(server: str, identity: Path, root_pem: bytes) -> Refusal | None:
    """Connect once and check both certificates. Blocks.

    Args:
        server: host:port of the fleet.
        identity: file of this client's key and certificate chain.
        root_pem: root of the server's certificate.

    Returns:
        WRONG_IDENTITY if the server is not of this federation, NO_CERTIFICATE if it does not
        accept this client's certificate, else None.
    """
    host, _, port = server.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=root_pem.decode())
    context.load_cert_chain(identity)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S) as plain:
            return _shake_hands(context, plain, host.strip("[]"), identity)
    except OSError:  # not reachable, or too slow: gRPC reports that itself
        return None


def welcomes_strangers(server: str) -> bool:
    """Whether a server speaks to a peer without a certificate, as at its enrolment port. Blocks.

    Args:
        server: host:port. True if it cannot be reached.
    """
    host, _, port = server.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=host.strip("[]")) as tls,
        ):
            return _is_accepted(tls)
    except OSError:
        return True


def _shake_hands(
    context: ssl.SSLContext, plain: socket.socket, host: str, identity: Path
) -> Refusal | None:
    try:
        with context.wrap_socket(plain, server_hostname=host) as tls:
            return None if _is_accepted(tls) else _not_accepted(identity)
    except ssl.SSLCertVerificationError as error:
        advice = (
            "check this device's clock"
            if error.verify_code in _OF_TIME
            else "check the address in client.toml; if that is right, restore "
            f"{identity.with_name('root.pem')}, or enrol again"
        )
        return Refusal(
            Code.WRONG_IDENTITY,
            f"{host} is not the server that this client enrolled with "
            f"({error.verify_message.rstrip('.')}): {advice}.",
        )


def _is_accepted(tls: ssl.SSLSocket) -> bool:
    """Whether the server sends its first frame, as it does after accepting a client."""
    try:
        return bool(tls.recv(1))
    except TimeoutError:
        return True
    except (ssl.SSLError, ConnectionError):
        return False


def _not_accepted(identity: Path) -> Refusal:
    begin, end = validity(identity.read_bytes())
    return Refusal(
        Code.NO_CERTIFICATE,
        "The server rejected this client's certificate, which is valid from "
        f"{begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC: it is from another authority, or "
        "the two clocks differ. Set the clocks, or enrol again with a new token.",
    )
