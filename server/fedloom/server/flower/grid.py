"""A Flower `Grid` over the clients of this server, in the process of a `ServerApp`.

The ids of messages are derived from their recipients and contents, so that an app that begins anew
after a restart of the server sends messages with the same ids, and gets the same replies.
"""

import hashlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from secrets import token_hex
from typing import Any

from flwr.app import Error, Message, Metadata, RecordDict
from flwr.app.message.message import make_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto, recorddict_from_proto, recorddict_to_proto
from flwr.proto.message_pb2 import Message as Written
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedloom.protocol import flower_messages
from fedloom.protocol.errors import UsageError
from fedloom.protocol.tensors.container import write_file

SERVER = 1
"""Flower's number of the server node."""


class ServerLink:
    """Requests to the server, from any thread.

    Args:
        ours: the socket.
        lost: called, in another thread, when the server has ended.
    """

    def __init__(self, ours: socket.socket, lost: Callable[[], None]) -> None:
        self._reader, self._writer = ours.makefile("rb"), ours.makefile("wb")
        self._lost = lost
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._next = 0

    def first(self) -> dict[str, Any]:
        """The server's order; then answers can be received."""
        order: dict[str, Any] = json.loads(self._reader.readline())
        threading.Thread(target=self._receive, daemon=True).start()
        return order

    def _receive(self) -> None:
        try:
            while line := self._reader.readline():
                told = json.loads(line)
                with self._lock:
                    waiting = self._waiting.pop(told["id"])
                if "error" in told:
                    waiting.set_exception(UsageError(told["error"]))
                else:
                    waiting.set_result(told["value"])
        finally:  # also where a killed server has reset the link
            self._lost()

    def ask(self, do: str, **values: Any) -> Any:
        """Send a request and wait for its answer.

        Raises:
            UsageError: the server refuses it.
        """
        answer: Future[Any] = Future()
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._waiting[number] = answer
            self._writer.write(json.dumps({"id": number, "do": do, **values}).encode() + b"\n")
            self._writer.flush()
        return answer.result()


class FleetGrid(Grid):
    """The grid of one run.

    Args:
        link: to the server.
        run_id: Flower's number of the run.
        drafts: folder for files of messages.
        max_bytes: longest message.
    """

    def __init__(self, link: ServerLink, run_id: int, drafts: Path, max_bytes: int) -> None:
        self._link, self._drafts, self._max_bytes = link, drafts, max_bytes
        self._run = Run.create_empty(run_id)
        self._lock = threading.Lock()
        self._names: dict[int, str] = {}
        self._sent: dict[str, Message] = {}
        self._count: Counter[str] = Counter()

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str,
        ttl: float | None = None,
    ) -> Message:  # fmt: skip
        """Make a message; apps call `Message` instead."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """The ids of the connected clients, in the order of their names."""
        names = self._link.ask("clients")
        numbers = {flower_messages.number_of(name): name for name in names}
        with self._lock:
            self._names |= numbers
        return list(numbers)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages to clients; returns their ids.

        Raises:
            UsageError: a recipient is unknown, or a message is too long.
        """
        rows = [self._written(message) for message in messages]
        self._link.ask("push", messages=rows)
        return [row["id"] for row in rows]

    def _written(self, message: Message) -> dict[str, str]:
        metadata = message.metadata
        client = self._names.get(metadata.dst_node_id)
        if client is None:
            raise UsageError(
                f"Expected a message to a node of get_node_ids(), got one to "
                f"{metadata.dst_node_id}."
            )
        content = recorddict_to_proto(message.content).SerializeToString(deterministic=True)
        about = f"{client}\0{metadata.message_type}\0{metadata.group_id}\0".encode()
        digest = hashlib.sha256(about + content).hexdigest()[:40]
        with self._lock:
            number, self._count[digest] = self._count[digest], self._count[digest] + 1
        name = f"{digest}-{number}"
        metadata.__dict__ |= {
            "_run_id": self._run.run_id, "_message_id": name, "_src_node_id": SERVER,
        }  # fmt: skip
        written = message_to_proto(message).SerializeToString()
        if len(written) > self._max_bytes:
            raise UsageError(
                f"Expected messages of at most {self._max_bytes} bytes, got one of {len(written)}: "
                "raise flower.max_message_mb of the run."
            )
        path = self._drafts / f"{token_hex(16)}.tmp"
        write_file(path, flower_messages.as_tensor(written))
        with self._lock:
            self._sent[name] = message
        return {"id": name, "client": client, "path": str(path)}

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that have come since; each is returned once."""
        return self._collect(list(message_ids), 0.0)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages, and wait for the replies; these are in the order of the messages."""
        return self._collect(self.push_messages(messages), timeout)

    def _collect(self, ids: Sequence[str], timeout_s: float | None) -> list[Message]:
        with self._lock:
            open_ids = [name for name in ids if name in self._sent]
        ended = self._link.ask("collect", ids=open_ids, timeout_s=timeout_s)
        replies = []
        for name in open_ids:
            if name in ended:
                with self._lock:
                    asked = self._sent.pop(name)
                replies.append(_reply(asked, ended[name]))
        return replies


def _reply(asked: Message, ended: dict[str, str]) -> Message:
    """The reply to a message; its metadata follow from the message, whatever the client wrote."""
    metadata = _metadata_of_reply(asked)
    if "error" in ended:
        away = ended["error"].startswith("lost")
        code = ErrorCode.NODE_UNAVAILABLE if away else ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        return make_message(metadata, error=Error(code=code, reason=ended["error"]))
    try:
        read = Written.FromString(flower_messages.read(Path(ended["path"])))
        content = recorddict_from_proto(read.content)
    except Exception as error:  # noqa: BLE001 - any error of the parsers: a client wrote it
        reason = f"refused: the reply cannot be read: {type(error).__name__}: {error}"
        failed = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason)
        return make_message(metadata, error=failed)
    return make_message(metadata, content)


def _metadata_of_reply(asked: Message) -> Metadata:
    before = asked.metadata
    return Metadata(
        run_id=before.run_id,
        message_id=f"{before.message_id}-reply",
        src_node_id=before.dst_node_id,
        dst_node_id=before.src_node_id,
        reply_to_message_id=before.message_id,
        group_id=before.group_id,
        created_at=before.created_at,
        ttl=before.ttl,
        message_type=before.message_type,
    )
