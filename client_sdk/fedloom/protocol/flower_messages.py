"""Messages of Flower on the wire: bytes in a container with one tensor, like a model or an update.

A message and its reply are `flwr.proto.message_pb2.Message`s, serialised. Importing this needs no
flwr.
"""

from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.container import read_params
from fedloom.strategies.exact.partial import TensorSpec

GROUP: Final = "message"
TENSOR: Final = "message"
"""The container's only tensor, as a message has it."""
OVERHEAD_BYTES: Final = 4096
"""Of the container beside the message."""


def number_of(name: str) -> int:
    """A stable number for a name, from 1 to 2^63 - 1: Flower's id of a node or a run."""
    return int.from_bytes(sha256(name.encode()).digest()[:8], "little") >> 1 or 1


def manifest(max_bytes: int) -> Manifest:
    """The manifest of replies of at most so many bytes; a shorter one covers a slice."""
    spec = TensorSpec(shape=(max_bytes,), dtype=np.dtype(np.uint8))
    return Manifest({TENSOR: "U8"}, {TENSOR: spec}, size_bytes=max_bytes, replaced=True)


def as_tensor(message: bytes) -> dict[str, NDArray[np.uint8]]:
    """The container's tensor of a message."""
    return {TENSOR: np.frombuffer(message, np.uint8)}


def read(path: Path) -> bytes:
    """The message in a container: its only tensor, of any name.

    Raises:
        IntegrityError: it is no container.
        UsageError: it has other tensors.
    """
    found = list(read_params(path).values())
    if len(found) != 1 or found[0].dtype != np.uint8:
        raise UsageError(f"Expected a message in {path}, got other tensors.")
    return found[0].tobytes()
