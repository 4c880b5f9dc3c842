"""The ledger: the server's durable state, in one SQL database.

SQLite in WAL mode by default, PostgreSQL by URL; SQLAlchemy Core, no ORM. Every public method is
one transaction. Times are seconds since the epoch, UTC.

Invariants: an update is accepted by one row, so it counts once; a run's current model changes in
the transaction that commits the round or rolls the run back.
"""

from fedloom.server.ledger.directory import Directory, Filter
from fedloom.server.ledger.figures import Figures
from fedloom.server.ledger.identities import Identities
from fedloom.server.ledger.lineage import Lineage
from fedloom.server.ledger.members import Members
from fedloom.server.ledger.prunes import Prunes
from fedloom.server.ledger.refusals import Refusals
from fedloom.server.ledger.rollbacks import Point, Rollbacks
from fedloom.server.ledger.rounds import Rounds
from fedloom.server.ledger.runs import RunRows, require_run
from fedloom.server.ledger.store import Row
from fedloom.server.ledger.trained_models import Models
from fedloom.server.ledger.updates import (
    ABANDONED,
    CLOSING,
    COMMITTED,
    REPORTING,
    AcceptedUpdate,
    check_same,
)

__all__ = [
    "ABANDONED",
    "CLOSING",
    "COMMITTED",
    "REPORTING",
    "AcceptedUpdate",
    "Filter",
    "Ledger",
    "Point",
    "Row",
    "check_same",
    "require_run",
]


class Ledger(
    Figures,
    Identities,
    Directory,
    RunRows,
    Rounds,
    Members,
    Rollbacks,
    Models,
    Prunes,
    Lineage,
    Refusals,
):
    """All tables behind methods that are one transaction each; see `Store` for its argument."""
