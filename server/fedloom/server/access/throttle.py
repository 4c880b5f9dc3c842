"""Limits failed logins: each failure past the first few doubles the wait.

Failures are counted per name and per address. The wait of a name stays short, so that other people
cannot lock an operator out; that of an address grows long. An attempt counts before it is checked,
so parallel attempts gain nothing. Memory is bounded: the longest unused key is dropped first.
"""

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass

MAX_KEYS = 10_000
FORGET_S = 3600.0
"""After this time without an attempt, a key starts from zero."""


@dataclass(slots=True)
class _Record:
    failures: int
    until: float
    last: float


class Throttle:
    """Waits by key.

    Args:
        free: failures without a wait.
        longest_s: the longest wait, seconds.
        max_keys: keys that are kept.
    """

    def __init__(self, free: int, longest_s: float, max_keys: int = MAX_KEYS) -> None:
        self._free = free
        self._longest_s = longest_s
        self._max_keys = max_keys
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def wait_s(self, key: str, now: float) -> float:
        """Seconds from `now` (monotonic) until this key may try again; 0 if it may."""
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
        """Subtract failures; all if `failures` is None."""
        record = self._records.get(key)
        if record is None:
            return
        record.failures -= record.failures if failures is None else failures
        record.until = record.last
        if record.failures <= 0:
            del self._records[key]


def network_of(address: str) -> str:
    """The key of an address: itself, or for IPv6 its /64, which one household or host has."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)
