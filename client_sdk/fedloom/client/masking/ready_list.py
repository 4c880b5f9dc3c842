"""The download of the list of ready devices; it is large only where a round has many sessions."""

from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from fedloom.client.state.partial_download import PartialDownload
from fedloom.client.state.store import ClientStore
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking import Advert
from fedloom.protocol.v1 import fleet_pb2

MAX_LIST_BYTES: Final = 256 << 20
"""Of some 100,000 adverts with their certificates."""


class ReadyListFile:
    """Where the list of one task is downloaded to; it is removed when it has been read.

    Args:
        store: of the client.
        key: of the task.
    """

    def __init__(self, store: ClientStore, key: fleet_pb2.TaskKey) -> None:
        self._path = store.outbox_path(key.run, key.round, "ready-list")

    def receive_model(self, digest: str, size_bytes: int) -> PartialDownload:
        """Start or resume the download."""
        if not 0 < size_bytes <= MAX_LIST_BYTES:
            raise Refusal(
                Code.TOO_LARGE,
                f"Expected a list of ready devices of 1 to {MAX_LIST_BYTES} bytes, got "
                f"{size_bytes}.",
            )
        return PartialDownload(self._path.with_suffix(f".{digest[:16]}"), size_bytes)

    def adopt_model(self, digest: str) -> Path:
        """Take the complete download."""
        return self._path.with_suffix(f".{digest[:16]}").replace(self._path)

    def read(self) -> list[Advert]:
        """Read the list, and remove its file.

        Raises:
            Refusal: MALFORMED.
        """
        try:
            listed = fleet_pb2.ReadyList.FromString(self._path.read_bytes())
        except DecodeError:
            raise Refusal(
                Code.MALFORMED, "Expected a list of ready devices, got other bytes."
            ) from None
        finally:
            self._path.unlink(missing_ok=True)
        return [Advert.from_bytes(raw) for raw in listed.adverts]
