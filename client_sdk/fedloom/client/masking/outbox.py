"""The files of a masked task: what the plain update is of, and the masked body.

    RUN.ROUND.core            the task that the plain update was trained for
    RUN.ROUND.masked          the masked body, which nothing on this disk unmasks
    RUN.ROUND.masked-header   of its upload

Invariants: a plain update is used only for a task that asks the same of all members; the plain
update is off the disk before a masked body may leave.
"""

import os
from pathlib import Path
from typing import Final

from crc32c import crc32c
from google.protobuf.message import DecodeError

from fedloom.client.state.store import ClientStore
from fedloom.protocol.atomic_files import sync_directory, write_whole
from fedloom.protocol.masking import Slices, terms_of
from fedloom.protocol.masking.body import Bytes
from fedloom.protocol.trust.private_files import private_opener
from fedloom.protocol.updates.masked_parts import to_parts
from fedloom.protocol.v1 import fleet_pb2

_CORE: Final = "core"
_BODY: Final = "masked"
_HEADER: Final = "masked-header"


class MaskedOutbox:
    """The outbox of one masked task.

    Args:
        store: of the client.
        key: of the task.
    """

    def __init__(self, store: ClientStore, key: fleet_pb2.TaskKey) -> None:
        self._store = store
        self._run, self._round = key.run, key.round

    @property
    def body(self) -> Path:
        """File of the masked body."""
        return self._path(_BODY)

    @property
    def plain(self) -> Path:
        """File of the body that is not masked."""
        return self._store.body_path(self._run, self._round)

    def _path(self, name: str) -> Path:
        return self._store.outbox_path(self._run, self._round, name)

    def note_task(self, offer: fleet_pb2.Task) -> None:
        """Note which task an update is trained for, before it is."""
        write_whole(self._path(_CORE), _core(offer), sync=True, mode=0o600)

    def is_of(self, offer: fleet_pb2.Task) -> bool:
        """Whether the plain update on the disk is of this task, whatever the try.

        A server could otherwise have it trained by one task, and summed with those of another.
        """
        path = self._path(_CORE)
        return path.exists() and path.read_bytes() == _core(offer)

    def store(
        self, offer: fleet_pb2.Task, client: str, body: Bytes, session: bytes, slices: Slices
    ) -> fleet_pb2.UpdateHeader:
        """Write the masked body and the header of its upload, durably.

        Args:
            offer: the task.
            client: this client's name.
            body: masked.
            session: its id.
            slices: that it covers.
        """
        with open(self.body, "wb", opener=private_opener) as file:
            file.write(body.data)
            file.flush()
            os.fsync(file.fileno())
        header = fleet_pb2.UpdateHeader(
            task=offer.key,
            client=client,
            model_digest=offer.model.digest,
            size_bytes=len(body),
            crc32c=crc32c(body.data),
            masking_session=session,
            parts=to_parts(slices),
        )
        write_whole(self._path(_HEADER), header.SerializeToString(), sync=True, mode=0o600)
        return header

    def remove_plain(self) -> None:
        """Remove all of the update that is not masked, durably."""
        for path in (self._store.outbox_path(self._run, self._round, "header"), self.plain):
            path.unlink(missing_ok=True)
        self._path(_CORE).unlink(missing_ok=True)
        sync_directory(self.body.parent)

    def remove_masked(self) -> None:
        """Remove the masked body, such as one that was written and did not leave."""
        self._path(_HEADER).unlink(missing_ok=True)
        self.body.unlink(missing_ok=True)

    def unsent(self) -> fleet_pb2.UpdateHeader | None:
        """The header of a masked body, if the body is whole."""
        try:
            header = fleet_pb2.UpdateHeader.FromString(self._path(_HEADER).read_bytes())
            body = self.body.read_bytes()
        except (FileNotFoundError, DecodeError):
            return None
        whole = len(body) == header.size_bytes and crc32c(body) == header.crc32c
        return header if whole else None


def _core(offer: fleet_pb2.Task) -> bytes:
    same = fleet_pb2.Task()
    same.CopyFrom(offer)
    same.masking.attempt = 1
    return (terms_of(same, "").core + same.seed.to_bytes(8, "big")).hex().encode()
