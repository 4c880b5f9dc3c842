"""A server's keys in the ledger, encrypted, so that each replica has them when it begins to drive.

The state folder of the server that drives has them as files, as without replicas. A key is in the
ledger before it is in its file, so no key is used that another replica would lack. Each is
encrypted with AES-256-GCM (NIST SP 800-38D) under the key in `master.key`, which each replica has
as a file, with its name as associated data. The root's key stays where its operator put it: only a
new issuing authority needs it.
"""

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedloom.protocol.errors import UsageError
from fedloom.protocol.trust.private_files import read_private, write_private
from fedloom.server.config import ServerConfig
from fedloom.server.ledger import Ledger

log = logging.getLogger(__name__)

MASTER_KEY = "master.key"
"""Its file in the state folder: 32 bytes in hexadecimal."""

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
        for name, sealed in self._ledger.wrapped_keys().items():
            self._opened(self._cipher(), name, sealed)

    def restore(self) -> None:
        """Write the ledger's keys to their files, and files that the ledger lacks to the ledger.

        The first server makes the master key.

        Raises:
            UsageError: the master key is missing, or another one.
        """
        rows = self._ledger.wrapped_keys()
        master = self._state_dir / MASTER_KEY
        if not rows and not master.exists():
            write_private(master, secrets.token_hex(_KEY_BYTES).encode() + b"\n")
            log.warning("made %s: every other replica needs a copy, and so does a safe", master)
        cipher = self._cipher()
        for name, sealed in rows.items():
            path, key = self._state_dir / name, self._opened(cipher, name, sealed)
            if not path.exists() or path.read_bytes() != key:
                path.parent.mkdir(mode=0o700, exist_ok=True)
                write_private(path, key)
        for path in self._files():
            if self._name(path) not in rows:
                self._seal(cipher, path, path.read_bytes())

    def write(self, path: Path, key: bytes) -> None:
        """Write a key to the ledger, and then to its file. Blocks.

        Raises:
            LeaseLostError: another server drives; nothing was written.
        """
        if self._name(path) not in _OWN:
            self._seal(self._cipher(), path, key)
        write_private(path, key)

    def _files(self) -> list[Path]:
        found = [path for each in _FOLDERS for path in sorted((self._state_dir / each).glob("*"))]
        return [p for p in found if not p.name.startswith(".") and self._name(p) not in _OWN]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._state_dir).as_posix()

    def _seal(self, cipher: AESGCM, path: Path, key: bytes) -> None:
        name, nonce = self._name(path), secrets.token_bytes(_NONCE_BYTES)
        sealed = nonce + cipher.encrypt(nonce, key, name.encode())
        self._ledger.write_wrapped_key(name, sealed)

    def _opened(self, cipher: AESGCM, name: str, sealed: bytes) -> bytes:
        try:
            return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], name.encode())
        except InvalidTag:
            raise UsageError(
                f"Expected the master key of this ledger in {self._state_dir / MASTER_KEY}, got "
                f"another one ({name} cannot be decrypted): copy it from another replica."
            ) from None

    def _cipher(self) -> AESGCM:
        path = self._state_dir / MASTER_KEY
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
        return AESGCM(key)


@contextmanager
def key_writer(state_dir: Path, config: ServerConfig) -> Iterator[Callable[[Path, bytes], None]]:
    """A function that writes a key of a state folder, for a command beside the servers."""
    if not config.replicated:
        yield write_private
        return
    ledger = Ledger.in_directory(state_dir, config.database)
    try:
        yield KeyVault(state_dir, ledger).write
    finally:
        ledger.close()
