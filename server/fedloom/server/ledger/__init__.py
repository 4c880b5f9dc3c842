"""The ledger: the server's durable state, in one SQL database.

SQLite in WAL mode by default, PostgreSQL by URL; SQLAlchemy Core, no ORM. Every public method is
one transaction. Times are seconds since the epoch, UTC.

Invariants: an update is accepted by one row, so it counts once; a run's current model changes in
the transaction that commits the round or rolls the run back.
"""

from fedloom.server.ledger.directory import Directory
from fedloom.server.ledger.directory import Filter as Filter
from fedloom.server.ledger.figures import Figures
from fedloom.server.ledger.identities import Identities
from fedloom.server.ledger.last_parts import LastParts
from fedloom.server.ledger.lineage import Lineage
from fedloom.server.ledger.lists.client_values import ClientValues
from fedloom.server.ledger.lists.lists import Lists
from fedloom.server.ledger.masking.blames import MaskingBlames
from fedloom.server.ledger.masking.bodies import MaskedBodies
from fedloom.server.ledger.members import Members
from fedloom.server.ledger.messages import Messages
from fedloom.server.ledger.moving.copies import Copies
from fedloom.server.ledger.objects.stored_bodies import StoredBodies
from fedloom.server.ledger.objects.stored_models import StoredModels
from fedloom.server.ledger.privacy.budgets import PrivacyBudgets
from fedloom.server.ledger.privacy.populations import Populations
from fedloom.server.ledger.prunes import Prunes
from fedloom.server.ledger.refusals import Refusals
from fedloom.server.ledger.replicas.gate_queues import GateQueues
from fedloom.server.ledger.replicas.wrapped_keys import WrappedKeys
from fedloom.server.ledger.rollbacks import Point as Point
from fedloom.server.ledger.rollbacks import Rollbacks
from fedloom.server.ledger.rounds import Rounds
from fedloom.server.ledger.runs import RunRows
from fedloom.server.ledger.runs import require_run as require_run
from fedloom.server.ledger.store import Row as Row
from fedloom.server.ledger.trained_models import Models
from fedloom.server.ledger.updates import ABANDONED as ABANDONED
from fedloom.server.ledger.updates import CLOSING as CLOSING
from fedloom.server.ledger.updates import COMMITTED as COMMITTED
from fedloom.server.ledger.updates import REPORTING as REPORTING
from fedloom.server.ledger.updates import SENT as SENT
from fedloom.server.ledger.updates import AcceptedUpdate as AcceptedUpdate
from fedloom.server.ledger.updates import check_same as check_same


class Ledger(
    Figures,
    Identities,
    Directory,
    RunRows,
    MaskingBlames,
    MaskedBodies,
    Rounds,
    Members,
    Messages,
    Rollbacks,
    Models,
    Prunes,
    LastParts,
    Lineage,
    Refusals,
    Populations,
    PrivacyBudgets,
    Lists,
    ClientValues,
    StoredModels,
    StoredBodies,
    WrappedKeys,
    GateQueues,
    Copies,
):
    """All tables behind methods that are one transaction each; see `Store` for its argument."""
