"""The population from which cohorts are drawn, and its clients that attend.

A draw needs its candidates in sorted order and a digest of their names. With a hundred thousand of
them, sorting, joining and looking up strings cost a simulated round more than its thousand reports;
by place in one roster they cost a third. The draws are the same.

Invariant: candidates taken from a roster are, for a draw, the list of their names.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import overload

import numpy as np
from numpy.typing import NDArray


class Roster:
    """All clients that can ever attend.

    Args:
        names: all different, in any order.

    Attributes:
        names: sorted.
        place_of: of each name in these.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = sorted(names)
        self.place_of = {name: place for place, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def digest(self) -> bytes:
        """Of all names."""
        return digest_of("\0".join(self.names).encode())

    @cached_property
    def rows(self) -> NDArray[np.void] | None:
        """Each name followed by a zero byte; None if names differ in their number of bytes."""
        encoded = [name.encode() + b"\0" for name in self.names]
        lengths = {len(name) for name in encoded}
        return np.frombuffer(b"".join(encoded), f"V{lengths.pop()}") if len(lengths) == 1 else None


class Candidates(Sequence[str]):
    """The names at some places of a roster, as a sequence; looked up one by one.

    Args:
        roster: of the names.
        places: all different; ascending if cohorts are drawn from them.

    Attributes:
        places: as given.
    """

    __slots__ = ("_roster", "places")

    def __init__(self, roster: Roster, places: NDArray[np.intp]) -> None:
        self._roster, self.places = roster, places

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return list(Candidates(self._roster, self.places[index]))
        return self._roster.names[self.places.item(index)]

    def __iter__(self) -> Iterator[str]:
        return map(self._roster.names.__getitem__, self.places.tolist())

    def pick(self, places: NDArray[np.intp]) -> "Candidates":
        """Those at these places among the candidates."""
        return Candidates(self._roster, self.places[places])

    def digest(self) -> bytes:
        """Digest of the names in ascending order; the same as of a list of them."""
        if len(self) == len(self._roster):
            return self._roster.digest
        rows = self._roster.rows
        if rows is None:
            return digest_of("\0".join(self).encode())
        there = np.zeros(len(rows), np.bool_)  # a mask takes a third of the time of indexing
        there[self.places] = True
        return digest_of(rows[there].view(np.uint8)[:-1].data)  # without copies of a megabyte


class Attendance:
    """The clients of a roster that attend at one time.

    Args:
        roster: of all clients.
        there: bool, shape (names,), in the roster's order; not changed here.
    """

    __slots__ = ("roster", "there")

    def __init__(self, roster: Roster, there: NDArray[np.bool_]) -> None:
        self.roster, self.there = roster, there

    def __len__(self) -> int:
        return int(np.count_nonzero(self.there))

    def __iter__(self) -> Iterator[str]:
        return iter(Candidates(self.roster, np.flatnonzero(self.there)))

    def without(self, names: Iterable[str]) -> "Attendance":
        """Those that are not among these names, which are of the roster."""
        there = self.there.copy()
        there[[self.roster.place_of[name] for name in names]] = False
        return Attendance(self.roster, there)


def digest_of(joined: bytes | memoryview) -> bytes:
    r"""Digest of names in UTF-8 with `\0` between them; 16 bytes."""
    return blake2b(joined, digest_size=16).digest()
