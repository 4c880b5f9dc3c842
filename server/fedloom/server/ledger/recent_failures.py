"""SQL about clients' recent failures; `fedloom.server.client_failures` decides."""

import sqlalchemy as sa

from fedloom.server.engine import RoundKind
from fedloom.server.ledger.tables import clients, rounds

EVALUATE = RoundKind.EVALUATE.value


def failed_evaluating() -> sa.ColumnElement[bool]:
    """Whether the latest failure of a client was in a round that only evaluated."""
    at = sa.and_(rounds.c.run == clients.c.failed_run, rounds.c.number == clients.c.failed_round)
    return sa.select(sa.literal(1)).where(at, rounds.c.kind == EVALUATE).exists()


def after_success(those: sa.ColumnElement[bool], *, evaluating: bool) -> sa.Update:
    """A statement: an update of those clients is accepted.

    Args:
        those: condition of rows of `clients`.
        evaluating: whether the update is of a round that only evaluated.
    """
    halved = clients.update().where(those, clients.c.failures > 0)
    if evaluating:
        halved = halved.where(failed_evaluating())
    return halved.values(failures=clients.c.failures // 2)
