"""Paces what one peer may ask: a token bucket for each client and for each address of a stranger.

A peer beyond its rate is answered later. Its streams stay open meanwhile, so that the limit of
streams on a connection stops it, and its calls take no time that rounds need.
"""

import asyncio
import time
from urllib.parse import unquote

from fedloom.server.access.throttle import network_of
from fedloom.server.access.token_buckets import LONGEST_HOLD_S, REFUSED_AFTER_S, Buckets

HELD = 1024
"""Answers that may wait at once; each holds its request, of strangers 64 KiB at most."""

MAX_STREAMS = 64
"""Calls of one connection to the fleet's port at once: more than `MAX_CALLS` of its client."""

STRANGER_STREAMS = 4
"""Calls of one connection to the enrolment port at once; a device makes one."""


class PeerPace:
    """Delays the calls, and the refusals, of peers beyond their rates.

    Attributes:
        calls: of each client; 10 times what a client needs whose rounds take 100 ms.
        streams: of each client that attends again; a client needs one.
        messages: of each client on its streams; a task takes a few a second.
        refusals: of each client, or address without one.
        lines: of refusals in the log, for each client or address.
        all_lines: of refusals in the log.
        held: answers that wait now.
    """

    def __init__(self) -> None:
        self.calls = Buckets(burst=128, per_s=200.0)
        self.streams = Buckets(burst=8, per_s=0.5)
        self.messages = Buckets(burst=200, per_s=50.0)
        self.refusals = Buckets(burst=32, per_s=4.0)
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

    async def stream(self, client: str) -> None:
        """Count a stream of a client that attends; wait if it opens too many."""
        await self._hold(self.streams.take(client, time.monotonic()))

    async def message(self, client: str) -> None:
        """Count a message of a client on its stream; wait if it sends too many."""
        await asyncio.sleep(self.messages.take(client, time.monotonic()))

    async def refusal(self, peer: str) -> None:
        """Count a refused call of a client or an address; wait if there are too many."""
        wait_s = self.refusals.take(peer, time.monotonic())
        await self._hold(wait_s if wait_s < LONGEST_HOLD_S else REFUSED_AFTER_S)

    async def _hold(self, wait_s: float) -> None:
        if wait_s <= 0 or self.held >= HELD:
            return
        self.held += 1
        try:
            await asyncio.sleep(wait_s)
        finally:
            self.held -= 1


class SharedRate:
    """A rate that transfers share; each waits in turn.

    Args:
        bytes_per_s: of all together.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    async def passed(self, size_bytes: int) -> None:
        """Count bytes that were transferred, and wait for as long as they take at this rate."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + size_bytes / self._bytes_per_s
        await asyncio.sleep(self._free_at - now)


def address_of(peer: str) -> str:
    """The address of a gRPC peer, as the key of a bucket; of IPv6 its /64.

    >>> address_of("ipv4:192.0.2.7:5812"), address_of("ipv6:%5B2001:db8:0:1::7%5D:5812")
    ('192.0.2.7', '2001:db8:0:1::/64')
    """
    host = unquote(peer.partition(":")[2]).rpartition(":")[0].strip("[]")
    return network_of(host) if host else peer
