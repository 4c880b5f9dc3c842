"""A training that was cut short, kept so that it goes on where it was: over a kill or a reboot.

Invariants: a checkpoint under its name is whole, and belongs to one task: run, round, model,
settings. Whatever else is offered, it is not found. One that has no room fails no training.
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
        doc="how long a stopping process waits for the training step to end, seconds",
        least=0,
    )


class _Within(io.FileIO):
    """A file that takes so many bytes at most.

    Attributes:
        failed: why bytes were not taken.
    """

    def __init__(self, path: Path, most_bytes: float) -> None:
        super().__init__(path, "w")
        self._most = most_bytes
        self.failed: OSError | None = None

    def write(self, data: "Buffer", /) -> int:
        """Write some of the bytes."""
        if self.tell() + memoryview(data).nbytes > self._most:
            self.failed = OSError(errno.ENOSPC, "budgets.disk_mb leaves no room for it")
            raise self.failed
        try:
            return super().write(data) or 0
        except OSError as error:
            self.failed = error
            raise


class Checkpoints:
    """The checkpoint of one task; the latest replaces the one before.

    Args:
        path: of the file; None keeps nothing.
        every_s: least time between two; what takes no longer than that is not worth one.
        clock: seconds.
        room: bytes that the next one may take.
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
        """Whether there is a place for them."""
        return self._path is not None

    def due(self) -> bool:
        """Whether the last one, or the beginning, is long enough ago."""
        return self.are_kept and self._clock() - self._last >= self._every_s

    def save(self, write: Callable[[BinaryIO], object]) -> bool:
        """Keep what `write` writes, durably; the one before stays until then.

        Threads of the training may call it, one after the other.

        Returns:
            Whether it is kept: there may be no place for it, or no room.
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
                "a checkpoint of the training is not kept: %s", error,
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
                raise  # the author's code, not the disk
            # Libraries put words of their own in place of those of the disk.
            raise raw.failed from error

    def saved(self) -> Path | None:
        """The file of the last one, if there is one."""
        return self._path if self._path is not None and self._path.exists() else None

    def close(self) -> None:
        """Keep nothing from now on: nobody will ask for the rest."""
        self.drop()
        self._path = None

    def drop(self) -> None:
        """Forget it: it does not fit, or is of no more use."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def name_of(offer: fleet_pb2.Task) -> str:
    """What a task's checkpoint is called: it changes with anything that the training depends on."""
    same = fleet_pb2.Task()
    same.CopyFrom(offer)
    same.deadline_s = 0.0
    del same.differences[:]
    digest = hashlib.sha256(same.SerializeToString(deterministic=True)).hexdigest()
    return f"{offer.key.run}.{offer.key.round}.{digest[:16]}.checkpoint"
