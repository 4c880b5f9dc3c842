"""Who is asked: a draw that depends on the seed, the round and the candidates, and nothing else.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox, a counter-based
generator: its key is (seed, round), so that no round's draw depends on how many came before).

Invariant: only raw 64-bit outputs are used, which NumPy keeps stable across versions (NEP 19), so
the same seed draws the same cohort on every machine.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

import numpy as np

Select = Callable[[Sequence[str], int], list[str]]
"""(candidates in sorted order, count) -> that many of them, in the order drawn."""


def uniform(seed: int, round_number: int) -> Select:
    """A draw without replacement in which every subset and order is equally likely.

    Args:
        seed: the run's, taken modulo 2^64.
        round_number: the round's, from 0.

    Returns:
        A pure function: the same candidates and count give the same draw.
    """
    key = np.array([seed % 2**64, round_number], dtype=np.uint64)

    def select(candidates: Sequence[str], count: int) -> list[str]:
        # Draws within a round differ by their candidates: those left over from the first draw
        # must not be ordered by the very numbers that left them over.
        digest = blake2b("\0".join(candidates).encode(), digest_size=16).digest()
        counter = np.concatenate([np.zeros(2, np.uint64), np.frombuffer(digest, "<u8")])
        numbers = np.random.Philox(key=key, counter=counter).random_raw(len(candidates))
        order = np.argsort(numbers, kind="stable")[:count]
        return [candidates[place] for place in order.tolist()]

    return select


class Bench:
    """The idle clients outside a cohort: who is chosen first, and who takes a free place next.

    Places are drawn for all who wait at once and handed out one by one, so that a replacement
    costs O(log n) amortised, and the order of attendance does not matter among those who wait.
    """

    __slots__ = ("_drawn", "_fresh", "_idle", "_select")

    def __init__(self, select: Select, idle: Iterable[str] = ()) -> None:
        self._select = select
        self._idle = set(idle)
        self._fresh = set(self._idle)  # idle and not yet drawn
        self._drawn: list[str] = []  # last one first; may hold clients that have left

    def __len__(self) -> int:
        return len(self._idle)

    def add(self, client: str) -> None:
        """Count a client among the idle."""
        self._idle.add(client)
        self._fresh.add(client)

    def discard(self, client: str) -> None:
        """Forget a client, if it was there."""
        self._idle.discard(client)
        self._fresh.discard(client)

    def take(self, count: int) -> list[str]:
        """Draw a cohort of `count` idle clients.

        Raises:
            ValueError: the selection function did not return `count` different candidates.
        """
        chosen = self._draw(self._idle, count)
        self._idle.difference_update(chosen)
        self._fresh.difference_update(chosen)
        return chosen

    def pop(self) -> str | None:
        """The idle client whose turn it is, or None when nobody is idle.

        Raises:
            ValueError: the selection function did not return each candidate once.
        """
        while self._idle:
            if not self._drawn:
                self._drawn = self._draw(self._fresh, len(self._fresh))[::-1]
                self._fresh.clear()
            client = self._drawn.pop()
            if client in self._idle:
                self.discard(client)
                return client
        return None

    def _draw(self, candidates: set[str], count: int) -> list[str]:
        chosen = self._select(sorted(candidates), count)
        different = set(chosen)
        if len(chosen) != count or len(different) != count or not different <= candidates:
            raise ValueError(f"Expected {count} different candidates, got {chosen[:10]}.")
        return chosen
