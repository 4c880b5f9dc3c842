"""Keys of SuperNodes, and the signatures by which each of their calls proves one.

Source: flwr 1.41, `superlink/routers/fleet/node_auth.py`. A SuperNode signs the time of a call, not
its content: TLS protects that, and the time bounds the replay of headers.
"""

import binascii
from base64 import b64decode
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    public_key_to_bytes,
    verify_signature,
)

from fedloom.protocol.errors import UsageError


def public_key(path: Path) -> bytes:
    """The public key in a file of `ssh-keygen` or in PEM, as a SuperNode sends it.

    Raises:
        UsageError: the file cannot be read, or has no public elliptic-curve key.
    """
    try:
        data = path.read_bytes()
        load = (
            serialization.load_pem_public_key
            if data.lstrip().startswith(b"-----")
            else serialization.load_ssh_public_key
        )
        key = load(data)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"Expected the public key of a SuperNode in {path}, got: {error}. It is the .pub file "
            "of the key that `flower-supernode --auth-supernode-private-key` uses."
        ) from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UsageError(
            f"Expected an elliptic-curve key in {path}, got a {type(key).__name__}. Make one by "
            "`ssh-keygen -t ecdsa -b 384`."
        )
    pem: bytes = public_key_to_bytes(key)
    return pem


def fingerprint(pem: bytes) -> str:
    """A short name of a key."""
    return sha256(pem).hexdigest()[:16]


def claimed(headers: Mapping[str, str]) -> bytes:
    """The key that a call claims, not yet verified; empty without one."""
    try:
        return b64decode(headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER, ""), validate=True)
    except (binascii.Error, ValueError):
        return b""


def is_signed(headers: Mapping[str, str], pem: bytes) -> bool:
    """Whether the holder of a known key made the call within the last minutes."""
    try:
        stamp = headers[TIMESTAMP_HEADER]
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        age_s = (datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds()
        signed = stamp.encode("ascii")
    except (KeyError, TypeError, ValueError):
        return False
    if not -SYSTEM_TIME_TOLERANCE < age_s < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
        return False
    return bool(verify_signature(bytes_to_public_key(pem), signed, signature))
