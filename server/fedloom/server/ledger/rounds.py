"""Rounds and their cohorts: opened, closing, committed or abandoned.

Invariant: a round's row leaves `reporting` before it is summed, and every accept checks that row,
so the set of accepted updates of a closing round never changes.
"""

from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa

from fedloom.server.client_failures import Failures
from fedloom.server.ledger.members import with_updates
from fedloom.server.ledger.privacy.populations import add_to_population
from fedloom.server.ledger.rows import (
    AcceptedRow,
    CohortRow,
    CountedRoundRow,
    ObservationRow,
    RoundRow,
)
from fedloom.server.ledger.runs import RUN, mark_best
from fedloom.server.ledger.store import (
    ITS_UPDATE,
    NO_STATE,
    Row,
    is_there,
    its_key,
    its_round,
    read,
)
from fedloom.server.ledger.tables import clients, cohorts, models, rounds, runs, updates
from fedloom.server.ledger.updates import (
    ABANDONED,
    ACCEPTED,
    AT_WORK,
    CLOSING,
    COMMITTED,
    MASKING,
    OPEN,
    REPORTING,
    SENT,
    Updates,
)

_OPEN, _JOIN, _MODEL = rounds.insert(), cohorts.insert(), models.insert()
_ADVANCE = RUN.values(committed=runs.c.committed + sa.bindparam("its_count"))
_ROUND = rounds.update().filter_by(**its_key("run", "number"))
_MOVE = _ROUND.filter_by(**its_key("state"))
_CLOSE = _ROUND.where(rounds.c.state.in_((REPORTING, MASKING))).values(state=CLOSING)


class Rounds(Updates):
    """Methods about rounds and their cohorts."""

    def open_round(
        self,
        row: Row,
        cohort: Sequence[str],
        drawn_from: Iterable[str] = (),
        places: Mapping[str, int] | None = None,
    ) -> None:
        """Open a round with its cohort. A repeat changes nothing.

        `drawn_from` are the candidates of a secret draw: they count to the run's population, as
        the cohort does. `places` are the devices that members may send, where they are sites.
        """
        with self._write() as connection:
            if is_there(connection, rounds, run=row["run"], number=row["number"]):
                return
            connection.execute(_OPEN, {"state": REPORTING, **row})
            connection.execute(RUN, {"its_id": row["run"], "last_round": row["number"]})
            key = row["run"], row["number"]
            _add_cohort(connection, key, cohort, places or {}, self.wall())
            add_to_population(connection, row["run"], {*cohort, *drawn_from})

    def recruit(self, run: str, number: int, client: str, places: int | None = None) -> None:
        """Add a client to the cohort of an open round. A repeat changes nothing.

        `places` are the devices that a site may send; None for a device.
        """
        with self._write() as connection:
            if not is_there(connection, cohorts, run=run, round=number, client=client):
                own = {} if places is None else {client: places}
                _add_cohort(connection, (run, number), [client], own, self.wall())
                add_to_population(connection, run, {client})

    def set_phase(
        self,
        run: str,
        number: int,
        client: str,
        phase: str,
        reason: str = "",
        *,
        failures: Failures | None = None,
    ) -> None:
        """Set the phase of a member; with `failures`, the recent ones of the client.

        A member whose update a gate has accepted meanwhile has reported, and stays so.
        """
        key: dict[str, str | int] = {"run": run, "round": number, "client": client}
        its = cohorts.update().filter_by(**key)
        member = sa.select(sa.literal(1)).select_from(cohorts).filter_by(**key)
        with self._write() as connection:
            if failures is not None:  # first: a gate that accepts locks the client before its phase
                connection.execute(
                    clients.update()
                    .where(clients.c.name == client)
                    .values(
                        failures=failures.count, failed_at=failures.last_at, failed_why=reason,
                        failed_run=run, failed_round=number,
                    )
                )  # fmt: skip
            connection.execute(member.with_for_update())
            if not is_there(connection, updates, **key):  # now: who accepts changes the member
                connection.execute(its.values(phase=phase, reason=reason))

    def set_deadline(self, run: str, number: int, deadline_at: float) -> None:
        """Move an open round's deadline."""
        its = rounds.update().filter_by(run=run, number=number)
        self._change(its.values(deadline_at=deadline_at))

    def open_rounds(self) -> list[RoundRow]:
        """The rounds of all runs that are neither committed nor abandoned."""
        query = sa.select(rounds).where(rounds.c.state.in_(OPEN))
        return self._rows(query.order_by(rounds.c.run, rounds.c.number), RoundRow)

    def open_round_of(self, run: str) -> RoundRow | None:
        """The open round of a run, if any."""
        query = sa.select(rounds).where(rounds.c.run == run)
        return self._row(query.where(rounds.c.state.in_(OPEN)), RoundRow)

    def list_rounds(self, run: str) -> list[CountedRoundRow]:
        """A run's rounds in order, each with its number of updates and their mean staleness."""
        query = sa.select(rounds).where(rounds.c.run == run).order_by(rounds.c.number)
        with self._engine.connect() as connection:
            return with_updates(connection, run, read(connection, query, RoundRow))

    def cohort(self, run: str, number: int) -> list[CohortRow]:
        """The members of a round's cohort by name."""
        query = sa.select(cohorts).filter_by(run=run, round=number).order_by(cohorts.c.client)
        return self._rows(query, CohortRow)

    def observations(self, run: str, after: int = 0) -> list[ObservationRow]:
        """Members of a run's committed training rounds after `after`, by round, then client."""
        return self._rows(
            sa.select(
                cohorts.c.round, cohorts.c.client, cohorts.c.phase, cohorts.c.offered_at,
                rounds.c.closed_at, updates.c.accepted_at, updates.c.training,
            )
            .join(rounds, its_round(cohorts))
            .join(updates, ITS_UPDATE, isouter=True)
            .where(
                cohorts.c.run == run, cohorts.c.round > after,
                rounds.c.kind == "train", rounds.c.state == COMMITTED,
            )
            .order_by(cohorts.c.round, cohorts.c.client),
            ObservationRow,
        )  # fmt: skip

    def at_work(self, run: str, since: int) -> list[CohortRow]:
        """Members of rounds from `since` on whose part has not ended, by round and name."""
        return self._rows(
            sa.select(cohorts)
            .where(cohorts.c.run == run, cohorts.c.round >= since, cohorts.c.phase == AT_WORK)
            .order_by(cohorts.c.round, cohorts.c.client),
            CohortRow,
        )

    def close_round(self, run: str, number: int) -> list[AcceptedRow]:
        """Stop accepting updates, and return the accepted ones."""
        its = {"its_run": run, "its_number": number}
        with self._write() as connection:
            connection.execute(_CLOSE, {**its, "closed_at": self.wall()})
            return read(connection, ACCEPTED, AcceptedRow, {"its_run": run, "counted": number})

    def commit_round(self, run: str, number: int, result: Row, model_size_bytes: int) -> None:
        """Make the round's result the run's model. A repeat changes nothing.

        Args:
            run: id.
            number: of the round.
            result: `model_out`, `strategy_state`, `training`, `evaluation`, `privacy`,
                `underflow`, `counts` (whether it is one of the rounds that the run asked for),
                `trained` (whether there is a new model; so if left out), `reason` (a note of
                the aggregation or the sum, if there is one) and `best` (the mark of the best
                model, if there is one).
            model_size_bytes: of the new model.
        """
        now = self.wall()
        with self._write() as connection:
            closed = {"its_run": run, "its_number": number, "its_state": CLOSING}
            measured = {name: result[name] for name in ("model_out", "training", "evaluation")}
            notes = {name: result.get(name) for name in ("privacy", "underflow")}
            reason = result.get("reason", "")
            moved = connection.execute(
                _MOVE, {**closed, "state": COMMITTED, "reason": reason, **measured, **notes}
            )
            if moved.rowcount != 1:
                return
            counts = bool(result["counts"])
            state = result["strategy_state"]
            connection.execute(
                _ADVANCE,
                {
                    "its_id": run, "its_count": int(counts), "model": result["model_out"],
                    "strategy_state": state, "abandoned_in_a_row": 0,
                },
            )  # fmt: skip
            if counts and result.get("trained", True):
                connection.execute(
                    _MODEL,
                    {
                        "digest": result["model_out"], "run": run, "round": number,
                        "size_bytes": model_size_bytes, "created_at": now,
                        "state": state or NO_STATE,
                    },
                )  # fmt: skip
            mark_best(connection, run, result.get("best"))

    def send_round(self, run: str, number: int, result: Row) -> None:
        """Note that the sum of a parent's round is stored. A repeat changes nothing.

        Args:
            run: id.
            number: of the round.
            result: `training` and `evaluation`, what its devices measured.
        """
        its = rounds.update().filter_by(run=run, number=number, state=CLOSING)
        measured = {name: result[name] for name in ("training", "evaluation")}
        self._change(its.values(state=SENT, **measured))

    def settle_sent(self, run: str, kind: str, counted: int, over: int) -> None:
        """Store the parent's word on rounds whose sums were sent. A repeat changes nothing.

        Args:
            run: id.
            kind: of the rounds that the run asked for.
            counted: the last round that was committed with a sum of this site; 0 for none.
            over: the last round that is over. Those after `counted` were not committed, or undone.
        """
        now = self.wall()
        its = rounds.update().where(rounds.c.run == run, rounds.c.number <= over)
        sent = its.where(rounds.c.state == SENT)
        lost = "the parent server closed its round without the sum of this site"
        with self._write() as connection:
            connection.execute(sent.where(rounds.c.number == counted).values(state=COMMITTED))
            connection.execute(
                sent.where(rounds.c.number != counted).values(
                    state=ABANDONED, reason=lost, cause="stopped"
                )
            )
            undone = its.where(rounds.c.state == COMMITTED, rounds.c.number > counted)
            connection.execute(undone.where(rounds.c.undone_at.is_(None)).values(undone_at=now))
            done = sa.select(sa.func.count()).select_from(rounds).filter_by(run=run, kind=kind)
            done = done.where(rounds.c.state == COMMITTED, rounds.c.undone_at.is_(None))
            connection.execute(
                runs.update().where(runs.c.id == run).values(committed=done.scalar_subquery())
            )

    def last_over(self, run: str) -> int:
        """The last round of a run that is committed or abandoned; 0 for none."""
        [last] = self._values(
            sa.select(sa.func.max(rounds.c.number)).where(
                rounds.c.run == run, rounds.c.state.in_((COMMITTED, ABANDONED))
            )
        )
        return int(last or 0)

    def abandon_round(self, run: str, number: int, reason: str, cause: str) -> None:
        """End the round without a result; the run's model does not change.

        `cause` is a code of `fedloom.server.metrics.meters.REASONS`.
        """
        with self._write() as connection:
            moved = connection.execute(
                rounds.update()
                .filter_by(run=run, number=number)
                .where(rounds.c.state.in_(OPEN))
                .values(state=ABANDONED, reason=reason, cause=cause, closed_at=self.wall())
            )
            if moved.rowcount == 1:
                connection.execute(
                    runs.update()
                    .where(runs.c.id == run)
                    .values(abandoned_in_a_row=runs.c.abandoned_in_a_row + 1)
                )


def _add_cohort(
    connection: sa.Connection,
    key: tuple[str, int],
    names: Sequence[str],
    places: Mapping[str, int],
    now: float,
) -> None:
    if names:
        connection.execute(
            _JOIN,
            [
                {
                    "run": key[0],
                    "round": key[1],
                    "client": name,
                    "phase": AT_WORK,
                    "offered_at": now,
                    "places": places.get(name),
                }
                for name in names
            ],
        )
