"""How often somebody may fail to log in: each failure past the first few doubles the wait.

Counted for each name and for each address. A name's wait stays short, because a stranger must not
lock an operator out; an address's grows long. An attempt counts before it is checked, so that many
at once are no way around. Memory is bounded: what was longest quiet is forgotten first.
"""

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass

MAX_KEYS = 10_000
FORGET_S = 3600.0
"""Quiet for so long, and a key begins anew."""


@dataclass(slots=True)
class _Record:
    failures: int
    until: float
    last: float


class Throttle:
    """Waits by key.

    Args:
        free: failures that cost nothing.
        longest_s: the longest wait.
        max_keys: how many keys are remembered.
    """

    def __init__(self, free: int, longest_s: float, max_keys: int = MAX_KEYS) -> None:
        self._free = free
        self._longest_s = longest_s
        self._max_keys = max_keys
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def wait_s(self, key: str, now: float) -> float:
        """How long from `now` (monotonic seconds) until this key may try again; 0 if it may."""
        record = self._records.get(key)
        return max(0.0, record.until - now) if record else 0.0

    def count(self, key: str, now: float) -> None:
        """Count an attempt as a failure."""
        record = self._records.pop(key, None)
        if record is None or now - record.last > FORGET_S:
            record = _Record(0, now, now)
        record.failures += 1
        record.last = now
        doublings = record.failures - self._free
        if doublings > 0:
            record.until = now + min(self._longest_s, 2.0 ** min(doublings - 1, 32))
        self._records[key] = record
        while len(self._records) > self._max_keys:
            self._records.popitem(last=False)

    def forgive(self, key: str, failures: int | None = None) -> None:
        """Take failures back; all of them if not said how many."""
        record = self._records.get(key)
        if record is None:
            return
        record.failures -= record.failures if failures is None else failures
        record.until = record.last
        if record.failures <= 0:
            del self._records[key]


def network_of(address: str) -> str:
    """What stands for an address: itself, or the /64 that one household or host has of IPv6."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)
