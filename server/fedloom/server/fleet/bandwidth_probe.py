"""What a device measures its connection by: the time here, and bytes both ways.

Invariant: what is sent back is no longer than a model's chunk, whatever was asked for.
"""

import time

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.transport import methods


def measured(raw: bytes) -> bytes:
    """Answer a `Measure`.

    Args:
        raw: `wire.MEASURE_HEAD`, then anything.

    Returns:
        `wire.MEASURE_REPLY`, then as many zeros as were asked for.

    Raises:
        Refusal: MALFORMED, or TOO_LARGE.
    """
    if len(raw) < methods.MEASURE_HEAD.size:
        raise Refusal(
            Code.MALFORMED,
            f"Expected at least {methods.MEASURE_HEAD.size} bytes, got {len(raw)}.",
        )
    (wanted,) = methods.MEASURE_HEAD.unpack_from(raw)
    if wanted > methods.CHUNK_BYTES:
        raise Refusal(
            Code.TOO_LARGE,
            f"Expected to send back at most {methods.CHUNK_BYTES} bytes, got {wanted}.",
        )
    return methods.MEASURE_REPLY.pack(time.time()) + bytes(wanted)
