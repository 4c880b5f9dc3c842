"""Paces requests over TCP: by user, and by address where no valid credential comes with them.

The console shares its event loop with the rounds. Requests beyond a rate wait, and those beyond a
second of waiting get a short, late answer, 429, which costs no page, no password's hash and no
write; only a credential that comes with them is looked up.
"""

import time

from fedloom.server.access.errors import TooManyTriesError
from fedloom.server.access.throttle import network_of
from fedloom.server.access.token_buckets import LONGEST_HOLD_S, Buckets, Waiting

USERS = 500, 50.0
"""Requests of a user at once, and per second after that; a page takes about a dozen."""

STRANGERS = 64, 8.0
"""Likewise of an address without a valid credential."""

ALL_STRANGERS = 256, 32.0
"""Likewise of all these addresses together."""


class RequestPace:
    """Delays the requests of peers beyond their rates."""

    def __init__(self) -> None:
        self._users = Buckets(*USERS)
        self._strangers = Buckets(*STRANGERS)
        self._all_strangers = Buckets(*ALL_STRANGERS)
        self._waiting = Waiting()

    async def user(self, name: str) -> None:
        """Count a request of a user; wait if there are too many.

        Raises:
            TooManyTriesError: a second of waiting is not enough.
        """
        await self._hold(self._users.take(name, time.monotonic()))

    async def stranger(self, address: str) -> None:
        """Count a request without a valid credential; wait if there are too many.

        Raises:
            TooManyTriesError: a second of waiting is not enough.
        """
        now = time.monotonic()
        wait_s = self._strangers.take(network_of(address), now)
        if wait_s < LONGEST_HOLD_S:  # one address alone does not use up what all have
            wait_s = max(wait_s, self._all_strangers.take("", now))
        await self._hold(wait_s)

    async def _hold(self, wait_s: float) -> None:
        if not await self._waiting.passes(wait_s):
            raise TooManyTriesError("Expected fewer requests: try again in a moment.", wait_s)
