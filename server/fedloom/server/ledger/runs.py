"""Runs: specification, progress and current model."""

import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from fedloom.protocol.errors import UsageError
from fedloom.server.ledger.rows import RunRow
from fedloom.server.ledger.store import NO_STATE, Row, Store, is_there, its_key
from fedloom.server.ledger.tables import models, requests, runs

KEPT_REPLIES_S = 24 * 3600.0

RUN = runs.update().filter_by(**its_key("id"))
"""Sets the columns of a run that are among its parameters."""
_DIGEST = sa.select(models.c.digest).filter_by(**its_key("run", "round"))


class RunRows(Store):
    """Methods about runs."""

    def add_run(self, run: Row, model_size_bytes: int) -> None:
        """Add a run and its initial model (round 0)."""
        now = time.time()
        with self._write() as connection:
            connection.execute(runs.insert().values(created_at=now, **run))
            connection.execute(
                models.insert().values(
                    digest=run["model"],
                    run=run["id"],
                    round=0,
                    size_bytes=model_size_bytes,
                    created_at=now,
                    state=run.get("strategy_state") or NO_STATE,
                )
            )

    def run(self, run: str) -> RunRow | None:
        """A run."""
        return self._row(sa.select(runs).where(runs.c.id == run), RunRow)

    def list_runs(self, states: Sequence[str] = ()) -> list[RunRow]:
        """Runs in order of creation, all or those in some states."""
        query = sa.select(runs).order_by(runs.c.created_at)
        return self._rows(query.where(runs.c.state.in_(states)) if states else query, RunRow)

    def reply_to(self, request: str) -> dict[str, Any] | None:
        """The reply to a request that was done already; None for a new one."""
        # Written again, as `Updates.repeat_all` does: what is only read may yet be lost.
        again = requests.update().where(requests.c.id == request).values(at=requests.c.at)
        with self._write() as connection:
            found = connection.execute(again.returning(requests.c.reply)).scalar()
        return None if found is None else dict(found)

    def keep_reply(self, request: str, reply: Row) -> None:
        """Store the reply to a request for a limited time, so that a repeat does nothing."""
        now = time.time()
        with self._write() as connection:
            connection.execute(requests.delete().where(requests.c.at < now - KEPT_REPLIES_S))
            if not is_there(connection, requests, id=request):
                values = {"id": request, "at": now, "reply": dict(reply)}
                connection.execute(requests.insert().values(values))

    def set_goals(self, run: str, goal: int, quorum: int) -> None:
        """Store the goal and the quorum that an operator set."""
        self._change(runs.update().where(runs.c.id == run).values(goals=[goal, quorum]))

    def set_rank(self, run: str, priority: int, share: float) -> None:
        """Store a run's priority and share."""
        self._change(runs.update().where(runs.c.id == run).values(priority=priority, share=share))

    def set_run_state(self, run: str, state: str, reason: str, *, ended: bool = False) -> None:
        """Set the state of a run."""
        values: dict[str, Any] = {"state": state, "reason": reason}
        if ended:
            values["ended_at"] = time.time()
        self._change(runs.update().where(runs.c.id == run).values(values))


def mark_best(connection: sa.Connection, run: str, best: Row | None) -> None:
    """Store which model of a run is the best, with its digest; None for none."""
    if best is not None:
        its = {"its_run": run, "its_round": best["round"]}
        best = {**best, "model": connection.execute(_DIGEST, its).scalar()}
    connection.execute(RUN, {"its_id": run, "best": best})


def require_run(row: RunRow | None, run: str) -> RunRow:
    """Return the row, or raise an error that says what to do.

    Raises:
        UsageError: there is no such run.
    """
    if row is None:
        raise UsageError(f"Expected a run of this server, got {run!r}: see `fedloom run list`.")
    return row
