"""The identity files of a device: key and certificate, root, signing key and noise key.

Files may be emptied by a full disk, truncated by a power loss, or swapped in a restore, and a TLS
handshake does not tell these apart. Each file is checked here; an error names the file, its actual
content, and what to do.

Invariant: the returned files match: the key belongs to the certificate, the certificate names a
client of a federation, and the root is an authority. TLS verifies the server against it.
"""

import re
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from fedloom.protocol.errors import FedloomError, IntegrityError, UnavailableError, UsageError
from fedloom.protocol.trust import identity
from fedloom.protocol.trust.identity import UNREADABLE, Peer
from fedloom.protocol.trust.noise_stream import KEY_BYTES as NOISE_BYTES
from fedloom.protocol.trust.private_files import read_private
from fedloom.protocol.trust.signing import KEY_BYTES as SIGNING_BYTES

ENROL = "enrol again with a new token: move client.toml away, then `fedloom client enroll`"

IDENTITY, ROOT, SIGNING, NOISE = "identity.pem", "root.pem", "signing.pub", "noise.key"
RENEWAL = "renewal.key"
"""The key of a renewal that has begun; it is the same until a certificate over it is stored."""
ENROLMENT = "enrolment.key"
"""Likewise of an enrolment, after the id of its token."""
_LABEL = re.compile(rb"-----(BEGIN|END) ([A-Z0-9 ]{1,40})-----")


@dataclass(frozen=True, slots=True)
class StoredIdentity:
    """An identity on disk.

    Attributes:
        peer: the client that the certificate names.
        path: file of the key with its certificate chain.
        pem: content of that file.
        root_pem: root of the server's certificate.
        begin: start of the certificate's validity, UTC.
        end: end of its validity, UTC.
    """

    peer: Peer
    path: Path
    pem: bytes
    root_pem: bytes
    begin: datetime
    end: datetime


def read(directory: Path) -> StoredIdentity:
    """Read and check the identity in a state directory.

    Raises:
        UsageError: this client is not enrolled, or may not read its files.
        IntegrityError: one of them is damaged.
    """
    path = directory / IDENTITY
    if not path.exists() and not (directory / ROOT).exists():
        raise UsageError(f"No identity in {directory}. Enrol this device: `fedloom client enroll`.")
    pem = _read(path)
    peer, begin, end = _certified(path, pem)
    return StoredIdentity(peer, path, pem, _root(directory / ROOT), begin, end)


def signing_key(directory: Path) -> bytes | None:
    """The server's public signing key; None if none is stored.

    Raises:
        UsageError: it may not be read.
        IntegrityError: the file is damaged.
    """
    path = directory / SIGNING
    if not path.exists():
        return None
    data = _read(path)
    try:
        key = bytes.fromhex(data.decode())
    except ValueError:
        key = b""
    if len(key) != SIGNING_BYTES:
        raise _broken(path, f"the server's signing key in {2 * SIGNING_BYTES} hex digits", data)
    return key


def noise_key(path: Path) -> bytes:
    """The secret key of this device's noise.

    Raises:
        FileNotFoundError: there is none yet.
        UsageError: it may not be read.
        IntegrityError: the file is damaged.
    """
    data = _read(path) if path.exists() else read_private(path)
    if len(data) != NOISE_BYTES:
        raise IntegrityError(
            f"Expected {NOISE_BYTES} secret bytes in {path}, got {_content(data)}. Restore it, or "
            "remove it: a new one is made then."
        )
    return data


def _certified(path: Path, pem: bytes) -> tuple[Peer, datetime, datetime]:
    """The client that a certificate names, and its validity; checks that the key matches."""
    wanted = "a private key with the certificate of a client"
    try:
        key = identity.key_from_pem(pem)
        certificate = x509.load_pem_x509_certificate(pem)
        identity.leaf_pem(pem)
        peer = identity.peer_from_pem(pem)
    except (FedloomError, *UNREADABLE):
        raise _broken(path, wanted, pem) from None
    if key.public_key() != certificate.public_key():
        raise IntegrityError(
            f"Expected a matching key and certificate in {path}, got two that do not match. "
            f"Restore the whole file, or {ENROL}."
        )
    return peer, certificate.not_valid_before_utc, certificate.not_valid_after_utc


def _root(path: Path) -> bytes:
    """The federation's root certificate, or several during a change of root."""
    pem = _read(path)
    try:
        found = x509.load_pem_x509_certificates(pem)
        authorities = [_is_authority(certificate) for certificate in found]
    except UNREADABLE:
        authorities = []
    if not authorities or not all(authorities) or b"PRIVATE KEY" in pem:
        wanted = "the root certificate of the federation"
        raise _broken(path, wanted, pem, " (it is the same on all devices of a federation)")
    return pem


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except x509.ExtensionNotFound:
        return False
    return extension.value.ca


def _read(path: Path) -> bytes:
    """Read a file that only its owner may read."""
    try:
        return read_private(path)
    except FileNotFoundError:
        raise UsageError(
            f"The file {path} is missing. Restore it from a backup, or {ENROL}."
        ) from None
    except (PermissionError, IsADirectoryError) as error:
        raise UsageError(
            f"This user cannot read {path}: {error.strerror}. Run this as the owner of its folder, "
            "or correct the file's owner and mode."
        ) from None
    except OSError as error:
        raise UnavailableError(f"Cannot read {path}: {error.strerror}. Check the disk.") from error


def _broken(path: Path, wanted: str, data: bytes, hint: str = "") -> IntegrityError:
    return IntegrityError(
        f"Expected {wanted} in {path}, got {_content(data)}. Restore it from a backup{hint}, or "
        f"{ENROL}."
    )


def _content(data: bytes) -> str:
    """Description of a file's content; never the bytes of a key."""
    if not data.strip(b"\0 \r\n\t"):
        return f"{len(data)} blank bytes" if data else "an empty file"
    found = [(kind, label.decode().lower()) for kind, label in _LABEL.findall(data)]
    begun = Counter(label for kind, label in found if kind == b"BEGIN")
    ended = Counter(label for kind, label in found if kind == b"END")
    if not begun:
        return f"{len(data)} bytes of something else"
    parts = [f"{n} {label}s" if n > 1 else f"a {label}" for label, n in begun.items()]
    cut = ", truncated" if begun != ended else ""
    name = _named(data)
    return " and ".join(parts) + (f" ({name})" if name else "") + cut


def _named(data: bytes) -> str:
    """The client or subject of the first certificate."""
    try:
        certificate = x509.load_pem_x509_certificate(data)
    except UNREADABLE:
        return ""
    try:
        return f"of {identity.peer_from_certificate(certificate).client}"
    except FedloomError:
        return f"of {certificate.subject.rfc4514_string()}"
