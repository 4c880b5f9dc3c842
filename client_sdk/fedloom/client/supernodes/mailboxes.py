"""The mailboxes of one SuperNode, one for each kind of message: a task may evaluate, then train.

Invariant: a task that is done again, after a restart or an absence, finds the replies to all of its
messages: they stay until it has ended.
"""

from collections.abc import Callable
from pathlib import Path

from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import Message as WireMessage
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.run_pb2 import Run

from fedloom.client.supernodes.mailbox import Mailbox, StaleError


class Mailboxes:
    """The mailboxes of one SuperNode; the methods may be called from any thread.

    Args:
        folder: of the files.
        posted: called when there is a new message.
    """

    def __init__(self, folder: Path, posted: Callable[[], None] = lambda: None) -> None:
        self._train = Mailbox(folder / "train", posted)
        self._evaluate = Mailbox(folder / "evaluate", posted)
        self._all = (self._train, self._evaluate)
        self._suspended = False

    # ---- the task's side ---------------------------------------------------------------------

    def of(self, message_type: str) -> Mailbox:
        """The mailbox for messages of a type, such as `train` or `evaluate.fast`."""
        return self._train if message_type.partition(".")[0] == "train" else self._evaluate

    def suspend(self) -> None:
        """Keep what is here when the task ends: the SuperNode is away, and the task may return."""
        self._suspended = True

    def resume(self) -> None:
        """The SuperNode is back: tasks end as usual again."""
        self._suspended = False

    def ended(self) -> None:
        """The task has ended: remove its messages and replies, unless they are suspended."""
        for each in self._all:
            if self._suspended:
                each.close()
            else:
                each.clear()

    # ---- the SuperNode's side; see `Mailbox` ---------------------------------------------------

    def pending(self) -> PullMessagesResponse | None:
        """The message whose reply a task waits for."""
        return next((found for each in self._all if (found := each.pending()) is not None), None)

    def run(self, run_id: int) -> Run:
        """The run of a message.

        Raises:
            StaleError: no message is of that run.
        """
        for each in self._all:
            if (found := each.run(run_id)) is not None:
                return found
        raise StaleError

    def object(self, object_id: str) -> bytes | None:
        """An object of a message; None if none has it."""
        found = (each.object(object_id) for each in self._all)
        return next((data for data in found if data is not None), None)

    def begin_reply(self, message: WireMessage, tree: ObjectTree) -> tuple[list[str], str]:
        """Take the head of a reply, as `Mailbox.begin_reply`."""
        asked = message.metadata.reply_to_message_id
        box = self._train if self._train.holds(asked) else self._evaluate
        return box.begin_reply(message, tree)

    def put(self, session: str, object_id: str, content: bytes) -> bool:
        """Store an object of a reply, as `Mailbox.put`."""
        return any(each.put(session, object_id, content) for each in self._all)
