"""Processes that outlive the command which started them, each with a record.

A process writes its own record before it becomes its program: its line of /proc/PID/stat, which
has the time of its start, and the boot of the machine. So none lacks a record, however the command
ends, and a later process that got the same number is told apart.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedloom.protocol.errors import UnavailableError

START_S = 120.0
STOP_S = 20.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_BEGIN = f'cat "/proc/$$/stat" {_BOOT} > "$0" && exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A process that was started.

    Attributes:
        name: of its record.
        pid: its number.
        started: when, in ticks since the boot.
        boot: of the machine.
    """

    name: str
    pid: int
    started: str
    boot: str

    @property
    def is_alive(self) -> bool:
        """Whether it runs: its number is not enough."""
        state, started = _stat(self.pid)
        return self.boot == _BOOT.read_text() and started == self.started and state not in "ZX"

    def signal(self, how: signal.Signals) -> None:
        """Send a signal; one that is stopped wakes to get it."""
        if self.is_alive:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, how)
                os.kill(self.pid, signal.SIGCONT)


class Processes:
    """The processes of a folder.

    Args:
        folder: has their records in `pids/` and what they print in `logs/`.
    """

    def __init__(self, folder: Path) -> None:
        self._records, self.logs = folder / "pids", folder / "logs"

    def create(self) -> None:
        """Make the folders."""
        self._records.mkdir()
        self.logs.mkdir()

    def start(
        self, name: str, command: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> None:
        """Start a process of its own session; return once it has its record."""
        record = self._records / name
        record.unlink(missing_ok=True)
        with (self.logs / f"{name}.log").open("ab") as log:
            subprocess.run(
                ["setsid", "--fork", "sh", "-c", _BEGIN, str(record), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(variables or {})},
                check=True,
            )
        self.wait(lambda: self.find(name), f"{name} has its record", ())

    def record_this(self, name: str) -> None:
        """Record this process."""
        text = Path("/proc/self/stat").read_text() + _BOOT.read_text()
        (self._records / name).write_text(text)

    def forget(self, name: str) -> None:
        """Remove a record."""
        (self._records / name).unlink(missing_ok=True)

    def find(self, name: str) -> Recorded | None:
        """A recorded process; None if there is none, or its record is being written."""
        try:
            stat, boot = (self._records / name).read_text().split("\n", 1)
        except (FileNotFoundError, ValueError):
            return None
        if not boot:
            return None
        return Recorded(name=name, pid=int(stat.split()[0]), started=_parsed(stat)[1], boot=boot)

    def runs(self, name: str) -> bool:
        """Whether a process of this name runs."""
        found = self.find(name)
        return found is not None and found.is_alive

    def all(self) -> list[Recorded]:
        """Every recorded process, by name."""
        found = (self.find(path.name) for path in sorted(self._records.glob("*")))
        return [each for each in found if each is not None]

    def wait(
        self, holds: Callable[[], object], what: str, names: Sequence[str], wait_s: float = START_S
    ) -> None:
        """Wait for a condition.

        Raises:
            UnavailableError: one of the named processes has ended, or it takes too long.
        """
        deadline = time.monotonic() + wait_s
        while not holds():
            for name in names:
                if not self.runs(name):
                    raise UnavailableError(f"{name} has ended{self._last_lines(name)}")
            if time.monotonic() > deadline:
                logs = "".join(self._last_lines(name) for name in names)
                raise UnavailableError(f"Waited {wait_s:.0f} s in vain until {what}{logs}")
            time.sleep(0.05)

    def stop(self, found: Sequence[Recorded], how: signal.Signals = signal.SIGTERM) -> None:
        """End processes together; by SIGKILL those that take too long."""
        for each in found:
            each.signal(how)
        if not _gone(found, STOP_S):
            for each in found:
                each.signal(signal.SIGKILL)
            _gone(found, STOP_S)

    def _last_lines(self, name: str) -> str:
        path = self.logs / f"{name}.log"
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        return f"; its log, {path}, ends with:\n" + "\n".join(f"  {line}" for line in lines[-5:])


def _gone(found: Sequence[Recorded], wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while any(each.is_alive for each in found):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _stat(pid: int) -> tuple[str, str]:
    """State and start of a process; of one that is gone "X"."""
    try:
        return _parsed(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return "X", ""


def _parsed(stat: str) -> tuple[str, str]:
    fields = stat.rpartition(")")[2].split()  # the name before it may have spaces
    return fields[0], fields[19]
