"""Delays uploads while a buffer is being committed: their updates count in the next one.

Invariant: the gate is open exactly while the ledger holds the row of an open round.
"""

import asyncio

from fedloom.protocol.errors import Code, Refusal

HOLD_S = 10.0
"""Longest wait of an upload for the next buffer before its client must retry, in seconds."""


class UpdateGate:
    """Open while updates can be stored."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._stopped = False

    @property
    def is_open(self) -> bool:
        """Whether the ledger holds an open round."""
        return self._open.is_set()

    def open(self) -> None:
        """Let uploads pass, waiting ones too."""
        self._open.set()

    def close(self) -> None:
        """Let uploads wait."""
        self._open.clear()

    def stop(self) -> None:
        """Refuse the uploads that wait; the server stops."""
        self._stopped = True
        self._open.set()

    async def wait(self) -> None:
        """Wait until the gate is open, for a limited time.

        Raises:
            Refusal: BUSY: it did not open in time, or the server stops.
        """
        try:
            async with asyncio.timeout(HOLD_S):
                await self._open.wait()
        except TimeoutError:
            raise try_again() from None
        if self._stopped:
            raise try_again()


def try_again() -> Refusal:
    """The refusal of an update for which no buffer has room now."""
    return Refusal(Code.BUSY, "Expected an open buffer, got none or a full one: try again.")
