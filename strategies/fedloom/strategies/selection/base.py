"""The interface of selection policies: candidates and their history in, the clients to ask out.

A policy is a frozen value and a pure function of its occasion. Its randomness comes from a
counter-based generator whose key is (seed, round) and whose counter holds a digest of the
candidates, so a draw does not depend on earlier ones.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox).

Invariants:
    - Only raw 64-bit outputs are used, which NumPy keeps stable across versions (NEP 19), and of
      floating-point only operations with exact IEEE 754 rounding (+, -, ·, /, √): the same history
      gives the same cohort on every machine.
    - The history follows from committed rounds alone, so it is the same after a restart.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.selection.roster import Candidates, digest_of

Places: TypeAlias = NDArray[np.intp]
"""Indices into the candidates, in the order drawn."""

Fact: TypeAlias = Literal["examples", "loss", "seconds", "label", "rounds"]
"""What can be known of a client."""

RECORD = np.dtype(
    [
        ("num_examples", "<i8"),
        ("loss", "<f8"),
        ("seconds", "<f8"),
        ("label", "<f8"),
        ("rounds", "<i8"),
        ("last_round", "<i8"),
    ]
)
"""One client's row of `Known`."""

NOTHING = np.array((0, np.nan, np.nan, np.nan, 0, 0), RECORD)
"""The row of a client without observations."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Known:
    """The history of each of n candidates in committed rounds.

    Attributes:
        num_examples: int64 [n], of its last update; 0 unless it took part.
        loss: float64 [n], its last training loss; NaN unless it reported one.
        seconds: float64 [n], from its offer to its accepted update, the last time. For a client
            that was asked and did not finish: the time waited for it, if that is longer. NaN
            unless measured.
        label: float64 [n], its reported label; NaN without one.
        rounds: int64 [n], committed rounds that counted its update.
        last_round: int64 [n], the number of the last of these; 0 for none.
        latest_round: the last committed round.
    """

    num_examples: NDArray[np.int64]
    loss: NDArray[np.float64]
    seconds: NDArray[np.float64]
    label: NDArray[np.float64]
    rounds: NDArray[np.int64]
    last_round: NDArray[np.int64]
    latest_round: int = 0

    @classmethod
    def from_records(cls, records: NDArray[np.void], latest_round: int = 0) -> "Known":
        """Build from rows of dtype `RECORD`."""
        return cls(
            **{name: records[name] for name in RECORD.fields or ()}, latest_round=latest_round
        )

    @classmethod
    def nothing(cls, count: int) -> "Known":
        """Before the first round."""
        return cls.from_records(np.broadcast_to(NOTHING, count))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Occasion:
    """The input of a draw.

    Attributes:
        names: of the candidates, sorted; not to be changed afterwards.
        known: their history, in the same order.
        seed: the run's, taken modulo 2^64.
        round: the round's number.
        deadline_s: of the round, in seconds.
    """

    names: Sequence[str]
    known: Known
    seed: int
    round: int
    deadline_s: float = float("inf")
    _digest: NDArray[np.uint64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Draws within a round differ by their candidates: the order of those left over must not
        # depend on the numbers of the first draw.
        object.__setattr__(self, "_digest", np.frombuffer(_digest(self.names), "<u8"))

    def __len__(self) -> int:
        return len(self.names)

    def raw(self, count: int, purpose: int = 0, part: int = 0) -> NDArray[np.uint64]:
        """Random 64-bit numbers.

        Args:
            count: of numbers.
            purpose: streams of different purposes are independent.
            part: likewise, for a purpose with several draws.
        """
        key = np.array([self.seed % 2**64, self.round], dtype=np.uint64)
        stream = np.array([0, purpose << 32 | part], dtype=np.uint64)
        counter = np.concatenate([stream, self._digest])
        return np.random.Philox(key=key, counter=counter).random_raw(count)


_DIGESTS: deque[tuple[Sequence[str], bytes]] = deque(maxlen=2)


def _digest(names: Sequence[str]) -> bytes:
    """The digest of the candidates' names.

    They are mostly the same in each round. Comparing them with the last ones takes a fiftieth of
    the time of hashing, because equal names are mostly the same objects.
    """
    if isinstance(names, Candidates):
        return names.digest()
    for place, (known, digest) in enumerate(tuple(_DIGESTS)):
        if known == names:
            if place:
                _DIGESTS.rotate(1)  # keep this one; the other is evicted next
            return digest
    digest = digest_of("\0".join(names).encode())
    _DIGESTS.appendleft((names, digest))
    return digest


class Selection(Protocol):
    """A policy: a frozen dataclass whose fields are its settings."""

    @property
    def name(self) -> str:
        """The name in the registry."""

    @property
    def needs(self) -> frozenset[Fact]:
        """Observations that the policy reads; without any, no history is kept."""

    def choose(self, occasion: Occasion, count: int) -> Places:
        """Draw a cohort, or replacements for members that left.

        Args:
            occasion: candidates and their history.
            count: number to draw, from 0 to len(occasion).

        Returns:
            That many different places, in the order in which to ask them.
        """


def metrics_of(selection: Selection) -> tuple[str, str]:
    """The training metrics that are a client's loss and its label for this policy."""
    return getattr(selection, "loss", "loss"), getattr(selection, "label", "")


def settings_of(selection: Any) -> dict[str, Any]:
    """A policy's settings by name."""
    return {field.name: getattr(selection, field.name) for field in fields(selection)}
