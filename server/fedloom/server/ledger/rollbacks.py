"""Rollback: a run continues from the model and the state of an earlier committed round.

The rounds after it are kept in the ledger, marked as undone; clients' memory of them does not
count. Their releases remain public: a private run gets no budget back, and its count of rounds
continues.
"""

import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from fedloom.protocol.errors import UsageError
from fedloom.server.ledger.rows import ModelRow, RunRow
from fedloom.server.ledger.runs import mark_best
from fedloom.server.ledger.store import NO_STATE, Row, Store, its_round, read
from fedloom.server.ledger.tables import models, rounds, runs
from fedloom.server.ledger.updates import COMMITTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A round that a run can be rolled back to.

    Attributes:
        number: of the round; 0 for the start of the run.
        digest: of its model.
        state: note of the strategy's state; None without one.
        trained: committed training rounds that the run would have.
        undone: numbers of the committed rounds that would be undone.
    """

    number: int
    digest: str
    state: str | None
    trained: int
    undone: tuple[int, ...]


class Rollbacks(Store):
    """Methods about rollbacks."""

    def points(self, run: str) -> list[ModelRow]:
        """The models from which a run continued, in order; `state` is None if it was not kept."""
        return self._rows(_points(run), ModelRow)

    def point(self, run: RunRow, number: int) -> Point:
        """The effect of rolling a run back to a round.

        Args:
            run: its row.
            number: of a round that it committed, or 0.

        Raises:
            UsageError: there is no such round, it was undone, or its state was not kept.
        """
        with self._engine.connect() as connection:
            return _point(connection, run, number)

    def roll_back(
        self, run: str, number: int, *, best: Row | None = None, revive: str = ""
    ) -> Point:
        """Make an earlier round's model and state the current ones. A repeat changes nothing.

        Args:
            run: id; it has no open round.
            number: of the round.
            best: mark of the best model of the rounds up to it, if there is one.
            revive: reason to pause a run that had ended; empty to keep its state.

        Raises:
            UsageError: as `point`.
        """
        with self._write() as connection:
            [row] = read(connection, sa.select(runs).where(runs.c.id == run), RunRow)
            point = _point(connection, row, number)
            values: dict[str, Any] = {
                "model": point.digest,
                "strategy_state": point.state,
                "committed": point.trained,
                "abandoned_in_a_row": 0,
            }
            if revive:
                values |= {"state": "paused", "reason": revive, "ended_at": None}
            connection.execute(runs.update().where(runs.c.id == run).values(values))
            mark_best(connection, run, best)
            connection.execute(
                rounds.update()
                .where(rounds.c.run == run, rounds.c.number.in_(point.undone))
                .values(undone_at=time.time())
            )
        return point


def _points(run: str) -> sa.Select[Any]:
    return (
        sa.select(models)
        .join(rounds, its_round(models), isouter=True)
        .where(models.c.run == run, rounds.c.undone_at.is_(None), models.c.pruned.is_(None))
        .order_by(models.c.round)
    )


def _point(connection: sa.Connection, run: RunRow, number: int) -> Point:
    rows = read(connection, _points(run.id), ModelRow)
    found = next((row for row in rows if row.round == number), None)
    if found is None:
        known = [str(row.round) for row in rows[-10:]]
        raise UsageError(
            f"Expected a committed training round of {run.id} that was not undone or pruned "
            f"(the latest: {', '.join(known)}), got {number}."
        )
    if found.state is None:
        raise UsageError(
            f"Expected round {number} with the state of its strategy, got one from before states "
            f"were kept: submit a new run from its model {found.digest[:12]} instead."
        )
    undone = connection.execute(
        sa.select(rounds.c.number)
        .where(
            rounds.c.run == run.id,
            rounds.c.number > number,
            rounds.c.state == COMMITTED,
            rounds.c.undone_at.is_(None),
        )
        .order_by(rounds.c.number)
    ).scalars()
    private = run.privacy is not None
    standing = (
        sa.select(sa.func.count())
        .select_from(models.join(rounds, its_round(models)))
        .where(
            models.c.run == run.id, models.c.round.between(1, number), rounds.c.undone_at.is_(None)
        )
    )
    return Point(
        number=number,
        digest=found.digest,
        state=None if found.state == NO_STATE else found.state,
        trained=run.committed if private else connection.execute(standing).scalar_one(),
        undone=tuple(undone),
    )
