"""The process of a Flower `ServerApp`: started by the server, and ended with it.

The process speaks with the server over a socket that it inherits: requests and answers are lines of
JSON, and the bytes of messages are files. Its output goes to the server's log.

Invariant: when the process has ended, so has all that it started in its process group.
"""

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.protocol import extras
from fedloom.protocol.errors import FedloomError, printable
from fedloom.server.background_tasks import BackgroundTasks

_LINE_BYTES = 64 << 20
"""Longest request: a line for as many messages as there are clients."""
_OUTPUT_BYTES = 64 << 10
_LINE_CHARS = 1000
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_DRAIN_S = 1.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class AppOrder:
    """What the process is to run.

    Attributes:
        run: id of the run.
        folder: of the app, with its `pyproject.toml`.
        config: of the run, over the app's own.
        seed: of the random generators.
        files: the process's working folder.
        drafts: folder for files of messages.
        max_bytes: longest message.
    """

    run: str
    folder: Path
    config: Mapping[str, Any]
    seed: int
    files: Path
    drafts: Path
    max_bytes: int


Answer = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""Answers a request: its name, and its values."""


class AppProcess:
    """One process; call `run` once.

    Args:
        order: what it runs.
        answer: answers its requests; several at a time.
        output: gets each line that it prints.
    """

    def __init__(self, order: AppOrder, answer: Answer, output: Callable[[str], None]) -> None:
        self._order, self._answer, self._output = order, answer, output
        self._last = ""  # line of its output
        self._process: asyncio.subprocess.Process | None = None
        self._killed = False

    @staticmethod
    def check() -> None:
        """Check that Flower is installed.

        Raises:
            UsageError: it is not.
        """
        extras.flower("for a ServerApp")

    async def run(self) -> str:
        """Run the app to its end; returns why it failed, empty if it did not."""
        ours, theirs = socket.socketpair()
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "fedloom.server.flower.app_main", str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                cwd=self._order.files,
                start_new_session=True,
                env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours, limit=_LINE_BYTES)
        writer.write(_line(self._begin()))
        talking = asyncio.ensure_future(self._talk(reader, writer))
        printing = asyncio.ensure_future(self._print(process))
        try:
            if self._killed:
                self.kill()
            code = await _ended(process)
            await asyncio.wait([printing], timeout=_DRAIN_S)
        finally:
            self._end_group(process.pid)
            for task in (talking, printing):
                task.cancel()
            await asyncio.wait([talking, printing])
            writer.close()
        return self._failure(code)

    def _begin(self) -> dict[str, Any]:
        order = self._order
        return {
            "run": order.run,
            "folder": str(order.folder),
            "config": dict(order.config),
            "seed": order.seed,
            "drafts": str(order.drafts),
            "max_bytes": order.max_bytes,
        }

    def _failure(self, code: int) -> str:
        if code == 0:
            return ""
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed, exit {code}"
        return f"the ServerApp {how}: {self._last or 'it printed nothing'} (see the server's log)"

    def kill(self) -> None:
        """End the process and all that it started."""
        self._killed = True
        if self._process is not None:
            self._end_group(self._process.pid)

    @staticmethod
    def _end_group(pid: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    async def _print(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        rest = b""
        while chunk := await process.stdout.read(_OUTPUT_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._printed(line)
            if len(rest) > _OUTPUT_BYTES:
                self._printed(rest)
                rest = b""
        self._printed(rest)

    def _printed(self, line: bytes) -> None:
        text = _COLOURS.sub("", line.decode(errors="replace")).expandtabs(2).strip()
        if text := printable(text, _LINE_CHARS):
            self._last = text
            self._output(text)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering = BackgroundTasks()
        try:
            while line := await reader.readline():
                answering.start(self._reply(line, writer))
        except ValueError:  # without an answer the app would wait for ever
            self._last = f"it sent a request of more than {_LINE_BYTES} bytes"
            self.kill()
        finally:
            answering.cancel()

    async def _reply(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(line)
        try:
            told = {"value": await self._answer(asked["do"], asked)}
        except FedloomError as error:
            told = {"error": str(error)}
        except Exception as error:  # noqa: BLE001 - the app gets it
            told = {"error": f"{type(error).__name__}: {error}"}
        writer.write(_line({"id": asked["id"], **told}))
        await writer.drain()


async def _ended(process: asyncio.subprocess.Process) -> int:
    """The exit code of a process; `wait` would also wait for those that inherited its output."""
    while (code := process.returncode) is None:  # noqa: ASYNC110 - asyncio has no event for it
        await asyncio.sleep(_POLL_S)
    return code


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"
