"""The messages of one run of a Flower `ServerApp`: sent in rounds, answered once, kept to repeat.

The app's process ends with the server. It then begins anew and sends the same messages again, which
the board knows by their ids: those that have ended get the same reply or error at once, so the app
comes to where it was, and no client works twice. An app that sends other messages than before the
restart is refused: its result would be of neither run.

Invariants: a client gets one message in a round; every message ends once, with a reply or an
error; what the app was told of the clients before a message is told again.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import UsageError
from fedloom.protocol.task_description import FileRef
from fedloom.protocol.trust.private_files import private_directory
from fedloom.server.ledger.rows import MessageRow
from fedloom.server.planning.privacy_budget import Bar
from fedloom.server.rounds.context import RoundsContext

GATHER_S = 0.02
"""For messages that an app sends one by one at the same time: the wait before a round opens."""
ABANDONED = "The round of this message was abandoned."
BARRED = "declined: a privacy budget of this client has no room for the run."


@dataclass(slots=True)
class _Message:
    row: MessageRow
    round: int | None
    error: str | None
    """Empty with a reply; None before the end."""


class MessageBoard:
    """The messages of one run.

    Args:
        run: id of the run.
        context: the ledger, the files and the clients.
        folder: of the run, for replies and for what the app writes.
        wanted: called when there are messages to send.
    """

    def __init__(
        self, run: str, context: RoundsContext, folder: Path, wanted: Callable[[], None]
    ) -> None:
        self._run, self._context, self._wanted = run, context, wanted
        self.folder = folder
        self.files = folder / "files"
        self._replies, self._clients_file = folder / "replies", folder / "clients.json"
        self._messages: dict[str, _Message] = {}
        self._repeated: set[str] = set()  # sent again since this server began
        self._latest = 0  # round before whose messages an app that begins anew may not change
        self._told: list[tuple[int, list[str]]] = []  # lookup from which on, and the clients
        self._lookups = 0
        self._known_lookups = 0
        self._changed = asyncio.Event()

    async def load(self, open_round: int | None, last_round: int) -> None:
        """Read the messages of an earlier process of the server."""
        context = self._context
        for folder in (self.folder, self.files, self._replies):
            private_directory(folder)
        rows = await context.in_ledger(context.ledger.list_messages, self._run)
        for row in rows:
            sent = row.round if row.round is not None and row.round <= last_round else None
            message = _Message(row, sent, row.error)
            if row.error is None and sent is not None and sent != open_round:
                message.error = ABANDONED
            self._messages[row.id] = message
        if self._clients_file.exists():
            self._told = [(at, names) for at, names in json.loads(self._clients_file.read_text())]

    def restart(self) -> None:
        """The app begins anew."""
        self._repeated.clear()
        self._known_lookups = max((m.row.lookups for m in self._messages.values()), default=0)
        self._latest = max((m.round or 0 for m in self._messages.values()), default=0)
        self._lookups = 0

    @property
    def _bar(self) -> Bar:
        return self._context.bars.get(self._run, Bar())

    # ---- of the app --------------------------------------------------------------------------

    async def clients(self) -> list[str]:
        """The connected clients by name; what an app that begins anew was told before."""
        at, self._lookups = self._lookups, self._lookups + 1
        before = [names for first, names in self._told if first <= at]
        if at < self._known_lookups and before:
            return before[-1]
        found = [name for name in self._context.fleet.connected() if name not in self._bar]
        if not before or found != before[-1]:
            self._told = [entry for entry in self._told if entry[0] < at] + [(at, found)]
            text = json.dumps(self._told)
            await self._context.in_disk(lambda: write_whole(self._clients_file, text, sync=True))
        return found

    async def push(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Send messages; those that were sent before are not sent again.

        Args:
            messages: `id`, `client` and `path` of each; the files move to the model store.

        Raises:
            UsageError: a message differs from those before the restart, or is too long.
        """
        context, rows = self._context, list[MessageRow]()
        for message in messages:
            name, client, path = message["id"], message["client"], Path(message["path"])
            if name in self._messages:
                self._repeated.add(name)
                await context.in_disk(path.unlink)
                continue
            self._check_repetition(client)
            digest, size_bytes = await context.in_disk(self._adopt, path)
            row = MessageRow(
                run=self._run,
                id=name,
                position=len(self._messages) + len(rows),
                client=client,
                digest=digest,
                size_bytes=size_bytes,
                lookups=self._lookups,
            )
            rows.append(row)
        await context.in_ledger(context.ledger.add_messages, rows)
        for row in rows:  # all at once: a round sends them together
            self._messages[row.id] = _Message(row, None, None)
            self._repeated.add(row.id)
        if barred := {row.id: BARRED for row in rows if row.client in self._bar}:
            await context.in_ledger(context.ledger.end_messages, self._run, barred)
            for name, error in barred.items():
                self.end(name, error)
        if rows:
            asyncio.get_running_loop().call_later(GATHER_S, self._wanted)

    def _adopt(self, path: Path) -> tuple[str, int]:
        """Digest and size of a file, which moves to the model store."""
        size_bytes = path.stat().st_size
        return self._context.models.take(path), size_bytes

    def _check_repetition(self, client: str) -> None:
        left = [
            name
            for name, message in self._messages.items()
            if name not in self._repeated and (message.round or self._latest) < self._latest
        ]
        if left:
            raise UsageError(
                f"The ServerApp began anew after a restart of the server, and sends {client} "
                "another message than before, so it cannot continue. Its messages must follow from "
                "its config, its clients and their replies alone, not from a clock or from random "
                "numbers without a seed."
            )

    async def collect(self, ids: Iterable[str], timeout_s: float | None) -> dict[str, Any]:
        """The replies of those messages that have ended, when all have or the time is over.

        Returns:
            By id: `path` of the reply, or `error`.
        """
        wanted = [name for name in ids if name in self._messages]
        loop = asyncio.get_running_loop()
        ends_at = None if timeout_s is None else loop.time() + timeout_s
        while any(self._messages[name].error is None for name in wanted):
            changed = self._changed
            try:
                async with asyncio.timeout_at(ends_at):
                    await changed.wait()
            except TimeoutError:
                break
        return {
            name: {"error": error} if error else {"path": str(self.reply_path(name))}
            for name in wanted
            if (error := self._messages[name].error) is not None
        }

    # ---- of rounds ---------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether messages wait for a round."""
        return any(m.round is None and m.error is None for m in self._messages.values())

    def take(self, number: int) -> dict[str, FileRef]:
        """The messages of a round by client: of a new one, the next of each."""
        sent = self._of(number)
        if not sent:
            for message in self._messages.values():
                if message.round is None and message.error is None:
                    sent.setdefault(message.row.client, message)
            for message in sent.values():
                message.round = number
        return {
            client: FileRef(digest=message.row.digest, size_bytes=message.row.size_bytes)
            for client, message in sent.items()
        }

    def _of(self, number: int) -> dict[str, _Message]:
        return {m.row.client: m for m in self._messages.values() if m.round == number}

    def ids(self, number: int) -> dict[str, str]:
        """The messages of a round: ids by client."""
        return {client: message.row.id for client, message in self._of(number).items()}

    def reply_path(self, name: str) -> Path:
        """The path of the reply to a message."""
        return self._replies / f"{name}.safetensors"

    def end(self, name: str, error: str = "") -> None:
        """A message has ended, with a reply unless there is an error."""
        if self._messages[name].error is None:
            self._messages[name].error = error
            self._changed.set()
            self._changed = asyncio.Event()
