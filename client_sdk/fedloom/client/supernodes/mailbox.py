"""One message for a SuperNode, and its reply, on disk while they are needed.

flwr splits messages into objects, each named by the SHA-256 of its bytes. Files of a mailbox:
`out/` and `in/` with the objects of both, `run`, `reply` (its tree of objects), and `message`,
which is written last and removed first, so that it stands for a whole message. A bridge that was
killed continues with them: a training that a SuperNode did meanwhile is not lost.

Invariants: a mailbox holds at most one message and one reply; the objects of a reply take at most
`REPLY_TIMES` the bytes of the message plus `REPLY_BYTES`, and so do its arrays in memory; a reply
that is whole is never replaced, and one that cannot be used is removed.
"""

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from flwr.app import Array, Message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import Message as WireMessage
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.run_pb2 import Run
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_tree,
    is_valid_sha256_hash,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from google.protobuf.message import DecodeError

from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import UsageError
from fedloom.protocol.trust.private_files import private_directory

REPLY_TIMES: Final = 4
REPLY_BYTES: Final = 16 << 20
REPLY_OBJECTS: Final = 4096
"""Objects of a reply beyond `REPLY_TIMES` those of the message."""


class StaleError(Exception):
    """A call about a message that is no longer, or not yet, to be answered."""


class MalformedReplyError(Exception):
    """A reply that cannot be taken; the task fails."""


class Mailbox:
    """The mailbox of one SuperNode; its methods may be called from any thread.

    Args:
        folder: of the files; made when there is a message.
        posted: called when there is a new message.
    """

    def __init__(self, folder: Path, posted: Callable[[], None] = lambda: None) -> None:
        self._folder = folder
        self._posted = posted
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._open = False
        """Whether a task waits for the reply; not yet after a restart."""
        self._failure = ""
        self._tree = ObjectTree()
        self._needed: set[str] = set()
        self._held: PullMessagesResponse | None = None
        self._run: Run | None = None
        self._sent_bytes = self._received_bytes = 0
        self._load()

    # ---- the task's side ---------------------------------------------------------------------

    def post(self, build: Callable[[float], Message], run: Run, now: float) -> None:
        """Put a message in, unless the very same one was, before a restart.

        Args:
            build: makes the message by the Unix time of its creation.
            run: that it belongs to.
            now: Unix time.
        """
        if (held := self._held) is not None:  # changed by this side only
            before = held.messages_list[0].metadata
            if _identify(build(before.created_at)) == before.message_id:
                self._offer()
                return
        self.clear()
        self._store(build(now), run)
        self._offer()

    def _offer(self) -> None:
        with self._lock:
            self._open = True
            self._changed.notify_all()
        self._posted()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the whole reply, or for its refusal; False if there is neither."""
        with self._lock:
            return self._changed.wait_for(lambda: self._is_answered, timeout_s)

    def reply(self) -> Message:
        """The whole reply.

        Raises:
            UsageError: it was refused, or cannot be read; the mailbox is then empty.
        """
        try:
            return self._read()
        except UsageError:
            self.clear()
            raise

    def close(self) -> None:
        """Offer the message no more, but keep it for the next `post`: the task may come again."""
        with self._lock:
            self._open = False

    def clear(self) -> None:
        """Remove the message and its reply."""
        with self._lock:
            (self._folder / "message").unlink(missing_ok=True)
            shutil.rmtree(self._folder, ignore_errors=True)
            self._held = self._run = None
            self._open, self._failure, self._sent_bytes = False, "", 0
            self._expect(ObjectTree())

    # ---- the SuperNode's side ----------------------------------------------------------------

    def pending(self) -> PullMessagesResponse | None:
        """The message, while a task waits for its reply."""
        with self._lock:
            return None if not self._open or self._is_answered else self._held

    def holds(self, message_id: str) -> bool:
        """Whether it holds this message, answered or not."""
        with self._lock:
            held = self._held
            return held is not None and held.messages_list[0].metadata.message_id == message_id

    def run(self, run_id: int) -> Run | None:
        """The run of the message; None if it is another one."""
        with self._lock:
            found = self._run
            return None if found is None or found.run_id != run_id else found

    def object(self, object_id: str) -> bytes | None:
        """An object of the message; None if it has no such object."""
        if not is_valid_sha256_hash(object_id):
            return None
        with self._lock:
            path = self._folder / "out" / object_id
            return path.read_bytes() if path.is_file() else None

    def begin_reply(self, message: WireMessage, tree: ObjectTree) -> tuple[list[str], str]:
        """Take the head of a reply.

        Returns:
            The ids of the objects that are needed, and the session in which they are: the id of
            the tree, so that it goes on after a restart.

        Raises:
            StaleError: it does not answer the message, or that is answered.
            MalformedReplyError: the tree of objects is not valid.
        """
        with self._lock:
            if self._is_answered or not self.holds(message.metadata.reply_to_message_id):
                raise StaleError
            self._check_tree(tree, message.metadata.message_id)
            if tree.object_id != self._tree.object_id:
                shutil.rmtree(self._folder / "in", ignore_errors=True)
                private_directory(self._folder / "in")
                write_whole(self._folder / "reply", tree.SerializeToString(), mode=0o600)
                self._expect(tree)
            return sorted(self._needed), tree.object_id

    def put(self, session: str, object_id: str, content: bytes) -> bool:
        """Store an object of the reply; False if the session is over.

        Raises:
            MalformedReplyError: the bytes are not that object's, or too many.
        """
        if session != self._tree.object_id:
            return False
        digest = sha256(content).hexdigest()
        with self._lock:
            if not session or session != self._tree.object_id or self._failure:
                return False
            if object_id in self._needed:
                if digest != object_id:
                    raise self._refused("the bytes of an object differ from its digest.")
                if self._received_bytes + len(content) > (most := self._most_bytes):
                    raise self._refused(f"expected at most {most} bytes, got more.")
                write_whole(self._folder / "in" / object_id, content, mode=0o600)
                self._received_bytes += len(content)
                self._needed.discard(object_id)
                if self._is_answered:
                    self._changed.notify_all()
            return True

    # ---- files -------------------------------------------------------------------------------

    @property
    def _is_answered(self) -> bool:
        return bool(self._failure) or bool(self._tree.object_id and not self._needed)

    @property
    def _most_bytes(self) -> int:
        return REPLY_TIMES * self._sent_bytes + REPLY_BYTES

    def _read(self) -> Message:
        with self._lock:
            if self._failure:
                raise UsageError(f"The SuperNode's reply was refused: {self._failure}")
            root = self._tree.object_id
            contents = {n: (self._folder / "in" / n).read_bytes() for n in _names(self._tree)}
        damaged = [name for name, data in contents.items() if sha256(data).hexdigest() != name]
        if damaged:
            raise UsageError(f"The object {damaged[0]} of the SuperNode's reply is damaged.")
        try:
            _check_arrays(contents, self._most_bytes)
            found = inflate_object_from_contents(root, contents)
        except Exception as error:  # any error of the parser
            raise UsageError(
                f"The SuperNode's reply cannot be read: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(found, Message):
            raise UsageError(f"Expected a Message from the SuperNode, got {type(found).__name__}.")
        return found

    def _expect(self, tree: ObjectTree) -> None:
        """Expect the objects of a reply that are not here; of no reply, if it is empty."""
        here = {path.name: path.stat().st_size for path in self._files("in")}
        self._tree = tree
        self._needed = set(_names(tree)) - set(here) if tree.object_id else set()
        self._received_bytes = sum(here.values())

    def _refused(self, why: str) -> MalformedReplyError:
        self._failure = why
        self._changed.notify_all()
        return MalformedReplyError(why)

    def _check_tree(self, tree: ObjectTree, message_id: str) -> None:
        assert self._held is not None
        names = _names(tree)
        most = REPLY_TIMES * len(_names(self._held.message_object_trees[0])) + REPLY_OBJECTS
        if len(names) > most:
            raise self._refused(f"expected at most {most} objects, got {len(names)}.")
        if message_id != tree.object_id or not all(map(is_valid_sha256_hash, names)):
            raise self._refused("expected digests of objects in its tree, got other texts.")

    def _store(self, message: Message, run: Run) -> None:
        name = _identify(message)
        message.metadata.__dict__["_message_id"] = name
        out = private_directory(self._folder / "out")
        with no_object_id_recompute():
            tree = get_object_tree(message)
            for object_id, each in get_all_nested_objects(message).items():
                data = each.deflate()
                write_whole(out / object_id, data, mode=0o600)
                self._sent_bytes += len(data)
        head = message_to_proto(remove_content_from_message(message))
        held = PullMessagesResponse(messages_list=[head], message_object_trees=[tree])
        write_whole(self._folder / "run", run.SerializeToString(), mode=0o600)
        write_whole(self._folder / "message", held.SerializeToString(), mode=0o600)
        with self._lock:
            self._held, self._run = held, run

    def _load(self) -> None:
        """Read what a bridge that was killed left."""
        try:
            held = PullMessagesResponse.FromString((self._folder / "message").read_bytes())
            run = Run.FromString((self._folder / "run").read_bytes())
            message_from_proto(held.messages_list[0])
        except Exception:  # noqa: BLE001 - missing, or damaged by a loss of power: sent again
            self.clear()
            return
        self._held, self._run = held, run
        self._sent_bytes = sum(path.stat().st_size for path in self._files("out"))
        with suppress(OSError, DecodeError):
            self._expect(ObjectTree.FromString((self._folder / "reply").read_bytes()))

    def _files(self, part: str) -> Iterator[Path]:
        yield from (self._folder / part).glob("*")


def _names(tree: ObjectTree) -> list[str]:
    """The ids of a tree's objects, each once."""
    return list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree)))


def _check_arrays(contents: Mapping[str, bytes], most: int) -> None:
    held = sum(_array_bytes(data, contents) for data in contents.values())
    if held > most:
        raise ValueError(f"expected arrays of at most {most} bytes, got {held}.")


def _array_bytes(data: bytes, contents: Mapping[str, bytes]) -> int:
    """Bytes of an object's array when it is read; 0 if it is no array.

    An array lists its chunks by index, and may list one again and again.

    Raises:
        ValueError: it has other parts than chunks.
    """
    kind, children, _ = get_object_head_values_from_object_content(data)
    if kind != Array.__qualname__:
        return 0
    sizes = [len(get_object_body(contents[child], ArrayChunk)) for child in children]
    return sum(sizes[place] for place in json.loads(get_object_body(data, Array))["arraychunk_ids"])


def _identify(message: Message) -> str:
    """The digest of a message, by which flwr names it."""
    with no_object_id_recompute():
        return str(message.object_id)
