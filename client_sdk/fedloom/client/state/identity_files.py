"""What this device holds of its federation: its key and certificate, the root, the signing key.

Files on a device's disk go wrong in ways that no handshake tells apart: emptied by a full disk, cut
off by a power loss, restored in each other's place. Each is read here, and what is wrong with it is
said with its name, what came instead, and what to do.

Invariant: what is returned fits together: the key is the certificate's, which names a client of a
federation, and the root is an authority's. Whether the server proves itself by it is TLS's to say.
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
_LABEL = re.compile(rb"-----(BEGIN|END) ([A-Z0-9 ]{1,40})-----")


@dataclass(frozen=True, slots=True)
class StoredIdentity:
    """An identity as it lies on disk.

    Attributes:
        peer: whom the certificate names.
        path: of the key with its chain.
        pem: these.
        root_pem: what the server's certificate leads to.
        begin: of the certificate, UTC.
        end: likewise.
    """

    peer: Peer
    path: Path
    pem: bytes
    root_pem: bytes
    begin: datetime
    end: datetime


def read(directory: Path) -> StoredIdentity:
    """The identity in a state directory.

    Raises:
        UsageError: this client is not enrolled, or may not read its files.
        IntegrityError: one of them is not what was written.
    """
    path = directory / IDENTITY
    if not path.exists() and not (directory / ROOT).exists():
        raise UsageError(
            f"Expected an identity in {directory}, got none. Enrol this device: "
            "`fedloom client enroll`."
        )
    pem = _read(path)
    peer, begin, end = _certified(path, pem)
    return StoredIdentity(peer, path, pem, _root(directory / ROOT), begin, end)


def signing_key(directory: Path) -> bytes | None:
    """The public key that the server signs by; None where it was never learnt.

    Raises:
        UsageError: it may not be read.
        IntegrityError: the file is not what was written.
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
        raise _broken(
            path, f"the key that the server signs by, in {2 * SIGNING_BYTES} hex digits", data
        )
    return key


def noise_key(path: Path) -> bytes:
    """The secret of this device's own noise.

    Raises:
        FileNotFoundError: there is none yet.
        UsageError: it may not be read.
        IntegrityError: the file is not what was written.
    """
    data = _read(path) if path.exists() else read_private(path)
    if len(data) != NOISE_BYTES:
        raise IntegrityError(
            f"Expected {NOISE_BYTES} secret bytes in {path}, got {_came(data)}. Restore it, or "
            "remove it: another one is made then."
        )
    return data


def _certified(path: Path, pem: bytes) -> tuple[Peer, datetime, datetime]:
    """Whom the certificate beside the key names, and from when to when."""
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
            f"Expected a key and its certificate in {path}, got ones that do not fit each other. "
            f"Restore the file as a whole, or {ENROL}."
        )
    return peer, certificate.not_valid_before_utc, certificate.not_valid_after_utc


def _root(path: Path) -> bytes:
    """The federation's root certificate, or several while it changes."""
    pem = _read(path)
    try:
        found = x509.load_pem_x509_certificates(pem)
        authorities = [_is_authority(certificate) for certificate in found]
    except UNREADABLE:
        authorities = []
    if not authorities or not all(authorities) or b"PRIVATE KEY" in pem:
        wanted = "the root certificate of the federation"
        raise _broken(path, wanted, pem, "it is the same on all devices of a federation")
    return pem


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except x509.ExtensionNotFound:
        return False
    return extension.value.ca


def _read(path: Path) -> bytes:
    """A file that only its owner may read.

    Raises:
        UsageError: it is gone, no file, or not for this user.
        UnavailableError: the disk does not give it.
    """
    try:
        return read_private(path)
    except FileNotFoundError:
        raise UsageError(
            f"Expected {path}, got no such file. Restore it from a backup, or {ENROL}."
        ) from None
    except (PermissionError, IsADirectoryError) as error:
        raise UsageError(
            f"Expected a file that this user may read in {path}, got: {error.strerror}. Run this "
            "as the owner of its folder, or mend its owner and mode."
        ) from None
    except OSError as error:
        raise UnavailableError(
            f"Expected to read {path}, got: {error.strerror}. Look after the disk."
        ) from error


def _broken(path: Path, wanted: str, data: bytes, hint: str = "") -> IntegrityError:
    aside = f" ({hint})" if hint else ""
    return IntegrityError(
        f"Expected {wanted} in {path}, got {_came(data)}. Restore it from a backup{aside}, or "
        f"{ENROL}."
    )


def _came(data: bytes) -> str:
    """What a file holds, in words; never the bytes of a key."""
    if not data.strip(b"\0 \r\n\t"):
        return f"{len(data)} bytes of nothing" if data else "an empty file"
    found = [(kind, label.decode().lower()) for kind, label in _LABEL.findall(data)]
    begun = Counter(label for kind, label in found if kind == b"BEGIN")
    ended = Counter(label for kind, label in found if kind == b"END")
    if not begun:
        return f"{len(data)} bytes of something else"
    parts = [f"{n} times a {label}" if n > 1 else f"a {label}" for label, n in begun.items()]
    cut = ", cut off" if begun != ended else ""
    name = _named(data)
    return " and ".join(parts) + (f" ({name})" if name else "") + cut


def _named(data: bytes) -> str:
    """Whom the first certificate is of."""
    try:
        certificate = x509.load_pem_x509_certificate(data)
    except UNREADABLE:
        return ""
    try:
        return f"of {identity.peer_from_certificate(certificate).client}"
    except FedloomError:
        return f"of {certificate.subject.rfc4514_string()}"
