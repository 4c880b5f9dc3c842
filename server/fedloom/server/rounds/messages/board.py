"""The messages of one run of a Flower `ServerApp`: sent in rounds, answered once, kept to repeat.

The app's process ends with the server. It then begins anew and sends the same messages again, which
the board knows by their ids: those that have ended get the same reply or error at once, so the app
comes to where it was, and no client works twice. An app that sends other messages than before the
restart is refused: its result would be of neither run.

Invariants: a client gets one message in a round; every message ends once, with a reply or an
error; what the app was told of the clients before a message is told again.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.protocol.errors import UsageError
from fedloom.protocol.task_description import FileRef
from fedloom.protocol.trust.private_files import private_directory
from fedloom.server.ledger.rows import MessageRow
from fedloom.server.planning.privacy_budget import Bar
from fedloom.server.rounds.context import RoundsContext
from fedloom.server.rounds.messages.client_history import ClientHistory

FILES = "files"
"""Folder of what the app writes, which is kept."""
GATHER_S = 0.02
"""For messages that an app sends one by one at the same time: the wait before a round opens."""
ABANDONED = "The round of this message was abandoned."
HELD = "declined: the operator has excluded this client."
COOLS_OFF = "declined: this client failed again and again, and gets no offers for some time."
OTHER_STUDY = "declined: this client is not in the run's study."
BARRED = "declined: a privacy budget of this client has no room for the run."


@dataclass(slots=True)
class _Message:
    row: MessageRow
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
        self,
        run: str,
        context: RoundsContext,
        folder: Path,
        wanted: Callable[[], None],
        study: str = "",
    ) -> None:
        self._run, self._context, self._wanted = run, context, wanted
        self._study = study
        self.folder = folder
        self.files = folder / FILES
        self._replies = folder / "replies"
        self._messages: dict[str, _Message] = {}
        self._waiting: dict[str, _Message] = {}  # for a round
        self._rounds: dict[int, dict[str, _Message]] = {}  # by round, then client
        self._left: set[str] = set()  # that an app which begins anew must send before new ones
        self._clients = ClientHistory(folder / "clients.jsonl")
        self._changed = asyncio.Event()

    async def load(self, open_round: int | None, last_round: int) -> None:
        """Read the messages of an earlier process of the server."""
        context = self._context
        for folder in (self.folder, self.files, self._replies):
            private_directory(folder)
        rows = await context.in_ledger(context.ledger.list_messages, self._run)
        for row in rows:
            sent = row.round if row.round is not None and row.round <= last_round else None
            message = _Message(row, row.error)
            if row.error is None and sent is not None and sent != open_round:
                message.error = ABANDONED
            self._messages[row.id] = message
            if sent is not None:
                self._rounds.setdefault(sent, {})[row.client] = message
            elif row.error is None:
                self._waiting[row.id] = message
        await context.in_disk(self._clients.load, max((row.lookups for row in rows), default=0))

    def restart(self) -> None:
        """The app begins anew.

        Of the latest round's messages it may send any later than new ones: many threads may.
        """
        earlier = sorted(self._rounds)[:-1]
        self._left = {m.row.id for number in earlier for m in self._rounds[number].values()}

    @property
    def _bar(self) -> Bar:
        return self._context.bars.get(self._run, Bar())

    def _cools_off(self, client: str) -> bool:
        return self._context.cools_off(client, private=False)

    def _is_in_study(self, client: str) -> bool:
        return self._context.fleet.study_of(client) == self._study

    # ---- of the app --------------------------------------------------------------------------

    async def clients(self) -> list[str]:
        """The connected clients by name; what an app that begins anew was told before."""
        connected = self._context.fleet.connected()
        may = [name for name in connected if name not in self._bar and self._is_in_study(name)]
        found, store = self._clients.look([name for name in may if not self._cools_off(name)])
        if store is not None:
            await self._context.in_disk(store)
        return found

    async def push(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Send messages; those that were sent before are not sent again.

        Args:
            messages: `id`, `client` and `path` of each; the files move to the model store.

        Raises:
            UsageError: a message differs from those before the restart, or is too long.
        """
        context, rows = self._context, list[MessageRow]()
        new = []
        for message in messages:
            self._left.discard(message["id"])
            if message["id"] in self._messages:
                await context.in_disk(Path(message["path"]).unlink)
            else:
                new.append(message)
        if new and self._left:
            raise UsageError(
                f"The ServerApp began anew after a restart of the server, and sends "
                f"{new[0]['client']} another message than before, so it cannot continue. Its "
                "messages must follow from its config, its clients and their replies alone, not "
                "from a clock or from random numbers without a seed."
            )
        for message in new:
            digest, size_bytes = await context.in_disk(self._adopt, Path(message["path"]))
            row = MessageRow(
                run=self._run,
                id=message["id"],
                position=len(self._messages) + len(rows),
                client=message["client"],
                digest=digest,
                size_bytes=size_bytes,
                lookups=self._clients.lookups,
            )
            rows.append(row)
        await context.in_ledger(context.ledger.add_messages, rows)
        for row in rows:  # all at once: a round sends them together
            self._messages[row.id] = self._waiting[row.id] = _Message(row, None)
        await self._end_of_excluded(rows)
        if rows:
            asyncio.get_running_loop().call_later(GATHER_S, self._wanted)

    async def _end_of_excluded(self, rows: Sequence[MessageRow]) -> None:
        """End messages to clients that may get none."""
        context = self._context
        held = {row.id: HELD for row in rows if context.fleet.held(row.client) is not None}
        barred = {row.id: BARRED for row in rows if row.client in self._bar}
        cooling = {row.id: COOLS_OFF for row in rows if self._cools_off(row.client)}
        others = {row.id: OTHER_STUDY for row in rows if not self._is_in_study(row.client)}
        if errors := cooling | held | barred | others:
            for name in errors:
                self._waiting.pop(name, None)
            await context.in_ledger(context.ledger.end_messages, self._run, errors)
            for name, error in errors.items():
                self.end(name, error)

    def _adopt(self, path: Path) -> tuple[str, int]:
        """Digest and size of a file, which moves to the model store."""
        size_bytes = path.stat().st_size
        return self._context.models.take(path), size_bytes

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
        return bool(self._waiting)

    def take(self, number: int) -> dict[str, FileRef]:
        """The messages of a round by client: of a new one, the next of each."""
        if number not in self._rounds:
            sent = self._rounds[number] = {}
            for message in self._waiting.values():
                sent.setdefault(message.row.client, message)
            for message in sent.values():
                del self._waiting[message.row.id]
        return {
            client: FileRef(digest=message.row.digest, size_bytes=message.row.size_bytes)
            for client, message in self._rounds[number].items()
        }

    def ids(self, number: int) -> dict[str, str]:
        """The messages of a round: ids by client."""
        return {client: message.row.id for client, message in self._rounds[number].items()}

    def reply_path(self, name: str) -> Path:
        """The path of the reply to a message."""
        return self._replies / f"{name}.safetensors"

    def end(self, name: str, error: str = "") -> None:
        """A message has ended, with a reply unless there is an error."""
        if self._messages[name].error is None:
            self._messages[name].error = error
            self._changed.set()
            self._changed = asyncio.Event()
