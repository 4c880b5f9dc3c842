"""Health of an agent, for supervisors: systemd, containers and `client health`.

`agent.json` in the state directory holds the agent's process id and whether it is connected, and is
written only when that changes. systemd is notified by its socket (sd_notify(3)), with heartbeats as
often as WatchdogSec asks for.

Invariant: an error here, such as a full disk or a missing socket, never ends the agent.
"""

import asyncio
import json
import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedloom.client.state.process_lock import is_locked
from fedloom.protocol.atomic_files import write_whole

FILE = "agent.json"


class HealthFile:
    """Writes the health of an agent.

    Args:
        state_dir: of the client.
        server: host:port.
    """

    def __init__(self, state_dir: Path, server: str) -> None:
        self._path = state_dir / FILE
        self._server = server
        self._attends: bool | None = None

    def begins(self) -> None:
        """The agent has started and is connecting."""
        self._write(attends=False)
        notify("READY=1", f"STATUS=Connecting to {self._server}")

    def attends(self) -> None:
        """The server has accepted it."""
        if self._attends is not True:
            self._write(attends=True)
            notify(f"STATUS=Attends {self._server}")

    def waits(self) -> None:
        """The server is unreachable."""
        if self._attends is not False:
            self._write(attends=False)
            notify(f"STATUS=Waits for {self._server}")

    def due(self, at: float) -> None:
        """It checks in at this time, seconds since the epoch."""
        self._write(attends=False, due_at=at)
        notify(
            f"STATUS=Checks in with {self._server} at {time.strftime('%H:%M', time.localtime(at))}"
        )

    def ends(self) -> None:
        """The agent is stopping."""
        notify("STOPPING=1")
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _write(self, *, attends: bool, due_at: float = 0.0) -> None:
        self._attends = None if due_at else attends
        status = {
            "pid": os.getpid(), "attends": attends, "server": self._server, "at": time.time(),
            "due_at": due_at,
        }  # fmt: skip
        with suppress(OSError):
            write_whole(self._path, json.dumps(status), mode=0o600)


@dataclass(frozen=True, slots=True)
class AgentHealth:
    """Health of an agent.

    Attributes:
        alive: its process exists.
        attends: it is connected.
        server: host:port.
        since: Unix time of the last change.
        due_at: Unix time of its next check-in; 0 while it is connected, or tries to be.
    """

    alive: bool
    attends: bool = False
    server: str = ""
    since: float = 0.0
    due_at: float = 0.0


def read_health(state_dir: Path) -> AgentHealth:
    """Read the health of the agent of a state directory."""
    try:
        status = json.loads((state_dir / FILE).read_text())
        if not _is_alive(int(status["pid"]), state_dir):
            return AgentHealth(False)
    except (OSError, ValueError, KeyError, TypeError):
        return AgentHealth(False)
    return AgentHealth(
        True, bool(status.get("attends")), str(status.get("server")), float(status.get("at", 0)),
        float(status.get("due_at", 0)),
    )  # fmt: skip


def _is_alive(pid: int, state_dir: Path) -> bool:
    if sys.platform == "win32":  # there os.kill would end the process
        return is_locked(state_dir)
    try:
        os.kill(pid, 0)
    except PermissionError:  # another user's process
        return True
    except OSError:
        return False
    return True


def notify(*lines: str) -> None:
    """Notify systemd, if it started this process and listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address or sys.platform == "win32":
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unix:
        unix.connect("\0" + address[1:] if address.startswith("@") else address)
        unix.send("\n".join(lines).encode())


async def keep_watchdog() -> None:
    """Send heartbeats as often as systemd asks for; returns at once if it asks for none."""
    try:
        interval_s = int(os.environ.get("WATCHDOG_USEC", "0")) / 2e6
    except ValueError:
        interval_s = 0.0
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    while interval_s > 0:
        notify("WATCHDOG=1")
        await asyncio.sleep(interval_s)
