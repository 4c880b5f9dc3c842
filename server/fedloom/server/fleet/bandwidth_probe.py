"""Answers a device that measures its connection, with the server's time and bytes.

Invariant: an answer is no longer than a chunk of a model, whatever was requested.
"""

import time

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.transport import methods


def measured(raw: bytes) -> bytes:
    """Answer a `Measure`.

    Args:
        raw: `wire.MEASURE_HEAD`, then anything.

    Returns:
        `wire.MEASURE_REPLY`, then the requested number of zeros.

    Raises:
        Refusal: MALFORMED, or TOO_LARGE.
    """
    if len(raw) < methods.MEASURE_HEAD.size:
        raise Refusal(
            Code.MALFORMED, f"Expected at least {methods.MEASURE_HEAD.size} bytes, got {len(raw)}."
        )
    (wanted,) = methods.MEASURE_HEAD.unpack_from(raw)
    if wanted > methods.CHUNK_BYTES:
        raise Refusal(
            Code.TOO_LARGE,
            f"Expected to send back at most {methods.CHUNK_BYTES} bytes, got {wanted}.",
        )
    return methods.MEASURE_REPLY.pack(time.time()) + bytes(wanted)
