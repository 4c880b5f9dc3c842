"""What selection knows of clients, read from the ledger's committed rounds.

Invariant: a run's history follows from the ledger alone. Rounds are told one by one as they are
committed, or all at once after a restart, by the same query.
"""

import math
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from fedloom.server.engine import Phase
from fedloom.server.ledger import Row
from fedloom.strategies.selection import (
    History,
    Observation,
    Selection,
)
from fedloom.strategies.selection.base import metrics_of

_GAVE_UP = frozenset({Phase.DECLINED.value, Phase.FAILED.value, Phase.REFUSED.value})


def tell(history: History, rows: Iterable[Row], policy: Selection) -> None:
    """Add committed rounds to a history.

    Args:
        history: of the run.
        rows: as `Ledger.observations` gives them, of rounds that it has not been told of.
        policy: says which metrics are a client's loss and label.
    """
    loss, label = metrics_of(policy)
    for number, members in groupby(rows, key=lambda row: int(row["round"])):
        history.add(number, [_observation(row, loss, label) for row in members])


def _observation(row: Row, loss: str, label: str) -> Observation:
    training: dict[str, Any] = row["training"] or {}
    values = training.get("values", {})
    return Observation(
        client=row["client"],
        counted=row["accepted_at"] is not None,
        num_examples=training.get("num_examples", 0),
        loss=values.get(loss, math.nan),
        label=values.get(label, math.nan),
        seconds=_seconds(row),
    )


def _seconds(row: Row) -> float:
    """From the offer to the update, or to the end of a round that waited for it in vain."""
    until = row["accepted_at"]
    if until is None and row["phase"] not in _GAVE_UP:
        until = row["closed_at"]
    if until is None or row["offered_at"] is None:
        return math.nan
    return max(0.0, float(until - row["offered_at"]))  # a wall clock may be set back
