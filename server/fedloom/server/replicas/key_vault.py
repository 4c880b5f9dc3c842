"""A server's keys in the ledger, encrypted, so that each replica has them when it begins to drive.

The state folder of the server that drives has them as files, as without replicas. A key is in the
ledger before it is in its file, so no key is used that another replica would lack. Each is
encrypted with AES-256-GCM (NIST SP 800-38D) under the key in `master.key`, which each replica has
as a file, with its name as associated data. The root's key stays where its operator put it: only a
new issuing authority needs it.

To replace the master key, each replica gets the next one as a file beside it. Then all rows are
encrypted anew in one transaction. Each replica that meets them uses its next key from then on, and
keeps the old one in `master.key.old`, for old backups of the ledger.

Invariant: all rows are encrypted under one master key.
"""

import hashlib
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedloom.protocol.atomic_files import sync_directory
from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import UsageError
from fedloom.protocol.trust.private_files import read_private, write_private
from fedloom.server.config import ServerConfig
from fedloom.server.ledger import Ledger

log = logging.getLogger(__name__)

MASTER_KEY = "master.key"
"""Its file in the state folder: 32 bytes in hexadecimal."""

NEXT_KEY = "master.key.next"
"""The file of the key that will replace it, or has replaced it on another replica."""

OLD_KEY = "master.key.old"
"""The file of the key that it has replaced."""

_KEY_BYTES, _NONCE_BYTES = 32, 12
_FOLDERS = ("pki", "signing", "noise")
_OWN = ("pki/root.key", "pki/server.pem")
"""What stays on each replica: the root's key, and the key of its own TLS certificate."""


class KeyVault:
    """The keys of a state folder in a ledger.

    Args:
        state_dir: of this server.
        ledger: shared by the replicas.
    """

    def __init__(self, state_dir: Path, ledger: Ledger) -> None:
        self._state_dir = state_dir
        self._ledger = ledger

    def check(self) -> None:
        """Check that this server can read the keys in the ledger, before it waits for its turn.

        Raises:
            UsageError: its master key is missing, or another one.
        """
        rows = self._ledger.wrapped_keys()
        if rows:
            cipher = self._cipher(rows)
            for name, sealed in rows.items():
                self._opened(cipher, name, sealed)

    def restore(self) -> None:
        """Write the ledger's keys to their files, and files that the ledger lacks to the ledger.

        The first server makes the master key.

        Raises:
            UsageError: the master key is missing, or another one.
        """
        rows = self._ledger.wrapped_keys()
        master = self._state_dir / MASTER_KEY
        if not rows and not master.exists():
            write_private(master, _new_key())
            log.warning("made %s: every other replica needs a copy, and so does a safe", master)
        self._write_files(rows)
        for path in self._files():
            if self._name(path) not in rows:
                self._seal(path, path.read_bytes())

    def fetch(self) -> dict[str, bytes]:
        """Write the ledger's keys to their files, for a server that does not drive.

        Returns:
            The keys of the authority by name.

        Raises:
            UsageError: the master key is missing, or another one.
        """
        found = self._write_files(self._ledger.wrapped_keys())
        return {name: key for name, key in found.items() if name.startswith("pki/")}

    def _write_files(self, rows: Mapping[str, bytes]) -> dict[str, bytes]:
        cipher, found = self._cipher(rows), {}
        for name, sealed in rows.items():
            path, key = self._state_dir / name, self._opened(cipher, name, sealed)
            if not path.exists() or path.read_bytes() != key:
                path.parent.mkdir(mode=0o700, exist_ok=True)
                write_private(path, key)
            found[name] = key
        return found

    def prepare_rotation(self) -> str:
        """Make the key that will replace the master key, unless there is one; its fingerprint.

        Raises:
            UsageError: the ledger has no keys, or this server cannot read them.
        """
        if not self._ledger.wrapped_keys():
            raise UsageError(
                "Expected keys of replicas in the ledger, got none: start a server with replicated "
                "= true first, which writes them there."
            )
        self.check()
        path = self._state_dir / NEXT_KEY
        if not path.exists():
            write_private(path, _new_key())
        crossing("master.next")
        return _fingerprint(self._key(NEXT_KEY))

    def rotate(self) -> tuple[str, int]:
        """Encrypt all keys in the ledger under the next master key; servers may run.

        After a crash, a repeat does what is left.

        Returns:
            The fingerprint of the new key, and the number of keys.

        Raises:
            UsageError: there is no next key, or this server cannot read the ledger's keys.
        """
        if not (self._state_dir / NEXT_KEY).exists():
            raise UsageError(
                f"Expected {self._state_dir / NEXT_KEY}, got no such file: make it by `fedloom "
                "server rotate-master-key`, and copy it to the other replicas first."
            )
        key = self._key(NEXT_KEY)
        new, rows = AESGCM(key), 0

        def change(found: Mapping[str, bytes]) -> dict[str, bytes]:
            nonlocal rows
            rows, old = len(found), self._cipher(found, promotes=False)
            opened = {name: self._opened(old, name, sealed) for name, sealed in found.items()}
            return {name: _sealed(new, name, content) for name, content in opened.items()}

        self._ledger.change_wrapped_keys(change)
        crossing("master.rotated")
        detail = {"key": _fingerprint(key), "keys": rows}
        self._ledger.trail.append("fedloom", "local", "master_key.rotate", "", detail)
        self._promote()
        return _fingerprint(key), rows

    def write(self, path: Path, key: bytes) -> None:
        """Write a key to the ledger, and then to its file. Blocks.

        Raises:
            LeaseLostError: another server drives; nothing was written.
        """
        if self._name(path) not in _OWN:
            self._seal(path, key)
        write_private(path, key)

    def _files(self) -> list[Path]:
        found = [path for each in _FOLDERS for path in sorted((self._state_dir / each).glob("*"))]
        return [p for p in found if not p.name.startswith(".") and self._name(p) not in _OWN]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._state_dir).as_posix()

    def _seal(self, path: Path, key: bytes) -> None:
        name = self._name(path)
        self._ledger.change_wrapped_keys(
            lambda rows: {name: _sealed(self._cipher(rows), name, key)}
        )

    def _opened(self, cipher: AESGCM, name: str, sealed: bytes) -> bytes:
        try:
            return _opened(cipher, name, sealed)
        except InvalidTag:
            raise UsageError(
                f"Expected the master key of this ledger in {self._state_dir / MASTER_KEY}, got "
                f"another one ({name} cannot be decrypted): copy it from another replica."
            ) from None

    def _cipher(self, rows: Mapping[str, bytes], *, promotes: bool = True) -> AESGCM:
        """The cipher of the rows' master key, which may be the next one of this server.

        Raises:
            UsageError: this server does not have their key.
        """
        current = AESGCM(self._key(MASTER_KEY))
        if not rows or not (self._state_dir / NEXT_KEY).exists():
            return current
        name, sealed = next(iter(rows.items()))
        following = AESGCM(self._key(NEXT_KEY))
        try:
            _opened(following, name, sealed)
        except InvalidTag:
            return current
        if promotes:
            self._promote()
        return following

    def _promote(self) -> None:
        """Use the next key from now on."""
        folder = self._state_dir
        write_private(folder / OLD_KEY, (folder / MASTER_KEY).read_bytes())
        crossing("master.old")
        (folder / NEXT_KEY).replace(folder / MASTER_KEY)
        sync_directory(folder)
        log.warning("%s is the next key now; %s has the old one", folder / MASTER_KEY, OLD_KEY)

    def _key(self, name: str) -> bytes:
        path = self._state_dir / name
        try:
            key = bytes.fromhex(read_private(path).decode("ascii").strip())
        except FileNotFoundError:
            raise UsageError(
                f"Expected {path}, which decrypts the keys in the ledger: copy it from another "
                "replica, with mode 600."
            ) from None
        except (ValueError, UnicodeDecodeError):
            key = b""
        if len(key) != _KEY_BYTES:
            raise UsageError(
                f"Expected {_KEY_BYTES} bytes in hexadecimal in {path}, got something else: copy "
                "it from another replica."
            )
        return key


def _new_key() -> bytes:
    return secrets.token_hex(_KEY_BYTES).encode() + b"\n"


def _fingerprint(key: bytes) -> str:
    """The first 16 hex digits of a hash of a key: says which it is, and not what."""
    return hashlib.sha256(b"fedloom master key\0" + key).hexdigest()[:16]


def _sealed(cipher: AESGCM, name: str, key: bytes) -> bytes:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, key, name.encode())


def _opened(cipher: AESGCM, name: str, sealed: bytes) -> bytes:
    return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], name.encode())


@contextmanager
def key_writer(state_dir: Path, config: ServerConfig) -> Iterator[Callable[[Path, bytes], None]]:
    """A function that writes a key of a state folder, for a command beside the servers."""
    if not config.replicated:
        yield write_private
        return
    with opened_vault(state_dir, config) as vault:
        yield vault.write


@contextmanager
def opened_vault(state_dir: Path, config: ServerConfig) -> Iterator[KeyVault]:
    """The keys of a state folder in its ledger, for a command beside the servers."""
    ledger = Ledger.in_directory(state_dir, config.database)
    try:
        yield KeyVault(state_dir, ledger)
    finally:
        ledger.close()
