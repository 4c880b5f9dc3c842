"""Checkpoints of an interrupted training, to resume it after a kill or a reboot.

Invariants: a checkpoint file is complete, and its name is of one task: run, round, model and
settings; another task does not find it. A checkpoint without room does not fail the training.
"""

import errno
import hashlib
import io
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.settings import setting
from fedloom.protocol.trust.private_files import private_opener
from fedloom.protocol.v1 import fleet_pb2

if TYPE_CHECKING:
    from typing_extensions import Buffer

log = logging.getLogger(__name__)

EVERY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruptions:
    """The settings of `[interruptions]`: how a training survives a stop."""

    checkpoints: bool = setting(
        True, doc="save the state of a training, to resume it after a kill or a reboot"
    )
    checkpoint_s: float = setting(
        EVERY_S, doc="least time between two checkpoints of a training, seconds", least=0
    )
    stop_s: float = setting(
        10.0,
        doc="how long a training may take to end after it was asked to stop, seconds; then its "
        "process is ended",
        least=0,
    )


class _Within(io.FileIO):
    """A file with a limited size.

    Attributes:
        failed: the error of a failed write.
    """

    def __init__(self, path: Path, most_bytes: float) -> None:
        super().__init__(path, "w", opener=private_opener)
        self._most = most_bytes
        self.failed: OSError | None = None

    def write(self, data: "Buffer", /) -> int:
        if self.tell() + memoryview(data).nbytes > self._most:
            self.failed = OSError(errno.ENOSPC, "it exceeds budgets.disk_mb")
            raise self.failed
        try:
            return super().write(data) or 0
        except OSError as error:
            self.failed = error
            raise


class Checkpoints:
    """The checkpoint of one task; the latest replaces the one before.

    Args:
        path: of the file; None: no checkpoints.
        every_s: least time before the first checkpoint, and between two.
        clock: seconds.
        room: returns the bytes that the next one may take.
    """

    def __init__(
        self,
        path: Path | None = None,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        room: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._path = path
        self._every_s = every_s
        self._clock = clock
        self._room = room
        self._last = clock()
        self._told = False
        self._saving = threading.Lock()

    @property
    def are_kept(self) -> bool:
        """Whether checkpoints are written."""
        return self._path is not None

    def due(self) -> bool:
        """Whether `every_s` has passed since the last one, or since the start."""
        return self.are_kept and self._clock() - self._last >= self._every_s

    def save(self, write: Callable[[BinaryIO], object]) -> bool:
        """Write a checkpoint durably; it then replaces the previous one.

        Thread-safe: calls run one after another.

        Returns:
            Whether it was written: checkpoints may be off, or the disk full.
        """
        with self._saving:
            return self._save(write)

    def _save(self, write: Callable[[BinaryIO], object]) -> bool:
        path = self._path
        if path is None:
            return False
        temporary = path.with_suffix(".tmp")
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._write(temporary, write)
            crossing("client.checkpoint.written")
            temporary.replace(path)
        except OSError as error:
            log.log(
                logging.DEBUG if self._told else logging.WARNING,
                "a checkpoint of the training was not written: %s", error,
            )  # fmt: skip
            self._told = True
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            return False
        finally:
            self._last = self._clock()
        crossing("client.checkpoint.saved")
        return True

    def _write(self, temporary: Path, write: Callable[[BinaryIO], object]) -> None:
        raw = _Within(temporary, self._room())
        try:
            with io.BufferedWriter(raw) as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
        except Exception as error:
            if raw.failed is None:
                raise  # the training code failed, not the disk
            raise raw.failed from error  # libraries replace the disk's error by their own

    def saved(self) -> Path | None:
        """The file of the last checkpoint; None if there is none."""
        return self._path if self._path is not None and self._path.exists() else None

    def close(self) -> None:
        """Drop the checkpoint and write no more."""
        self.drop()
        self._path = None

    def drop(self) -> None:
        """Remove the checkpoint: it does not fit, or is not needed any more."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def name_of(offer: fleet_pb2.Task) -> str:
    """File name of a task's checkpoint; depends on everything that affects the training."""
    same = fleet_pb2.Task()
    same.CopyFrom(offer)
    same.deadline_s = 0.0
    del same.differences[:]
    digest = hashlib.sha256(same.SerializeToString(deterministic=True)).hexdigest()
    return f"{offer.key.run}.{offer.key.round}.{digest[:16]}.checkpoint"
