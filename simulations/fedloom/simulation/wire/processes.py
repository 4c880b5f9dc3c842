"""Commands and long-running processes of a federation on this machine.

Invariant: kept processes end with this one, however it ends.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from fedloom.protocol.errors import (
    DeniedError,
    FedloomError,
    IntegrityError,
    UnavailableError,
    UsageError,
)

STOP_S = 15.0
_ERRORS: dict[int, type[FedloomError]] = {
    error.exit_code: error for error in (UsageError, DeniedError, IntegrityError)
}
_CLI = (sys.executable, "-m", "fedloom.cli.main")
_WITH_PARENT = (sys.executable, "-m", "fedloom.simulation.wire.run_with_parent")


class LocalProcesses:
    """Runs commands and background processes; a context manager that ends them.

    Args:
        folder: of state, shards and logs.
        console: commands are shown on it.
    """

    def __init__(self, folder: Path, console: Console) -> None:
        self.folder = folder
        self.server = folder / "server"
        self._console = console
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.terminate()
        deadline = time.monotonic() + STOP_S
        for process in self._running.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def show(self, *words: str, more: str = "") -> None:
        """Show a command line."""
        text = shlex.join(word.replace(f"{Path.cwd()}/", "") for word in words)
        self._console.print(f"[dim]$[/] {text}[dim]{more}[/]", highlight=False, soft_wrap=True)

    def command(self, *words: str, quiet: bool = False) -> Any:
        """Run `fedloom WORDS --json` and return its parsed output.

        Raises:
            FedloomError: it failed.
        """
        if not quiet:
            self.show("fedloom", *words)
        return self.finish(self.begin(*words), "fedloom " + shlex.join(words[:2]))

    def begin(self, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start `fedloom WORDS --json`, with variables added to its environment."""
        return subprocess.Popen(  # noqa: S603 - our own commands
            [*_CLI, *words, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | variables,
        )

    def finish(self, process: subprocess.Popen[bytes], what: str) -> Any:
        """Wait for a command of `begin` and return its parsed output.

        Raises:
            FedloomError: its own error, of its kind.
            UnavailableError: it failed without one.
        """
        out, err = process.communicate()
        if process.returncode == 0:
            return json.loads(out)
        try:
            message = str(json.loads(out)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            raise UnavailableError(f"{what} failed: {(err or out).decode().strip()}") from None
        raise _ERRORS.get(process.returncode, UnavailableError)(message)

    def keep(self, name: str, module: str, *words: str, **variables: str) -> None:
        """Run a module until this process ends, even by SIGKILL; its output goes to NAME.log.

        Args:
            name: of the process.
            module: run as a program.
            words: its arguments.
            variables: of its environment, in addition to this process's.
        """
        with (self.folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(  # noqa: S603 - our own commands
                [*_WITH_PARENT, str(os.getpid()), module, *words],
                stdout=log,
                stderr=log,
                env=os.environ | variables,
            )

    def check(self) -> None:
        """Check that every process is still running.

        Raises:
            FedloomError: one has ended, with an error of its kind; names its log.
        """
        for name, process in self._running.items():
            if process.poll() is not None:
                log = self.folder / f"{name}.log"
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                said = " ".join(last).removeprefix("error: ")
                raise _ERRORS.get(process.returncode, UnavailableError)(
                    f"{name} ended with {process.returncode}: {said} (see {log})"
                )

    def wait_for(self, path: Path, wait_s: float = 120.0) -> None:
        """Wait until a file exists.

        Raises:
            UnavailableError: it does not exist in time.
        """
        deadline = time.monotonic() + wait_s
        while not path.exists():
            self.check()
            if time.monotonic() > deadline:
                raise UnavailableError(f"No {path} after {wait_s:.0f} s.")
            time.sleep(0.02)
