"""The queue of runs that wait for others to end, in the ledger."""

from collections import Counter
from collections.abc import Iterable

from fedloom.server.ledger import Ledger
from fedloom.server.ledger.rows import RunRow
from fedloom.server.planning.fair_share import Queued, positions, to_start

QUEUED = "queued"
"""State of a run that waits for its start."""


def due(ledger: Ledger, running: Iterable[str], most: int) -> list[str]:
    """Queued runs that start now, in order.

    Args:
        ledger: the server's.
        running: the study of each running run.
        most: running runs in each study; 0 for no limit.
    """
    queued = [_queued(row) for row in ledger.list_runs((QUEUED,))]
    return to_start(queued, Counter(running), most)


def places(rows: Iterable[RunRow]) -> dict[str, int]:
    """The place of each queued run in the queue of its study, from 1."""
    return positions(_queued(row) for row in rows if row.state == QUEUED)


def _queued(row: RunRow) -> Queued:
    return Queued(run=row.id, study=row.study or "", priority=row.rank[0], submitted=row.created_at)
