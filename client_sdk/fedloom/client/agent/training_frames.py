"""Messages between an agent and its training process, over pipes.

A frame is its length (4 bytes, little-endian, of all that follows), a byte for its kind, and a
payload. The agent's payloads are pickles, because the process trusts the agent; what comes back is
JSON or protobuf, because nothing that training code writes may run in the agent.
"""

import json
import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from fedloom.client.budgets import Budgets
from fedloom.client.owner.policy import Policy
from fedloom.client.training.checkpoints import Interruptions
from fedloom.protocol.errors import IntegrityError

_LENGTH = struct.Struct("<I")
MAX_BYTES = 256 << 20
"""Largest frame: a header describes every tensor of an update."""


class Frame(IntEnum):
    """Kind of a frame."""

    # from the agent
    TASK = 1
    STOP = 2
    # from the training process
    READY = 16
    UNUSABLE = 17
    TRAINING = 18
    PROGRESS = 19
    DONE = 20
    FAILED = 21


@dataclass(frozen=True, slots=True)
class WrittenOrder:
    """An order as the training process receives it.

    Attributes:
        message: the serialised task.
        client: this client's name.
        state_dir: of the client.
        policy: of the device's owner.
        budgets: of the device.
        interruptions: when to write checkpoints.
    """

    message: bytes
    client: str
    state_dir: Path
    policy: Policy
    budgets: Budgets
    interruptions: Interruptions

    def dump(self) -> bytes:
        """The payload of a `TASK` frame."""
        return pickle.dumps(self)

    @staticmethod
    def load(payload: bytes) -> "WrittenOrder":
        """Read the payload of a `TASK` frame."""
        order: WrittenOrder = pickle.loads(payload)  # noqa: S301 - from the agent
        return order


def pack(kind: Frame, payload: bytes = b"") -> bytes:
    """A frame, ready to write."""
    return _LENGTH.pack(1 + len(payload)) + bytes([kind]) + payload


def pack_fields(kind: Frame, /, **fields: object) -> bytes:
    """A frame whose payload is a JSON object."""
    return pack(kind, json.dumps(fields).encode())


def fields_of(payload: bytes) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        IntegrityError: it is none.
    """
    try:
        found = json.loads(payload)
    except ValueError as error:
        raise IntegrityError(f"Expected a JSON object from the training process: {error}") from None
    if not isinstance(found, dict):
        raise IntegrityError(f"Expected a JSON object from the training process, got {found!r:.80}")
    return found


class FrameBuffer:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Frame, bytes]]:
        """Add bytes; yields the frames that are complete.

        Raises:
            IntegrityError: they are no frames.
        """
        self._held += data
        while len(self._held) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._held)
            end = _LENGTH.size + length
            if not 1 <= length <= MAX_BYTES:
                raise IntegrityError(f"Expected a frame of 1 to {MAX_BYTES} bytes, got {length}.")
            if len(self._held) < end:
                return
            kind, payload = self._held[_LENGTH.size], bytes(self._held[_LENGTH.size + 1 : end])
            del self._held[:end]
            try:
                yield Frame(kind), payload
            except ValueError:
                raise IntegrityError(f"Expected a known frame, got kind {kind}.") from None
