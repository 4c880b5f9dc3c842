"""Which devices a masked run draws last, for what they did in its sessions: pure functions.

Nobody can be convicted of an implausible sum, since each update is hidden in it: all members of its
session are marked. Sessions are drawn anew in each round, so who spoils them collects marks faster
than its peers do. Only the run's own sessions count: the limits of another may be too tight.

Such a device is left out wherever the others suffice. It is drawn where they do not: a round opens
for as many clients as its goal, and a run that waits for one that it leaves out would stand still.

Invariant: a round is judged by the sessions of earlier rounds alone, so it is drawn alike after a
restart.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

ROUNDS: Final = 100
"""Rounds of a run whose sessions count, the latest ones."""
MARKS: Final = 3
"""Fewest marks of a device that is drawn last for them."""
RATE: Final = 2
"""Such a device has at least so many times the marks of all members, for each of its sums."""
PAUSE: Final = 20
"""Rounds after its latest mark or drop-out in which a device is drawn last."""
DROP_OUTS: Final = 3
"""Sessions in a row that a device drawn last for them has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSession:
    """A session that is over, with what the conduct of its members is judged by.

    Attributes:
        round: its number.
        masked: members whose masked bodies came in time.
        dropped: members that sent no shares or no body while the session waited for them.
        summed: whether its sum was known, plausible or not.
        implausible: whether the sum was implausible.
    """

    round: int
    masked: frozenset[str]
    dropped: frozenset[str]
    summed: bool
    implausible: bool


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why a device is drawn last of all.

    Attributes:
        marks: of its sums, those that were implausible.
        sums: that it was in.
    """

    marks: int
    sums: int


@dataclass(frozen=True, slots=True)
class Conduct:
    """The devices that a round draws after all others.

    Attributes:
        dropped: device → sessions that it left, in a row. These come after the rest.
        marked: device → why. These come last.
    """

    dropped: Mapping[str, int] = field(default_factory=dict)
    marked: Mapping[str, Suspicion] = field(default_factory=dict)


def conduct(sessions: Iterable[PastSession], before: int) -> Conduct:
    """Judge the members of a run's sessions.

    Args:
        sessions: of the run, by round.
        before: number of the round that is to be drawn.
    """
    counted = [each for each in sessions if before - ROUNDS <= each.round < before]
    return Conduct(_dropped(counted, before - PAUSE), _marked(counted, before - PAUSE))


def _dropped(sessions: Iterable[PastSession], since: int) -> dict[str, int]:
    in_a_row: Counter[str] = Counter()
    latest: dict[str, int] = {}
    for each in sessions:
        in_a_row.update(each.dropped)
        latest.update(dict.fromkeys(each.dropped, each.round))
        for client in in_a_row.keys() & each.masked:
            del in_a_row[client]
    lately = (c for c, count in in_a_row.items() if count >= DROP_OUTS and latest[c] >= since)
    return {client: in_a_row[client] for client in sorted(lately)}


def _marked(sessions: Sequence[PastSession], since: int) -> dict[str, Suspicion]:
    spoiled = [each for each in sessions if each.implausible]
    marks = Counter(client for each in spoiled for client in each.masked)
    latest = {client: each.round for each in spoiled for client in each.masked}
    suspects = {c for c, count in marks.items() if count >= MARKS and latest[c] >= since}
    if not suspects:
        return {}
    summed = [each.masked for each in sessions if each.summed]
    all_marks, all_sums = marks.total(), sum(map(len, summed))
    sums = Counter(client for masked in summed for client in masked & suspects)
    return {
        client: Suspicion(marks[client], sums[client])
        for client in sorted(suspects)
        if marks[client] * all_sums >= RATE * all_marks * sums[client]
    }
