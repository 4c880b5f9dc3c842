"""Paces what one peer may ask: a token bucket for each client and for each address of a stranger.

A peer beyond its rate is answered later. Its streams stay open meanwhile, so that the limit of
streams on a connection stops it, and its calls take no time that rounds need.

Source: ATM Forum, Traffic Management 4.1, 4.4.2: the generic cell rate algorithm, which keeps one
time for each bucket.

Invariant: memory is bounded; the longest unused bucket is dropped first, as it is full again first.
"""

import asyncio
import time
from collections import OrderedDict
from urllib.parse import unquote

from fedloom.server.access.throttle import network_of

MAX_KEYS = 10_000

HELD = 1024
"""Answers that may wait at once; each holds its request, of strangers 64 KiB at most."""

LONGEST_HOLD_S = 1.0
"""Longest time that an answer waits."""

MAX_STREAMS = 64
"""Calls of one connection to the fleet's port at once: more than `MAX_CALLS` of its client."""

STRANGER_STREAMS = 4
"""Calls of one connection to the enrolment port at once; a device makes one."""


class Buckets:
    """Token buckets by key.

    Args:
        burst: requests that a full bucket allows at once.
        per_s: requests per second that refill it.
        max_keys: buckets that are kept.
    """

    def __init__(self, burst: int, per_s: float, max_keys: int = MAX_KEYS) -> None:
        self._room_s = burst / per_s
        self._each_s = 1.0 / per_s
        self._max_keys = max_keys
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def wait_s(self, key: str, now: float) -> float:
        """Seconds from `now` (monotonic) until this key's bucket has a token; 0 if it has one."""
        return max(0.0, self._full_at.get(key, now) + self._each_s - self._room_s - now)

    def take(self, key: str, now: float) -> float:
        """Take a token; returns the seconds until the bucket is out of debt, 0 without debt.

        The debt is at most `LONGEST_HOLD_S` seconds of tokens: a peer that stops is soon served.
        """
        full_at = max(self._full_at.pop(key, now), now) + self._each_s
        self._full_at[key] = min(full_at, now + self._room_s + LONGEST_HOLD_S)
        while len(self._full_at) > self._max_keys:
            self._full_at.popitem(last=False)
        return max(0.0, self._full_at[key] - self._room_s - now)


class PeerPace:
    """Delays the calls, and the refusals, of peers beyond their rates.

    Attributes:
        calls: of each client; 10 times what a client needs whose rounds take 100 ms.
        refusals: of each client, or address without one.
        lines: of refusals in the log, for each client or address.
        all_lines: of refusals in the log.
        held: answers that wait now.
    """

    def __init__(self) -> None:
        self.calls = Buckets(burst=400, per_s=200.0)
        self.refusals = Buckets(burst=64, per_s=4.0)
        self.held = 0
        self.lines = Buckets(burst=32, per_s=1.0)
        self.all_lines = Buckets(burst=512, per_s=20.0)

    def is_logged(self, peer: str) -> bool:
        """Whether the next refusal of a client or an address gets a line in the log."""
        now = time.monotonic()
        if self.lines.wait_s(peer, now) or self.all_lines.wait_s("", now):
            return False
        self.lines.take(peer, now)
        self.all_lines.take("", now)
        return True

    async def call(self, client: str) -> None:
        """Count a call of a client; wait if it makes too many."""
        await self._hold(self.calls.take(client, time.monotonic()))

    async def refusal(self, peer: str) -> None:
        """Count a refused call of a client or an address; wait if there are too many."""
        await self._hold(self.refusals.take(peer, time.monotonic()))

    async def _hold(self, wait_s: float) -> None:
        if wait_s <= 0 or self.held >= HELD:
            return
        self.held += 1
        try:
            await asyncio.sleep(min(wait_s, LONGEST_HOLD_S))
        finally:
            self.held -= 1


def address_of(peer: str) -> str:
    """The address of a gRPC peer, as the key of a bucket; of IPv6 its /64.

    >>> address_of("ipv4:192.0.2.7:5812"), address_of("ipv6:%5B2001:db8:0:1::7%5D:5812")
    ('192.0.2.7', '2001:db8:0:1::/64')
    """
    host = unquote(peer.partition(":")[2]).rpartition(":")[0].strip("[]")
    return network_of(host) if host else peer
