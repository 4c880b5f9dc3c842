"""The parent's side of a trial's process.

Invariant: however the trial ends, the parent reads complete messages and exactly one end.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Set to 1 unless the caller's environment sets them: trials share the cores."""
STOP_S = 3.0
"""Seconds for a trial to end before it is killed."""
_CHUNK = 1 << 16


class TrialProcess:
    """A running trial."""

    def __init__(self, order: Mapping[str, Any], log: Path) -> None:
        self.started_s = time.monotonic()
        self._log = log
        self._rest = b""
        environment = dict.fromkeys(THREADS, "1") | dict(os.environ)
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fedloom.simulation.sweep.trial"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,  # to end it with all its workers
            )
        self._write(order)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_s

    def fileno(self) -> int:
        """The file descriptor of its messages."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def messages(self) -> Iterator[dict[str, Any]]:
        """New messages; `{"failed": reason}` if the process ended without a last message."""
        chunk = os.read(self.fileno(), _CHUNK)
        if not chunk:
            yield {"failed": self._exit_reason()}
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)

    def answer(self, *, stop: bool) -> None:
        """Continue the trial after a round, or end it."""
        self._write({"stop": stop})

    def terminate(self) -> None:
        """Send SIGTERM to the process and its children."""
        self._signal(signal.SIGTERM)

    def end(self) -> None:
        """End the process and its children, if still running."""
        self.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def close(self) -> None:
        """Wait for the end of the process, after its last message."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self.end()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `messages` reports its end
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _exit_reason(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        code = self._process.returncode
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        last = f": {lines[-1][:300]}" if lines else ""
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            more = "; out of memory?" if name == "SIGKILL" else ""
            return f"its process was ended by {name}{more}{last}"
        return f"its process ended with code {code} and no result{last}"
