"""Checks a masked body while it arrives: its length, its checksum and the zeros in it.

Its values say nothing: each is a random number. A device checks its update before it is masked.
"""

import time

from crc32c import crc32c

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking.body import BodyLayout
from fedloom.protocol.updates.body import BodyStats
from fedloom.protocol.v1 import fleet_pb2


class MaskedBodyChecker:
    """Checks a masked body as its bytes arrive, in chunks of any size.

    Args:
        header: of the update; its size is that of the layout.
        layout: of the body.

    Attributes:
        slow: False: a chunk takes little time.
        received: bytes so far.
        spent_s: on checks.
    """

    slow = False

    def __init__(self, header: fleet_pb2.UpdateHeader, layout: BodyLayout) -> None:
        self._crc_declared = header.crc32c
        self._layout = layout
        self._crc = 0
        self.received = 0
        self.spent_s = 0.0

    def feed(self, chunk: bytes) -> None:
        """Check the next bytes.

        Raises:
            Refusal: OVERLONG or MALFORMED.
        """
        begun, size = time.perf_counter(), self._layout.size_bytes
        if self.received + len(chunk) > size:
            raise Refusal(Code.OVERLONG, f"Expected {size} bytes as declared, got more.")
        first = max(0, self._layout.values_bytes - self.received)
        stop = max(0, self._layout.words_start - self.received)
        if any(chunk[first:stop]):
            raise Refusal(Code.MALFORMED, "Expected zeros between values and words, got others.")
        self.received += len(chunk)
        self._crc = crc32c(chunk, self._crc)
        self.spent_s += time.perf_counter() - begun

    def finish(self) -> BodyStats:
        """Check that the body is complete and as announced; nothing is known of its values.

        Raises:
            Refusal: TRUNCATED or BAD_CHECKSUM.
        """
        if self.received != self._layout.size_bytes:
            raise Refusal(
                Code.TRUNCATED,
                f"Expected {self._layout.size_bytes} bytes as declared, got {self.received}.",
            )
        if self._crc != self._crc_declared:
            raise Refusal(
                Code.BAD_CHECKSUM,
                f"Expected CRC-32C {self._crc_declared:08x} as declared, got {self._crc:08x}.",
            )
        return BodyStats(0.0, 0.0)
