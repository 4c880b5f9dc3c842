"""Files in the object store, in parts of one size: each is one PUT, held in memory meanwhile."""

import os
from collections.abc import Iterator
from typing import Final

from fedloom.server.storage.objects.interface import DamagedObjectError, Objects

PART_BYTES: Final = 8 << 20
"""Of each part but the last. Small enough to be held for each transfer at full speed, large enough
that a request's latency is a small share of its time."""


def num_parts(size_bytes: int) -> int:
    """Return the number of parts of a file; an empty one has one."""
    return max(1, -(-size_bytes // PART_BYTES))


def part_names(name: str, size_bytes: int) -> list[str]:
    """Return the names of the objects of a file that is stored at once."""
    return [f"{name}.{number}" for number in range(num_parts(size_bytes))]


def put_file(objects: Objects, name: str, handle: int) -> int:
    """Store an open file at once; returns its size in bytes."""
    size_bytes = os.fstat(handle).st_size
    for number, part in enumerate(part_names(name, size_bytes)):
        objects.put(part, os.pread(handle, PART_BYTES, number * PART_BYTES))
    return size_bytes


def get_file(objects: Objects, name: str, size_bytes: int) -> Iterator[bytes]:
    """Yield the parts of a file that was stored at once.

    Raises:
        DamagedObjectError: a part has another length than was written.
    """
    for number, part in enumerate(part_names(name, size_bytes)):
        yield checked(part, objects.get(part), length_of(number, size_bytes))


def length_of(number: int, size_bytes: int) -> int:
    """Return the bytes of a part of a file."""
    return min(PART_BYTES, size_bytes - number * PART_BYTES)


def checked(name: str, data: bytes, length: int) -> bytes:
    """Return the bytes of an object.

    Raises:
        DamagedObjectError: it has another length than was written.
    """
    if len(data) != length:
        raise DamagedObjectError(f"Expected {length} bytes in the object {name}, got {len(data)}.")
    return data
