"""A training that was cut short, kept so that it goes on where it was: over a kill or a reboot.

Invariant: a checkpoint under its name is whole, and belongs to one task: run, round, model,
settings. Whatever else is offered, it is not found.
"""

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fedloom.client.settings import setting
from fedloom.protocol.faults import crossing
from fedloom.protocol.v1 import fleet_pb2

EVERY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruptions:
    """What happens when a training is cut short."""

    checkpoints: bool = setting(
        True, doc="keep the state of a training, to go on from it after a kill or a reboot"
    )
    checkpoint_s: float = setting(
        EVERY_S, doc="between two checkpoints of a training, at least, in seconds", least=0
    )
    stop_s: float = setting(
        10.0,
        doc="how long a process that is to stop waits for the training to end its step, in seconds",
        least=0,
    )


class Checkpoints:
    """The checkpoint of one task; the latest replaces the one before.

    Args:
        path: of the file; None keeps nothing.
        every_s: least time between two; what takes no longer than that is not worth one.
        clock: seconds.
    """

    def __init__(
        self,
        path: Path | None = None,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._every_s = every_s
        self._clock = clock
        self._last = clock()

    @property
    def are_kept(self) -> bool:
        """Whether there is a place for them."""
        return self._path is not None

    def due(self) -> bool:
        """Whether the last one, or the beginning, is long enough ago."""
        return self.are_kept and self._clock() - self._last >= self._every_s

    def save(self, write: Callable[[BinaryIO], object]) -> None:
        """Keep what `write` writes, durably; the one before stays until then."""
        if self._path is None:
            return
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        crossing("client.checkpoint.written")
        temporary.replace(self._path)
        self._last = self._clock()
        crossing("client.checkpoint.saved")

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
