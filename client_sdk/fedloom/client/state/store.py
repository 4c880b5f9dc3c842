"""A client's state directory: its identity, received models and unsent updates.

Invariants: the private key never leaves it; an update with a header is complete, and is sent
instead of trained again if its task is offered again; a model file named by its digest is complete.
"""

import hashlib
import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from crc32c import crc32c
from google.protobuf.message import DecodeError

from fedloom.client.owner.journal import Journal
from fedloom.client.state import identity_files
from fedloom.client.state.model_check import UnfitError, check_model
from fedloom.client.state.partial_download import PartialDownload
from fedloom.client.training.checkpoints import name_of
from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import IntegrityError, UsageError
from fedloom.protocol.manifest import read_manifest
from fedloom.protocol.tensors.container import READ_UP_TO_BYTES, write_file, write_params
from fedloom.protocol.tensors.file_arrays import FileArray, Scratch, stored_params
from fedloom.protocol.tensors.model_differences import apply
from fedloom.protocol.trust.identity import generate_key, key_from_pem, key_to_pem
from fedloom.protocol.trust.noise_stream import new_key
from fedloom.protocol.trust.private_files import (
    make_private,
    private_directory,
    private_opener,
    read_private,
    write_private,
)
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies.exact.lazy_arrays import Values

FILES = ("models", "outbox", "memory", "checkpoints", "agent.json", "rounds-taken.json", "masking")
"""Names in the state whose modes are narrowed if they are wide; a key that is wide is refused."""

KEEP_MODELS = 2
KEEP_MEMORIES = 4
"""Runs whose rule memory is kept."""
IDENTITY_BYTES = 64 * 1024
"""Upper bound of a key, its chain, the root and their temporary files."""
_READ_BYTES = 1 << 20

log = logging.getLogger(__name__)


class ClientStore:
    """The files of one client.

    Args:
        directory: created if needed, mode 0700.

    Attributes:
        directory: as given.
        journal: of what left this device.
        keep: models to keep when another one arrives.
        keeps_differences: whether they stay when a model was made from them, to be passed on.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = private_directory(directory)
        if mended := make_private(directory, FILES):
            log.warning("took from other users: %s", ", ".join(mended[:8]))
        self._models = directory / "models"
        self._outbox = directory / "outbox"
        self._memory = directory / "memory"
        self._checkpoints = directory / "checkpoints"
        for folder in (self._models, self._outbox, self._memory):
            folder.mkdir(mode=0o700, exist_ok=True)
        self.journal = Journal(directory)
        self._verified: set[str] = set()
        self._checked: set[str] = set()
        self.keep = KEEP_MODELS
        self.keeps_differences = False

    # ---- identity ----------------------------------------------------------------------------

    @property
    def identity_path(self) -> Path:
        """File of the key and the certificate chain."""
        return self.directory / identity_files.IDENTITY

    def save_identity(
        self, key_pem: bytes, chain_pem: bytes, root_pem: bytes, signing_key: bytes = b""
    ) -> None:
        """Store a key with its certificate chain, and what authenticates the server.

        Args:
            key_pem: private, PKCS#8.
            chain_pem: the leaf and its authority.
            root_pem: root of the server's certificate.
            signing_key: the server's; b"" keeps the stored one.
        """
        write_private(self.directory / identity_files.ROOT, root_pem)
        if signing_key:
            self.trust(signing_key)
        crossing("client.identity.root")
        write_private(self.identity_path, key_pem + chain_pem)
        for name in (identity_files.RENEWAL, identity_files.ENROLMENT):
            (self.directory / name).unlink(missing_ok=True)

    def renewal_key(self) -> bytes:
        """The private key to renew with, PKCS#8 in PEM; the same until an identity is stored.

        The server certifies one new key in a tenth of a certificate's life: if its answer is lost,
        or this process is killed, only the same key gets the certificate at once.

        Raises:
            OSError: the disk has no room for a key.
        """
        return self._key_until_stored(identity_files.RENEWAL)

    def enrolment_key(self, token_id: str) -> bytes:
        """The private key to enrol with, PKCS#8 in PEM; the same for a token until it is used.

        If the server's answer is lost, the same key gets a certificate by the same token. Another
        token has another key: the disk may have been copied to another device.

        Raises:
            OSError: the disk has no room for a key.
        """
        return self._key_until_stored(identity_files.ENROLMENT, f"{token_id}\n".encode())

    def _key_until_stored(self, name: str, head: bytes = b"") -> bytes:
        path = self.directory / name
        with suppress(FileNotFoundError, UsageError, IntegrityError):
            stored = read_private(path)
            if stored.startswith(head):
                return key_to_pem(key_from_pem(stored[len(head) :]))
        pem = key_to_pem(generate_key())
        write_private(path, head + pem)
        return pem

    def trust(self, signing_key: bytes) -> None:
        """Store the server's signing key."""
        write_private(self.directory / identity_files.SIGNING, signing_key.hex().encode() + b"\n")

    def trusted(self) -> frozenset[bytes]:
        """The server's signing key; empty if none is stored.

        Raises:
            IntegrityError: the file is damaged.
        """
        key = identity_files.signing_key(self.directory)
        return frozenset() if key is None else frozenset({key})

    def make_room(self) -> None:
        """Check that the disk has room for an identity.

        Raises:
            OSError: it has none.
        """
        path = self.directory / "room"
        try:
            path.write_bytes(bytes(IDENTITY_BYTES))
        finally:
            path.unlink(missing_ok=True)

    def noise_key(self) -> bytes:
        """The secret key of this device's noise; created on first use."""
        path = self.directory / identity_files.NOISE
        try:
            return identity_files.noise_key(path)
        except FileNotFoundError:
            write_private(path, new_key())
            return identity_files.noise_key(path)

    def identity(self) -> tuple[bytes, bytes]:
        """Key and chain in one PEM, and the root.

        Raises:
            UsageError: this client is not enrolled, or may not read its files.
            IntegrityError: one of them is damaged.
        """
        found = identity_files.read(self.directory)
        return found.pem, found.root_pem

    # ---- models ------------------------------------------------------------------------------

    def model_path(self, digest: str) -> Path:
        """File of a complete model."""
        return self._models / f"{digest}.safetensors"

    def receive_model(self, digest: str, size_bytes: int) -> PartialDownload:
        """Start or resume a download; `adopt_model` completes it.

        Overwrites the file of the oldest model if that would be removed anyway, unless it is large
        enough to be mapped: training code may still use its pages.
        """
        models = self._by_age()
        reuse = None
        if len(models) >= self.keep and models[0].stat().st_size <= READ_UP_TO_BYTES:
            reuse = models[0]
            self._verified.discard(reuse.stem)
        return PartialDownload(self._part_path(digest), size_bytes, reuse)

    def keep_model(self, model: fleet_pb2.ModelRef, content: bytes) -> None:
        """Store a whole model.

        Raises:
            IntegrityError: these are other bytes.
        """
        same = len(content) == model.size_bytes
        if not same or hashlib.sha256(content).hexdigest() != model.digest:
            raise IntegrityError(f"Expected the model {model.digest[:12]}, got other bytes.")
        part = self.receive_model(model.digest, model.size_bytes)
        part.received = 0  # of an earlier download, which was interrupted
        part.append(content)
        part.close()
        crossing("client.download.whole")
        self.adopt_model(model.digest)

    def _part_path(self, digest: str) -> Path:
        return self._models / f"{digest}.part"

    def _by_age(self) -> list[Path]:
        with os.scandir(self._models) as entries:
            models = [each for each in entries if each.name.endswith(".safetensors")]
        models.sort(key=lambda each: each.stat().st_mtime_ns)
        return [Path(each.path) for each in models]

    def has_model(self, digest: str) -> bool:
        """Whether the model is stored and intact, checked once per process; marks it as used."""
        path = self.model_path(digest)
        if not path.exists():
            return False
        if digest not in self._verified:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    path.unlink()
                    return False
            self._verified.add(digest)
        # So that it is not the oldest, which is removed first. File times come from a clock that is
        # coarser, and some milliseconds behind this one.
        os.utime(path, ns=(time.time_ns(), time.time_ns()))
        return True

    def check(self, digest: str, whole: bool) -> None:
        """Check a model's content, once per process; remove it if it cannot be used.

        Args:
            digest: of a stored model.
            whole: a complete model, not tensors that accompany one.

        Raises:
            UnfitError: it cannot be used.
        """
        if digest in self._checked:
            return
        path = self.model_path(digest)
        try:
            check_model(path, whole=whole)
        except UnfitError:
            path.unlink(missing_ok=True)
            self._verified.discard(digest)
            raise
        self._checked.add(digest)

    def adopt_model(self, digest: str) -> Path:
        """Turn a complete, verified download into a model; remove the oldest ones."""
        path = self.model_path(digest)
        self._part_path(digest).replace(path)
        self._verified.add(digest)
        for old in self._by_age()[: -self.keep]:
            old.unlink()
            self._verified.discard(old.stem)
            self._checked.discard(old.stem)
        for name in _names(self._models):
            if name.endswith(".part"):
                (self._models / name).unlink()
        return path

    def advance(self, base: str, steps: Sequence[str], digest: str) -> None:
        """Make a model from a stored one and stored differences, which are removed by default.

        Raises:
            IntegrityError: they do not lead to that model.
        """
        path = self.model_path(base)
        params: Mapping[str, Values] = stored_params(path)
        manifest = read_manifest(path)
        try:
            for step in steps:
                params = apply(params, stored_params(self.model_path(step)), manifest)
            with open(self._part_path(digest), "wb", opener=private_opener) as file:
                got = write_params(file, params, manifest.dtypes)
        finally:
            for step in () if self.keeps_differences else steps:
                self.model_path(step).unlink(missing_ok=True)
        if got != digest:
            self._part_path(digest).unlink()
            raise IntegrityError(f"Expected the model {digest[:12]}, got {got[:12]}.")
        self.adopt_model(digest)

    # ---- what client rules remember ----------------------------------------------------------

    def recall(self, run: str, number: int) -> dict[str, FileArray]:
        """The rule's memory from the update of a round; 0 for none.

        Empty, with a warning, if the file is missing.
        """
        if not number:
            return {}
        path = self._memory_path(run, number)
        if not path.exists():
            log.warning("the memory of round %d of %s is missing: starting empty", number, run)
            return {}
        return stored_params(path)

    def remember(self, run: str, number: int, arrays: Mapping[str, Values], *, before: int) -> None:
        """Store the rule's memory with the update of a round, durably.

        Args:
            run: id.
            number: of the round.
            arrays: "slot/tensor" → array.
            before: the round whose memory it was made from; those in between did not count.
        """
        write_file(self._memory_path(run, number), arrays, opener=private_opener)
        for path in self._memory.glob(f"{run}.*.safetensors"):
            if int(path.name.split(".")[-2]) not in (before, number):
                path.unlink()
        newest = sorted(self._memory.glob("*.safetensors"), key=lambda p: -p.stat().st_mtime_ns)
        kept = list(dict.fromkeys(path.name.split(".")[0] for path in newest))[:KEEP_MEMORIES]
        for path in newest:
            if path.name.split(".")[0] not in kept:
                path.unlink()

    def _memory_path(self, run: str, number: int) -> Path:
        return self._memory / f"{run}.{number}.safetensors"

    # ---- unsent updates ------------------------------------------------------------------------

    def body_path(self, run: str, number: int) -> Path:
        """File of an update's body."""
        return self._outbox / f"{run}.{number}.body"

    def outbox_path(self, run: str, number: int, name: str) -> Path:
        """Another file of a round's update; removed with the round."""
        return self._outbox / f"{run}.{number}.{name}"

    def scratch(self) -> Scratch:
        """Temporary files for intermediate values, removed with the returned object."""
        return Scratch(self._outbox)

    def add_unsent(self, header: fleet_pb2.UpdateHeader) -> None:
        """Record an update whose body is written: from now on it is the one to send."""
        path = self._header_path(header.task.run, header.task.round)
        temporary = path.with_suffix(".tmp")
        with open(temporary, "wb", opener=private_opener) as file:
            file.write(header.SerializeToString())
        temporary.replace(path)
        self._drop_checkpoints()

    def evict(self, most_bytes: int, digests: Collection[str], key: str) -> int:
        """Remove the oldest files until the state fits a size; returns its size.

        Keeps the identity, the journal and what the current task needs.

        Args:
            most_bytes: of everything here.
            digests: of models to keep.
            key: prefix of the task's files, `run.round.`.
        """
        sizes = dict(_sizes(self.directory))
        folders = (self._models, self._outbox, self._checkpoints, self._memory)
        run = key.partition(".")[0] + "."
        free = [
            path
            for path in sizes
            if path.parent in folders
            and path.name.partition(".")[0] not in digests
            and not path.name.startswith(run if path.parent == self._memory else key)
        ]
        total = sum(sizes.values())
        for path in sorted(free, key=lambda p: p.stat().st_mtime_ns):
            if total <= most_bytes:
                break
            path.unlink(missing_ok=True)
            self._verified.discard(path.stem)
            total -= sizes[path]
        return total

    def checkpoint_path(self, task: fleet_pb2.Task) -> Path:
        """File of a task's training checkpoint."""
        return self._checkpoints / name_of(task)

    def _drop_checkpoints(self, keep: tuple[str, ...] = ()) -> None:
        for name in _names(self._checkpoints):
            if not name.startswith(keep):
                (self._checkpoints / name).unlink(missing_ok=True)

    def unsent(self, task: fleet_pb2.Task) -> fleet_pb2.UpdateHeader | None:
        """The stored update of this task, if it is complete."""
        path = self._header_path(task.key.run, task.key.round)
        if not path.exists():
            return None
        try:
            header = fleet_pb2.UpdateHeader.FromString(path.read_bytes())
        except DecodeError:
            return None  # damaged by a power loss: trained again
        body = self.body_path(task.key.run, task.key.round)
        whole = header.model_digest == task.model.digest and _crc(body) == header.crc32c
        return header if whole else None

    def remove_round(self, run: str, number: int) -> None:
        """Remove the files of a round that was accepted or withdrawn."""
        for path in self._files(run, number):
            path.unlink(missing_ok=True)

    def remove_unfinished(self, run: str, number: int) -> None:
        """Remove what a training that was ended by force had begun to write."""
        for path in self._files(run, number):
            if path.name.endswith("tmp"):
                path.unlink(missing_ok=True)
        if not self._header_path(run, number).exists():
            self.body_path(run, number).unlink(missing_ok=True)

    def _files(self, run: str, number: int) -> Iterator[Path]:
        """Checkpoints and updates of a round; `glob` would compile a pattern for each round."""
        for folder in (self._checkpoints, self._outbox):
            for name in _names(folder):
                if name.startswith(f"{run}.{number}."):
                    yield folder / name

    def remove_other_rounds(self, tasks: Iterable[tuple[str, int]]) -> None:
        """Remove updates and checkpoints of all rounds but these."""
        keep = tuple(f"{run}.{number}." for run, number in tasks)
        self._drop_checkpoints(keep)
        for name in _names(self._outbox):
            if not name.startswith(keep):
                (self._outbox / name).unlink()

    def _header_path(self, run: str, number: int) -> Path:
        return self._outbox / f"{run}.{number}.header"


def _names(folder: Path) -> list[str]:
    """The files of a folder, if there is one; `glob` would compile a pattern."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - without a Path each
    except FileNotFoundError:
        return []


def _crc(path: Path) -> int:
    checksum = 0
    if path.exists():
        with path.open("rb") as file:
            while block := file.read(_READ_BYTES):
                checksum = crc32c(block, checksum)
    return checksum


def _sizes(directory: Path) -> Iterator[tuple[Path, int]]:
    """Files of a folder with their sizes; files that vanish meanwhile are skipped."""
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                yield path, path.stat().st_size
