"""Why a connection is refused before any call: what gRPC does not say, tried out by hand.

A handshake that fails is `UNAVAILABLE` to gRPC whatever the reason, and the server of gRPC closes
the socket without an alert. What can be seen from here: whether the server proves itself to the
root that this client got at enrolment, and whether it goes on talking once it has seen this
client's certificate (under TLS 1.3 a client has finished its handshake before it is refused).
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
    """Connect once and tell what is wrong with either side's certificate. Blocks.

    Args:
        server: host:port of the fleet.
        identity: file of this client's key and certificate chain.
        root_pem: what the server's certificate must lead to.

    Returns:
        WRONG_IDENTITY if the server is not of this federation, NO_CERTIFICATE if it does not have
        this client's certificate, None if neither shows.
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
    except OSError:  # not reachable, or too slow: gRPC says so itself
        return None


def _shake_hands(
    context: ssl.SSLContext, plain: socket.socket, host: str, identity: Path
) -> Refusal | None:
    try:
        with context.wrap_socket(plain, server_hostname=host) as tls:
            return None if _talks(tls) else _not_wanted(identity)
    except ssl.SSLCertVerificationError as error:
        advice = (
            "check this device's clock"
            if error.verify_code in _OF_TIME
            else "check the address in client.toml; if that is right, restore "
            f"{identity.with_name('root.pem')}, or enrol again"
        )
        return Refusal(
            Code.WRONG_IDENTITY,
            f"{host} does not prove to be the server that this client enrolled with "
            f"({error.verify_message.rstrip('.')}): {advice}.",
        )


def _talks(tls: ssl.SSLSocket) -> bool:
    """Does the server send its first frame, as it does to whom it accepts?"""
    try:
        return bool(tls.recv(1))
    except TimeoutError:
        return True
    except (ssl.SSLError, ConnectionError):
        return False


def _not_wanted(identity: Path) -> Refusal:
    begin, end = validity(identity.read_bytes())
    return Refusal(
        Code.NO_CERTIFICATE,
        "The server ended the connection when it saw this client's certificate, which is for "
        f"{begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC: it is from another authority, or "
        "the clocks of the two differ. Set the clocks, or enrol again with a new token.",
    )
