"""Token buckets: requests of a peer beyond a burst and a rate wait, and cost little until then.

Source: ATM Forum, Traffic Management 4.1, 4.4.2: the generic cell rate algorithm, which keeps one
time for each bucket.

Invariant: memory is bounded; the longest unused bucket is dropped first, as it is full again first.
"""

import asyncio
from collections import OrderedDict

MAX_KEYS = 10_000

LONGEST_HOLD_S = 1.0
"""Longest time that a request waits to be served."""

REFUSED_AFTER_S = 4.0
"""Time after which one that would wait longer is refused; its peer waits for that."""

HELD = 256
"""Requests that wait at once; further ones are refused immediately."""


class Buckets:
    """Token buckets by key.

    Args:
        burst: requests that a full bucket allows at once.
        per_s: requests per second that refill it.
        max_keys: buckets that are kept.
    """

    def __init__(self, burst: float, per_s: float, max_keys: int = MAX_KEYS) -> None:
        self._room_s = burst / per_s
        self._each_s = 1.0 / per_s
        self._max_keys = max_keys
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def wait_s(self, key: str, now: float) -> float:
        """Seconds from `now` (monotonic) until this key's bucket has a token; 0 if it has one."""
        return max(0.0, self._full_at.get(key, now) + self._each_s - self._room_s - now)

    def takes(self, key: str, now: float) -> bool:
        """Take a token if there is one; returns whether there was.

        >>> buckets = Buckets(burst=2, per_s=1.0)
        >>> [buckets.takes("a", now) for now in (0.0, 0.0, 0.0, 1.0, 1.0)], buckets.takes("b", 1.0)
        ([True, True, False, True, False], True)
        """
        if self.wait_s(key, now) > 0:
            return False
        self.take(key, now)
        return True

    def take(self, key: str, now: float) -> float:
        """Take a token; returns the seconds until the bucket is out of debt, 0 without debt.

        The debt is at most `LONGEST_HOLD_S` seconds of tokens: a peer that stops is soon served.
        """
        full_at = max(self._full_at.pop(key, now), now) + self._each_s
        self._full_at[key] = min(full_at, now + self._room_s + LONGEST_HOLD_S)
        while len(self._full_at) > self._max_keys:
            self._full_at.popitem(last=False)
        return max(0.0, self._full_at[key] - self._room_s - now)


class Waiting:
    """Requests that wait for their bucket."""

    def __init__(self) -> None:
        self._held = 0

    async def passes(self, wait_s: float) -> bool:
        """Wait for a token, or longer before a refusal.

        Args:
            wait_s: of `Buckets.take`.

        Returns:
            Whether the request may be served; if not, it is to be refused.
        """
        if wait_s <= 0:
            return True
        served = wait_s < LONGEST_HOLD_S and self._held < HELD
        if self._held < HELD:
            self._held += 1
            try:
                await asyncio.sleep(wait_s if served else REFUSED_AFTER_S)
            finally:
                self._held -= 1
        return served
