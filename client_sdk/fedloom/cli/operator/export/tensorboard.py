"""TensorBoard's event files, written and read without TensorBoard.

A file is a sequence of records: a length, its checksum, an `Event`, its checksum; checksums are
masked CRC-32C. Sources: TensorFlow, `tensorflow/core/lib/io/record_writer.h` (the records) and
`tensorflow/core/util/event.proto`, `framework/summary.proto` (the messages), version 2 of the file.
"""

import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from crc32c import crc32c

PATTERN = "events.out.tfevents.*"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class EventFile:
    """A new event file in a folder.

    Args:
        folder: for `tensorboard --logdir`; created if missing.
        before: steps after this one in older files of the folder are hidden; 0 hides none.
    """

    def __init__(self, folder: Path, *, before: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"events.out.tfevents.{time.time_ns() // 10**9:010d}.{socket.gethostname()}"
        number = len(list(folder.glob(PATTERN)))
        self._file = (folder / f"{stem}.{os.getpid()}.{number}").open("xb")
        self._write(_field(3, b"brain.Event:2"), time.time())
        if before:
            started = _tag(1, _VARINT) + _varint(1)
            self._write(_tag(2, _VARINT) + _varint(before + 1) + _field(7, started), time.time())

    def append(self, step: int, scalars: Mapping[str, float], at: float | None = None) -> None:
        """Write a step's scalars; `at` is the time, seconds since the epoch."""
        values = b"".join(
            _field(1, _field(1, name.encode()) + _tag(2, _FIXED32) + struct.pack("<f", value))
            for name, value in scalars.items()
        )
        body = _tag(2, _VARINT) + _varint(step) + _field(5, values)
        self._write(body, time.time() if at is None else at)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, body: bytes, at: float) -> None:
        event = _tag(1, _FIXED64) + struct.pack("<d", at) + body
        length = struct.pack("<Q", len(event))
        self._file.write(length + _masked(length) + event + _masked(event))


def steps(folder: Path, begins: str = "") -> set[int]:
    """Steps in a folder's event files that have a scalar whose name begins like this."""
    return {
        step
        for file in folder.glob(PATTERN)
        for step, scalars in read(file)
        if any(name.startswith(begins) for name in scalars)
    }


def read(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Steps and scalars of an event file, up to the first damaged record."""
    data, at = path.read_bytes(), 0
    while at + 12 <= len(data):
        head = data[at : at + 8]
        end = at + 12 + struct.unpack("<Q", head)[0]
        event = data[at + 12 : end]
        if data[at + 8 : at + 12] != _masked(head) or data[end : end + 4] != _masked(event):
            return
        at = end + 4
        step, scalars = 0, {}
        for number, value in _fields(event):
            if number == 2 and isinstance(value, int):
                step = value
            elif number == 5 and isinstance(value, bytes):
                scalars = dict(_scalar(each) for _, each in _fields(value))
        if scalars:
            yield step, scalars


def _scalar(message: bytes | int) -> tuple[str, float]:
    assert isinstance(message, bytes)
    found = dict(_fields(message))
    name, value = found[1], found[2]
    assert isinstance(name, bytes)
    assert isinstance(value, bytes)
    return name.decode(), struct.unpack("<f", value)[0]


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Number and value of each field of a message; fixed-width values as bytes."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _read_varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _read_varint(message, at)
        else:
            size = 8 if kind == _FIXED64 else 4
        yield number, message[at : at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        if data[at] < 0x80:
            return value, at + 1
        at, shift = at + 1, shift + 7


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _field(number: int, data: bytes) -> bytes:
    return _tag(number, _BYTES) + _varint(len(data)) + data
