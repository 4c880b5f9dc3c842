"""What selection knows of clients, read from the ledger's committed rounds.

Invariant: a run's history follows from the ledger alone: adding rounds one by one as they are
committed gives the same history as adding all of them after a restart.
"""

from collections.abc import Iterable
from itertools import groupby

from fedloom.server.engine import Phase
from fedloom.server.ledger.rows import ObservationRow
from fedloom.server.planning.observations import CohortMember, observe
from fedloom.server.planning.round_result import ClientMetrics
from fedloom.strategies.selection import History, Selection


def add_rounds(history: History, rows: Iterable[ObservationRow], policy: Selection) -> None:
    """Add committed rounds, which the history does not have, from rows of `Ledger.observations`.

    The policy names the metrics that are a client's loss and label.
    """
    for number, members in groupby(rows, key=lambda row: row.round):
        history.add(number, observe(map(_member, members), policy))


def _member(row: ObservationRow) -> CohortMember:
    return CohortMember(
        client=row.client,
        phase=Phase(row.phase),
        counted=row.accepted_at is not None,
        training=ClientMetrics(**(row.training or {})),
        offered_at=row.offered_at,
        accepted_at=row.accepted_at,
        closed_at=row.closed_at,
    )
