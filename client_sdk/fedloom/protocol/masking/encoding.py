"""The one encoding under hashes, keys and signatures of masking sessions.

    H(label, fields…) = SHA-256("fedloom-secagg-1" ‖ 0 ‖ label ‖ 0 ‖ frame(field) …)
    frame(field)      = length of the field's bytes, u32 big-endian ‖ its bytes

A field's bytes: of a string UTF-8, of an integer 8 bytes big-endian (two's complement below zero),
of a float IEEE 754 binary64 big-endian. A label always has the same fields, of the same types, so
two different lists of fields never have the same bytes.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from fedloom.protocol.errors import Code, Refusal
from fedloom.strategies.exact.coverage import Slice
from fedloom.strategies.exact.partial import Key

PROTOCOL: Final = "fedloom-secagg-1"
DIGEST_BYTES: Final = 32

Field = bytes | str | int | float
Slices: TypeAlias = Mapping[Key, Slice]
"""Of the tensors that an update covers in part; of the others it covers all."""

_CLASS_DIGITS: Final = 40


def digest(label: str, *fields: Field) -> bytes:
    """H(label, fields…): 32 bytes."""
    return hashlib.sha256(b"\0".join((PROTOCOL.encode(), label.encode(), frames(*fields)))).digest()


def frames(*fields: Field) -> bytes:
    """The fields' bytes, each after its length."""
    return b"".join(
        struct.pack(">I", len(raw)) + raw for raw in (field_bytes(field) for field in fields)
    )


def field_bytes(field: Field) -> bytes:
    """The bytes of one field.

    Raises:
        ValueError: an integer outside −2^63 to 2^64 − 1.
    """
    match field:
        case bytes():
            return field
        case str():
            return field.encode()
        case int() if -(2**63) <= field < 2**64:
            return (field % 2**64).to_bytes(8, "big")
        case float():
            return struct.pack(">d", field)
    raise ValueError(f"Expected an integer of 64 bits, got {field!r}.")


def unframed(raw: bytes) -> Iterator[bytes]:
    """The fields' bytes of `frames`.

    Raises:
        Refusal: MALFORMED, a length exceeds the bytes that are left.
    """
    while raw:
        if len(raw) < 4 or len(raw) < 4 + int.from_bytes(raw[:4], "big"):
            raise Refusal(Code.MALFORMED, "Expected whole fields, got a shorter message.")
        end = 4 + int.from_bytes(raw[:4], "big")
        yield raw[4:end]
        raw = raw[end:]


# ---- sets of members ---------------------------------------------------------------------------


def to_bitmap(members: Iterable[int], size: int) -> bytes:
    r"""A set of members as bits in the order of the roster, least significant bit first.

    >>> to_bitmap({0, 9}, 10)
    b'\x01\x02'

    Args:
        members: indices in the roster, from 0.
        size: members of the roster.
    """
    bits = sum(1 << member for member in frozenset(members))
    if bits >> size:
        raise ValueError(f"Expected indices below {size}, got {bits.bit_length() - 1}.")
    return bits.to_bytes(-(-size // 8), "little")


def from_bitmap(raw: bytes, size: int) -> frozenset[int]:
    """The set of `to_bitmap`.

    Raises:
        Refusal: MALFORMED, not of this size.
    """
    bits = int.from_bytes(raw, "little")
    if len(raw) != -(-size // 8) or bits >> size:
        raise Refusal(Code.MALFORMED, f"Expected a bitmap of {size} members, got {raw[:20].hex()}.")
    return frozenset(index for index in range(size) if bits >> index & 1)


# ---- identifiers -------------------------------------------------------------------------------


def protocol_id(federation: str, run: str, round_: int, attempt: int, core: bytes) -> bytes:
    """pid: what all clients that are ready for one round must agree on.

    Args:
        federation: its name.
        run: id of the run.
        round_: number of the round.
        attempt: the server's number of this try at masking the round, from 1.
        core: H of the task and the terms of its sum, `fedloom.protocol.masking.core`.
    """
    return digest("pid", federation, run, round_, attempt, core)


def session_id(pid: bytes, session: int, adverts: Iterable[bytes]) -> bytes:
    """sid: what all members of one session must agree on; it salts every key of theirs.

    Args:
        pid: of the round's try.
        session: its index among the sessions of its class, from 0.
        adverts: H of each member's advert, in the order of names.
    """
    return digest("sid", pid, session, *adverts)


def metric_bounds(bounds: Mapping[str, float]) -> bytes:
    """The field of a task's metric words: names and bounds, by name."""
    return frames(*(field for name in sorted(bounds) for field in (name, float(bounds[name]))))


def width_class(width: float, slices: Slices) -> str:
    """The class of a narrow update: its width, and a digest of what it covers of each tensor.

    What a width keeps of a tensor follows from the module that a device trains, which a server does
    not have.

    Args:
        width: that the client's name draws.
        slices: that its update covers.
    """
    cuts = (
        frames(*key, *(edge for both in slices[key].ranges for edge in both))
        for key in sorted(slices)
    )
    return f"{width!r}:{digest('slices', *cuts).hex()[:_CLASS_DIGITS]}"
