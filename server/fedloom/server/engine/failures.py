"""Why members of a round ended without an update: what is the same, and what is the commonest.

One place decides what "the same failure" is, for the engine, the ledger's summaries and alerts.
"""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

FAILED, REFUSED, DECLINED = "failed", "refused", "declined"
LONGEST = 300
"""Characters that are kept of a message."""

KINDS = 5
"""Different failures that a summary lists."""

_KEY = 200
_SAME: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?:[A-Za-z]:)?(?:[\w.~-]*[\\/])+[\w.~-]*"), "<path>"),
    (re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{12,}\b"), "<id>"),
    (re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\b(?:nan|inf)\b)", re.IGNORECASE), "0"),
    (re.compile(r"[(\[][0\s,]*[)\]]"), "(0)"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Members that failed, or declined, in the same way.

    Attributes:
        how: `FAILED`, on the device; `REFUSED`, the update by the server; or `DECLINED`, the task
            by the device.
        count: of these members.
        message: of one of them: an exception's type and text, or a refusal's code and text.
        client: that member.
    """

    how: str
    count: int
    message: str
    client: str

    def view(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@lru_cache(maxsize=1 << 14)  # a status asks again for every failure of a large round
def same(message: str) -> str:
    """A message without what differs between equal failures: numbers, shapes, addresses, paths.

    >>> same("ValueError: shapes (3, 4) and (5,) at 0x7f00 in /home/ana/train.py:12")
    'ValueError: shapes (0) and (0) at <id> in <path>:0'
    >>> same("a loss of nan in round 3") == same("a loss of -1.5e-7 in round 12")
    True
    """
    for pattern, general in _SAME:
        message = pattern.sub(general, message)
    return message[:_KEY]


def key(how: str, message: str) -> tuple[str, str]:
    """Failures with one key are the same; a refusal's code decides alone.

    >>> key("refused", "wrong_shape: tensor 'a'") == key("refused", "wrong_shape: tensor 'b'")
    True
    """
    return how, message.partition(":")[0] if how == REFUSED else same(message[:LONGEST])


def commonest(failures: Iterable[tuple[str, str, str]]) -> list[Failure]:
    """Failures by frequency, the commonest first, at most `KINDS`.

    Args:
        failures: (client, how, message) of each member that failed, or of each that declined.

    >>> [each] = commonest([("a", "failed", "KeyError: 1"), ("b", "failed", "KeyError: 2")])
    >>> each.count, each.message, each.client
    (2, 'KeyError: 1', 'a')
    """
    return _ranked(failures)[:KINDS]


def are_alike(failures: Iterable[tuple[str, str, str]]) -> bool:
    """Whether several members failed, all in one way that has a message."""
    kinds = _ranked(failures)
    return len(kinds) == 1 and kinds[0].count > 1 and bool(kinds[0].message)


def _ranked(failures: Iterable[tuple[str, str, str]]) -> list[Failure]:
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for client, how, message in sorted(failures):  # the same example, whatever their order
        found.setdefault(key(how, message), []).append((client, message))
    kinds = [
        Failure(how=how, count=len(each), message=each[0][1][:LONGEST], client=each[0][0])
        for (how, _), each in found.items()
    ]
    return sorted(kinds, key=lambda kind: -kind.count)


def in_words(kinds: list[Failure], total: int) -> str:
    """The commonest failure with its count, as part of a sentence; empty without failures.

    Args:
        kinds: the commonest first.
        total: members that failed, or declined, in any way.

    >>> kinds = commonest([("a", "failed", "KeyError: 1."), ("b", "failed", "KeyError: 2.")])
    >>> in_words(kinds, 2)
    '2 clients failed: KeyError: 1'
    >>> in_words(kinds, 3)
    '3 clients failed, 2 of them with: KeyError: 1'
    >>> in_words(commonest([("a", "declined", "The battery is low.")]), 1)
    '1 client declined: The battery is low'
    """
    if not kinds:
        return ""
    first = kinds[0]
    clients = "1 client" if total == 1 else f"{total} clients"
    what = f": {first.message.rstrip(': .')}" if first.message else ""
    verb = first.how
    if first.count < total:
        some = f", {first.count} of them with{what}" if what else ""
        return f"{clients} {DECLINED if verb == DECLINED else FAILED}{some}"
    if verb == REFUSED:
        verb = "was refused" if total == 1 else "were refused"
    return f"{clients} {verb}{what}"
