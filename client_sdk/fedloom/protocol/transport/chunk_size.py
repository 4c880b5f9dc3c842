"""The size of a transfer's messages: set, or found by measurement.

With `auto` each size is tried for some megabytes of real transfers, then the fastest is kept for a
gigabyte, and the search repeats: links and machines change. The bytes sent do not depend on it.
"""

from typing import Final

from fedloom.protocol.errors import UsageError
from fedloom.protocol.transport.methods import CHUNK_BYTES, MAX_MESSAGE_BYTES

SIZES: Final = (256 << 10, 512 << 10, 1 << 20, 2 << 20)
"""Sizes tried by `auto`, in bytes; the last is the longest possible message."""
TRIAL_BYTES: Final = 16 << 20
SETTLED_BYTES: Final = 1 << 30
MIN_CHUNK_BYTES: Final = 16 << 10

Setting = int | str
"""Bytes, or "auto"."""


def check(setting: Setting) -> None:
    """Check the setting.

    Raises:
        UsageError: it is neither "auto" nor a number of bytes within range.
    """
    if setting == "auto":
        return
    fits = type(setting) is int and MIN_CHUNK_BYTES <= setting <= MAX_MESSAGE_BYTES
    if not fits:
        raise UsageError(
            f'Expected chunk_bytes = "auto" or from {MIN_CHUNK_BYTES} to {MAX_MESSAGE_BYTES}, '
            f"got {setting!r}."
        )


class Chunks:
    """The size of the next message, for all transfers in one direction.

    Args:
        setting: bytes, or "auto".
    """

    def __init__(self, setting: Setting = CHUNK_BYTES) -> None:
        check(setting)
        self._fixed = setting if isinstance(setting, int) else 0
        self._begin()

    def _begin(self) -> None:
        self._bytes = dict.fromkeys(SIZES, 0)
        self._seconds = dict.fromkeys(SIZES, 0.0)
        self._settled_bytes = 0

    @property
    def size(self) -> int:
        """Bytes of the next message."""
        if self._fixed:
            return self._fixed
        on_trial = next((s for s in SIZES if self._bytes[s] < TRIAL_BYTES), None)
        return self._fastest() if on_trial is None else on_trial

    def passed(self, size_bytes: int, seconds: float) -> None:
        """Record a sent message, to choose later sizes.

        Args:
            size_bytes: of the message; the last one of a transfer is shorter and is not measured.
            seconds: duration of sending it.
        """
        if self._fixed or size_bytes not in self._bytes:
            return
        if self._bytes[size_bytes] < TRIAL_BYTES:
            self._bytes[size_bytes] += size_bytes
            self._seconds[size_bytes] += seconds
            return
        self._settled_bytes += size_bytes
        if self._settled_bytes >= SETTLED_BYTES:
            self._begin()

    def _fastest(self) -> int:
        # Of two equally fast sizes the larger one: fewer messages.
        return max(SIZES, key=lambda s: (self._bytes[s] / max(self._seconds[s], 1e-9), s))
