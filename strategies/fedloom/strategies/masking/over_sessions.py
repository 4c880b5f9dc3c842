"""Robust rules over the means of masking sessions, of which no single update is known.

A rule compares sessions in place of updates: of 1,000 clients in sessions of 64 it sees 16 means.
That costs robustness. One client that lies moves the mean of its whole session, so f of them spoil
up to f sessions, however many members these have; a rule that bears fewer than half of its inputs
needs more than 2f sessions.

Legend: m sessions, f of them with a client that lies.

References:
    Yin et al. 2018, https://arxiv.org/abs/1803.01498 (median, trimmed mean).
    Chen, Su, Xu 2017, Distributed Statistical Machine Learning in Adversarial Settings,
    https://arxiv.org/abs/1705.05491, section 2 (the median of means of batches).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import numpy as np

from fedloom.strategies.aggregation import Aggregation, NotedMeans, TooFewUpdatesError, Updates
from fedloom.strategies.exact.partial import BLOCK, Floats, Key, Params, Partial, TensorSpec
from fedloom.strategies.robust.base import Covered

LEAST_SESSIONS: Final = 3
"""Of two sessions, none can be told to be the one that lies."""
RULES: Final = ("median", "trimmed_mean", "norm_bounding", "centered_clipping")


@dataclass(frozen=True, slots=True)
class OverSessions:
    """A robust rule whose inputs are the means of sessions.

    Attributes:
        rule: one of `RULES`.
    """

    rule: Aggregation

    needs: ClassVar[Literal["sum", "sessions", "each"]] = "sessions"

    def __post_init__(self) -> None:
        if self.rule.name not in RULES:
            raise ValueError(
                f"Expected one of {', '.join(RULES)} over sessions, got {self.rule.name}. Change "
                "aggregation.name, or leave out aggregation.over."
            )
        if self.rule.settings().get("fraction") == 0:
            raise ValueError(
                "Expected fraction > 0 with trimmed_mean over sessions, got 0: it leaves out none."
            )

    @property
    def name(self) -> str:
        """The name of the rule."""
        return self.rule.name

    @property
    def remembers(self) -> bool:
        """Whether the rule reads the last round's means."""
        return self.rule.remembers

    @property
    def weighted(self) -> bool:
        """Whether sessions count by the sums of their weights."""
        return self.rule.weighted

    @property
    def min_updates(self) -> int:
        """The fewest sessions: of a trimmed mean so many that one is left out at each end."""
        least = max(LEAST_SESSIONS, self.rule.min_updates)
        cut = self.rule.settings().get("fraction")
        return least if not cut else max(least, math.ceil(1 / cut - 1e-9))

    def tolerated(self, sessions: int) -> int:
        """Return f, the most of so many sessions that may have clients that lie.

        Each coordinate of the result is then between those of other sessions. 0 for rules that cut
        lengths: they limit each session, and leave out none.
        """
        if self.name == "trimmed_mean":
            return math.floor(float(self.rule.settings()["fraction"]) * sessions + 1e-9)
        return (sessions - 1) // 2 if self.name == "median" else 0

    def settings(self) -> dict[str, Any]:
        """Return the settings that rebuild this aggregation."""
        return {**self.rule.settings(), "over": "sessions"}

    def reduce(self, updates: Updates, last: Params) -> NotedMeans:
        """Return the means of a round from those of its sessions; see `Aggregation.reduce`.

        Raises:
            TooFewUpdatesError: too few sessions.
        """
        if 0 < len(updates.clients) < self.min_updates:
            raise TooFewUpdatesError(
                f"Expected at least {self.min_updates} sessions for {self.name} over sessions, got "
                f"{len(updates.clients)}. Raise cohort.quorum, or lower masking.group."
            )
        return self.rule.reduce(updates, last)


class SessionUpdates(Updates):
    """The means of sessions, as updates that a rule reads block by block.

    Args:
        sessions: the sum of each, narrow, and the sum of its weights; in the order of their
            numbers, in which rules add.
    """

    def __init__(self, sessions: Sequence[tuple[Partial, float]]) -> None:
        self._sessions = list(sessions)
        self._clients = [f"session-{number:04}" for number in range(len(sessions))]

    @property
    def clients(self) -> Sequence[str]:
        """Names of the sessions, sorted."""
        return self._clients

    @property
    def weights(self) -> Floats:
        """The sum of the weights of each, float64 [m]."""
        return np.array([weight for _, weight in self._sessions], np.float64)

    @property
    def specs(self) -> Mapping[Key, TensorSpec]:
        """The tensors that updates may hold."""
        return self._sessions[0][0].specs if self._sessions else {}

    def covered(self, key: Key) -> bool:
        """Return whether any session covers this tensor."""
        return any(total.covered(key) for total, _ in self._sessions)

    def ranges(self, key: Key) -> Iterator[tuple[int, int]]:
        """Yield `(start, stop)` that tile the tensor."""
        size = self.specs[key].size
        for start in range(0, size, BLOCK):
            yield start, min(start + BLOCK, size)

    def block(self, key: Key, start: int, stop: int) -> tuple[Floats, Covered]:
        """Return the means of the flat coordinates `start:stop`; see `Updates.block`."""
        found = [total.mean_block(key, start, stop) for total, _ in self._sessions]
        means = np.stack([mean for mean, _ in found])
        if all(there is True for _, there in found):
            return means, True
        there = [np.broadcast_to(np.asarray(each), (stop - start,)) for _, each in found]
        return means, np.stack(there)

    def one(self, number: int, key: Key) -> Floats | None:
        """Return a whole tensor of one session's mean; see `Updates.one`."""
        total, _ = self._sessions[number]
        return total.mean_block(key, 0, self.specs[key].size)[0] if total.covered(key) else None
