"""The population of each run: the clients that its rounds could draw.

A run without sampling could draw whom it drew: its cohorts. With a secret draw all candidates
count, also those that were not drawn.

Invariants: a client is in the population before it is offered a task, in the transaction that opens
the round; rows are never changed or deleted. What a run released follows from its row, which is
never deleted either. So what a client has spent survives the pruning of models, and its own
revocation and return under the same name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from fedloom.server.ledger.rows import RunRow
from fedloom.server.ledger.store import Store, its_key, read
from fedloom.server.ledger.tables import clients, labels, populations, runs

_BETWEEN = "/"
"""Between ids of runs, which do not have it."""

_PIECE = 10_000
"""Rows of one insert."""

_NAMES = sa.select(populations.c.client).filter_by(**its_key("run"))
_ADD = populations.insert()


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationFacts:
    """What the ledger knows about the populations of runs, at one time.

    Attributes:
        runs: all, oldest first.
        member_of: ids of the runs of each client that is in a population.
        drawable: active clients that are not on hold, by name.
        labelled: clients that operators gave each label that was asked for, by that label.
    """

    runs: Sequence[RunRow]
    member_of: dict[str, frozenset[str]]
    drawable: frozenset[str]
    labelled: dict[str, frozenset[str]]


class Populations(Store):
    """Methods about the populations of runs."""

    def population_facts(self, asked: Iterable[str] = (), client: str = "") -> PopulationFacts:
        """Read the populations of all runs, in one transaction.

        Args:
            asked: labels, as name or name=value.
            client: read the runs of this one only; all if empty.
        """
        # One row a client: a fifth of the time of one a client and run.
        of = sa.func.aggregate_strings(populations.c.run, _BETWEEN)
        members = sa.select(populations.c.client, of).group_by(populations.c.client)
        standing = (clients.c.status == "active") & clients.c.hold.is_(None)
        active = sa.select(clients.c.name).where(standing)
        if client:
            members = members.where(populations.c.client == client)
            active = active.where(clients.c.name == client)
        known = dict[frozenset[str], frozenset[str]]()  # one set for all clients that share it
        with self._engine.connect() as connection:
            rows = connection.execute(members).all()
            groups = {name: frozenset(text.split(_BETWEEN)) for name, text in rows}
            return PopulationFacts(
                runs=read(connection, sa.select(runs).order_by(runs.c.created_at), RunRow),
                member_of={name: known.setdefault(of, of) for name, of in groups.items()},
                drawable=_names(connection, active),
                labelled={label: _names(connection, _with_label(label)) for label in asked},
            )

    def num_only_own(self, label: str) -> int:
        """Number of active clients that have a label by their own word alone."""
        mine = _with_label(label, own=True).where(
            labels.c.client.not_in(_with_label(label)),
            labels.c.client.in_(sa.select(clients.c.name).where(clients.c.status == "active")),
        )
        return len(self._values(mine))


def _names(connection: sa.Connection, query: sa.Select[Any]) -> frozenset[str]:
    return frozenset(connection.execute(query).scalars().all())


def _with_label(label: str, *, own: bool = False) -> sa.Select[tuple[str]]:
    """Clients with a label, name or name=value, of an operator or their own."""
    name, _, value = label.partition("=")
    query = sa.select(labels.c.client).where(labels.c.name == name, labels.c.own.is_(own))
    return query.where(labels.c.value == value) if value else query


def add_to_population(connection: sa.Connection, run: str, names: set[str]) -> None:
    """Add clients to a run's population; those in it stay."""
    fresh = sorted(names.difference(connection.execute(_NAMES, {"its_run": run}).scalars()))
    for start in range(0, len(fresh), _PIECE):
        piece = fresh[start : start + _PIECE]
        connection.execute(_ADD, [{"run": run, "client": name} for name in piece])
