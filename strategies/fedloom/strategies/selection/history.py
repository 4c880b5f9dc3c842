"""The history of clients in committed rounds, which selection policies read.

It follows from the observations of committed rounds alone: a server reads it from its ledger and a
simulation from its rounds, with the same result.

Invariants: a round has one observation of a client; rounds are added in rising order; within
a round the order does not matter.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.selection.base import NOTHING, RECORD, Known


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The observation of one member of a committed round.

    Attributes:
        client: its name.
        counted: whether its update counted. If not, only `seconds` is used.
        num_examples: number of training examples.
        loss: its training loss; NaN if not reported.
        label: likewise, the metric that policies call its label.
        seconds: from its offer to its accepted update, or to the end of the round if it was still
            at work; NaN if not measured.
    """

    client: str
    counted: bool = True
    num_examples: int = 0
    loss: float = math.nan
    label: float = math.nan
    seconds: float = math.nan


class History:
    """The observations of every client in committed rounds."""

    __slots__ = ("_asked", "_latest", "_places", "_rows", "_table")

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        # The row after the last client's is for unknown clients.
        self._table = np.full(64, NOTHING)
        self._latest = 0
        self._asked: tuple[int, list[str]] = (0, [])  # what `_rows` are for
        self._rows = np.empty(0, np.intp)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def latest_round(self) -> int:
        """The number of the last round that was added; 0 for none."""
        return self._latest

    def add(self, round_number: int, observations: Iterable[Observation]) -> None:
        """Add a committed round.

        Raises:
            ValueError: a later round was added before.
        """
        if round_number <= self._latest:
            raise ValueError(
                f"Expected a round after {self._latest}, got {round_number}: add rounds in order."
            )
        self._latest = round_number
        for seen in observations:
            place = self._place(seen.client)  # first: the table may grow by it
            row = self._table[place]
            if not seen.counted:
                # A lower bound of its time, which a later measurement replaces.
                row["seconds"] = np.fmax(row["seconds"], seen.seconds)
                continue
            row["num_examples"], row["loss"], row["label"] = (
                seen.num_examples, seen.loss, seen.label,
            )  # fmt: skip
            if not math.isnan(seen.seconds):
                row["seconds"] = seen.seconds
            row["rounds"] += 1
            row["last_round"] = round_number

    def of(self, names: Sequence[str]) -> Known:
        """The history of these clients, in their order."""
        if not self._places:
            return Known.nothing(len(names))
        asked = (len(self), list(names))
        if asked != self._asked:  # the same round after round; equal strings are the same ones
            places, stranger = self._places, len(self)
            self._rows = np.array([places.get(name, stranger) for name in names], np.intp)
            self._asked = asked
        return Known.from_records(self._table[self._rows], self._latest)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The history as arrays for a file."""
        names = "\0".join(self._places).encode()
        return {
            "names": np.frombuffer(names, np.uint8),
            "table": np.frombuffer(self._table[: len(self)].tobytes(), np.uint8),
            "latest": np.asarray(self._latest, np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "History":
        """Rebuild what `to_arrays` wrote."""
        history = cls()
        history._latest = int(arrays["latest"].reshape(()))
        text = arrays["names"].tobytes().decode()
        table = np.frombuffer(arrays["table"].tobytes(), RECORD)
        for name, row in zip(text.split("\0") if len(table) else (), table, strict=True):
            place = history._place(name)
            history._table[place] = row
        return history

    def _place(self, client: str) -> int:
        place = self._places.setdefault(client, len(self._places))
        if place + 1 >= len(self._table):
            self._table = np.concatenate([self._table, np.full(len(self._table), NOTHING)])
        return place
