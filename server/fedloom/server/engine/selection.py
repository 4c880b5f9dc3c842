"""The draw of clients for a round, by seed, round number, candidates and their history.

The policies are in `fedloom.strategies.selection`; here they become the `select` of a round.

Invariant: the history does not change while a round is open, so a restored round draws the same
replacements.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.selection import Candidates, History, Known, Occasion, Selection, Uniform
from fedloom.strategies.selection.base import Places
from fedloom.strategies.selection.roster import Attendance

Select = Callable[[Sequence[str], int], Sequence[str]]
"""(candidates in sorted order, count) -> that many of them, in the order drawn.

With `SampledConfig.coins` the count is that of all candidates, and any number of them is drawn.
"""


def uniform(seed: int, round_number: int) -> Select:
    """A draw without replacement in which every subset and order is equally likely.

    Args:
        seed: the run's, taken modulo 2^64.
        round_number: the round's, from 0.

    Returns:
        A pure function: the same candidates and count give the same draw.
    """
    return select_by(Uniform(), seed, round_number)


def select_by(
    policy: Selection,
    seed: int,
    round_number: int,
    history: History | None = None,
    deadline_s: float = inf,
) -> Select:
    """The draw of a round by a policy.

    Args:
        policy: of the selection.
        seed: the run's, taken modulo 2^64.
        round_number: the round's, from 0.
        history: of the clients in committed rounds; None if the policy needs none.
        deadline_s: of the round, in seconds.

    Returns:
        A pure function while the history does not change.
    """

    def select(candidates: Sequence[str], count: int) -> Sequence[str]:
        known = Known.nothing(len(candidates))
        if history is not None and policy.needs:
            known = history.of(candidates)
        occasion = Occasion(
            names=candidates, known=known, seed=seed, round=round_number, deadline_s=deadline_s
        )
        return _at(candidates, policy.choose(occasion, count))

    return select


def by_coins(drawn: Callable[[Sequence[str]], Places]) -> Select:
    """A draw in which each candidate has a coin of its own.

    Args:
        drawn: returns the places of those whose coin draws them; the coin of a candidate does not
            depend on the others.

    Returns:
        A draw of any number of candidates, at most the count that is asked for.
    """

    def select(candidates: Sequence[str], _: int) -> Sequence[str]:
        return _at(candidates, drawn(candidates))

    return select


def drawn_last(select: Select, last: Container[str]) -> Select:
    """A draw in which these clients come after all others; the same draw where none of them is.

    Args:
        select: draws among those that come first, and then among these.
        last: clients.
    """

    def draw(candidates: Sequence[str], count: int) -> Sequence[str]:
        ahead = [client for client in candidates if client not in last]
        if len(ahead) in (0, len(candidates)):
            return select(candidates, count)
        if count <= len(ahead):
            return select(ahead, count)
        behind = [client for client in candidates if client in last]
        return [*select(ahead, len(ahead)), *select(behind, count - len(ahead))]

    return draw


def _at(candidates: Sequence[str], places: Places) -> Sequence[str]:
    if isinstance(candidates, Candidates):
        return candidates.pick(places)
    return [candidates[place] for place in places.tolist()]


_AHEAD = 64
"""Names of drawn clients that are looked up at a time."""


class CandidatePool:
    """The idle clients outside a cohort: draws the first members and their replacements.

    An eighth of the pool is drawn at a time as replacements, so that each costs amortised O(1).
    The draw does not depend on the order in which the candidates attended.

    Attributes:
        ahead: some of those that `pop` will return next if they stay idle, the next one last.
    """

    __slots__ = ("_drawn", "_idle", "_select", "_turn", "ahead")

    def __init__(self, select: Select, idle: Iterable[str] = ()) -> None:
        self._select = select
        self._idle = _OfRoster(idle) if isinstance(idle, Attendance) else _Named(idle)
        self._drawn: Sequence[str] = ()  # clients that left since are skipped
        self._turn = 0  # of the next among them that is not in `ahead`
        self.ahead: list[str] = []

    def __len__(self) -> int:
        return len(self._idle)

    def __iter__(self) -> Iterator[str]:
        return iter(self._idle)

    def __contains__(self, client: str) -> bool:
        return client in self._idle

    def draw_by(self, select: Select) -> None:
        """Use another draw from now on."""
        self._select, self._drawn, self._turn, self.ahead = select, (), 0, []

    def add(self, client: str) -> None:
        """Add an idle client."""
        self._idle.add(client)

    def discard(self, client: str) -> None:
        """Remove a client, if it is in the pool."""
        self._idle.discard(client)

    def follow(self, moves: Iterable[tuple[int, bool]]) -> None:
        """Add and remove clients of a pool that was built from an `Attendance`, in this order.

        Args:
            moves: each client's place in the roster, and whether it comes.
        """
        assert isinstance(self._idle, _OfRoster)
        self._idle.follow(moves)

    def take(self, count: int | None) -> Sequence[str]:
        """Draw a cohort of `count` idle clients; None for as many as the draw returns, or none.

        Raises:
            ValueError: the selection function did not return `count` different candidates.
        """
        chosen = self._draw(count)
        self._idle.discard_all(chosen)
        return chosen

    def pop(self) -> str | None:
        """Draw one idle client; None when the pool is empty.

        Raises:
            ValueError: as `take`.
        """
        idle = self._idle
        while idle:
            if not self.ahead:
                if self._turn >= len(self._drawn):
                    self._drawn, self._turn = self._draw(-(-len(idle) // 8)), 0
                self.ahead = list(self._drawn[self._turn : self._turn + _AHEAD])[::-1]
                self._turn += _AHEAD
            client = self.ahead.pop()
            if client in idle:
                idle.discard(client)
                return client
        return None

    def _draw(self, count: int | None) -> Sequence[str]:
        chosen = self._select(self._idle.candidates(), len(self._idle) if count is None else count)
        wanted = len(chosen) if count is None else count
        if len(chosen) != wanted or not self._idle.are_different(chosen):
            raise ValueError(f"Expected {wanted} different candidates, got {list(chosen[:10])}.")
        return chosen


class _Named:
    """Idle clients by name."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str]) -> None:
        # A dict keeps the order: sorting names that came sorted is O(n). Copying a dict takes a
        # quarter of the time of building one: 1 ms for 100,000 clients, each round.
        self._names: dict[str, None] = (
            names.copy() if isinstance(names, dict) else dict.fromkeys(names)
        )

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, client: object) -> bool:
        return client in self._names

    def add(self, client: str) -> None:
        self._names[client] = None

    def discard(self, client: str) -> None:
        self._names.pop(client, None)

    def discard_all(self, chosen: Sequence[str]) -> None:
        for client in chosen:
            self.discard(client)

    def candidates(self) -> Sequence[str]:
        return sorted(self._names)

    def are_different(self, chosen: Sequence[str]) -> bool:
        """Whether the chosen clients are idle and none occurs twice."""
        different = set(chosen)
        return len(different) == len(chosen) and not different.difference(self._names)


class _OfRoster:
    """Idle clients of a roster, by place: nothing is sorted, and no name is copied."""

    __slots__ = ("_count", "_place_of", "_roster", "_there")

    def __init__(self, attendance: Attendance) -> None:
        self._roster, self._place_of = attendance.roster, attendance.roster.place_of
        self._there = bytearray(attendance.there.tobytes())  # an item costs a third of an array's
        self._count = self._there.count(1)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return iter(self.candidates())

    def __contains__(self, client: str) -> bool:
        return self._there[self._place_of[client]] == 1

    def add(self, client: str) -> None:
        place = self._place_of[client]
        self._count += 1 - self._there[place]
        self._there[place] = 1

    def discard(self, client: str) -> None:
        place = self._place_of[client]
        self._count -= self._there[place]
        self._there[place] = 0

    def follow(self, moves: Iterable[tuple[int, bool]]) -> None:
        there, count = self._there, self._count  # 0.1 µs a client; by name it takes 0.5
        for place, comes in moves:
            count += comes - there[place]
            there[place] = comes
        self._count = count

    def discard_all(self, chosen: Sequence[str]) -> None:
        """Remove idle clients, all different."""
        np.frombuffer(self._there, np.bool_)[self._places(chosen)] = False
        self._count -= len(chosen)

    def candidates(self) -> Sequence[str]:
        return Candidates(self._roster, np.flatnonzero(np.frombuffer(self._there, np.bool_)))

    def are_different(self, chosen: Sequence[str]) -> bool:
        """Whether the chosen clients are idle and none occurs twice."""
        there = np.frombuffer(self._there, np.bool_)
        places = self._places(chosen)
        if (places < 0).any() or not there[places].all():
            return False
        picked = np.zeros(len(there), np.bool_)
        picked[places] = True
        return int(np.count_nonzero(picked)) == len(chosen)

    def _places(self, chosen: Sequence[str]) -> NDArray[np.intp]:
        """Places in the roster; -1 of strangers."""
        if isinstance(chosen, Candidates):
            return chosen.places  # a lookup by name takes 0.5 µs (cache miss)
        return np.array([self._place_of.get(client, -1) for client in chosen], np.intp)
