"""The server's signing key, stored apart from the certificate authority's keys.

    signing/key.json    0600  the private key, and endorsements by the keys before it

Key and endorsements share a file, so a crash cannot separate them. The file is checked before each
signature: a key from `fedloom server rotate-signing-key` is used from the next offer on, without a
restart.

Invariants: a key is only replaced by one that it endorses; a client that trusts one of the last
`MAX_CHAIN` keys can verify the current one.
"""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from fedloom.protocol.errors import IntegrityError, UsageError
from fedloom.protocol.trust.private_files import private_directory, read_private, write_private
from fedloom.protocol.trust.signing import Addressee, Signer, fingerprint, signed_offer
from fedloom.protocol.v1 import enrolment_pb2, fleet_pb2, signing_pb2

log = logging.getLogger(__name__)

FOLDER = "signing"
_FILE = "key.json"


class SigningKey:
    """A federation's signing key, reloaded when its file in the folder changes.

    Args:
        folder: of the key.
        federation: whose key it is.
        write: writes the key to its file.
    """

    def __init__(
        self, folder: Path, federation: str, write: Callable[[Path, bytes], None] = write_private
    ) -> None:
        self._path = folder / _FILE
        self._write = write
        self._federation = federation
        self._issued_us = 0
        self._seen = (0, 0, 0)
        self._signer = self._load()

    @classmethod
    def ensure(
        cls, folder: Path, federation: str, write: Callable[[Path, bytes], None] = write_private
    ) -> "SigningKey":
        """Open the key in a folder; create it if missing."""
        if not (folder / _FILE).exists():
            private_directory(folder)
            write(folder / _FILE, _encoded(made := Signer.new()))
            log.info("created a signing key: %s", fingerprint(made.public))
        return cls(folder, federation, write)

    @property
    def signer(self) -> Signer:
        """The signer with the key that is on disk now."""
        if self._stat() != self._seen:
            self._signer = self._load()
            log.info("signing with the new key %s", fingerprint(self._signer.public))
        return self._signer

    def sign(self, purpose: str, payload: bytes) -> bytes:
        """See `Signer.sign`."""
        return self.signer.sign(purpose, payload)

    def offer(self, client: str, task: fleet_pb2.Task, nonce: bytes) -> fleet_pb2.ServerMessage:
        """A task for a client, signed for the connection with this nonce."""
        to = Addressee(self._federation, client, nonce)
        self._issued_us = max(self._issued_us + 1, time.time_ns() // 1000)
        offer = signed_offer(self.signer, to, task, self._issued_us)
        return fleet_pb2.ServerMessage(signed_offer=offer)

    def tell(self, issued: enrolment_pb2.IssuedCertificate) -> None:
        """Give a client the key with its certificate."""
        signer = self.signer
        issued.signing_key = signer.public
        issued.signing_chain.extend(signer.chain)

    def rotate(self) -> Signer:
        """Replace this key by a new one, which it endorses."""
        new = self.signer.successor()
        self._write(self._path, _encoded(new))
        return new

    def _stat(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return self._seen  # keep the loaded key; a restart reports the missing file
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _load(self) -> Signer:
        self._seen = self._stat()
        try:
            held = json.loads(read_private(self._path))
            chain = [
                signing_pb2.Endorsement(**{name: bytes.fromhex(word[name]) for name in _WORD})
                for word in held["chain"]
            ]
            return Signer(bytes.fromhex(held["private"]), chain)
        except FileNotFoundError:
            raise UsageError(
                f"There is no signing key in {self._path}: `fedloom server init` creates one."
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise IntegrityError(
                f"Expected a signing key in {self._path}, got something else "
                f"({type(error).__name__}): restore it from a backup, or clients must enrol again."
            ) from error


_WORD = ("by", "key", "signature")


def _encoded(signer: Signer) -> bytes:
    held = {
        "public": signer.public.hex(),
        "private": signer.private.hex(),
        "chain": [{name: getattr(word, name).hex() for name in _WORD} for word in signer.chain],
    }
    return json.dumps(held, indent=1).encode()
