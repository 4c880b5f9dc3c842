"""Records of the members of rounds: stored when their part is over, read by page."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import sqlalchemy as sa

from fedloom.server.ledger.member_summary import summarize
from fedloom.server.ledger.rows import CountedRoundRow, MemberRow, RoundRow, SessionRow, values
from fedloom.server.ledger.store import (
    ITS_UPDATE,
    UPDATE_COLUMNS,
    Row,
    Store,
    counted_in,
    its_key,
    read,
)
from fedloom.server.ledger.tables import cohorts, rounds, updates

_MEMBER = cohorts.update().filter_by(**its_key("run", "round", "client"))
_AT_WORK = sa.or_(cohorts.c.phase == "offered", cohorts.c.phase == "training")
_LAST = sa.bindparam("its_phase", type_=cohorts.c.phase.type)
_ENDED = _MEMBER.values(phase=sa.case((_AT_WORK, _LAST), else_=cohorts.c.phase))
"""Unless an update was accepted at the last moment."""
_SESSIONS = (
    sa.select(cohorts, updates.c.accepted_at)
    .join(updates, ITS_UPDATE, isouter=True)
    .where(*(cohorts.c[name] == given for name, given in its_key("run", "round").items()))
)
_ROUND = rounds.update().filter_by(**its_key("run", "number"))


class MemberRecord(Protocol):
    """A member's record, which is kept in memory until its part is over."""

    def stored(self) -> dict[str, Any]:
        """Columns of `cohorts` to write; other columns keep their values."""


class Members(Store):
    """Methods about the members of rounds."""

    def keep_records(
        self, run: str, records: Mapping[int, Mapping[str, MemberRecord]], *, over: bool
    ) -> None:
        """Store members' records and the summaries of their rounds. A repeat changes nothing.

        Records are by round, then by client; `over` if no client works on these rounds any more.
        """
        with self._write() as connection:
            for number, members in records.items():
                alike: dict[tuple[str, ...], list[Row]] = {}
                for client, record in members.items():
                    seen = record.stored()
                    if "phase" in seen:
                        seen["its_phase"] = seen.pop("phase")
                    if seen:
                        key = {"its_run": run, "its_round": number, "its_client": client}
                        alike.setdefault(tuple(seen), []).append({**key, **seen})
                for columns, rows in alike.items():
                    connection.execute(_ENDED if "its_phase" in columns else _MEMBER, rows)
                summary = _summary(connection, run, number, over=over)
                its = {"its_run": run, "its_number": number}
                connection.execute(_ROUND, {**its, "summary": summary})

    def summaries(self, run: str, numbers: Iterable[int], *, over: bool) -> dict[int, Any]:
        """Compute summaries of rounds without a stored one: open rounds, or after a crash."""
        with self._engine.connect() as connection:
            return {n: _summary(connection, run, n, over=over) for n in numbers}

    def members(self, run: str, number: int, *, after: str = "", limit: int = 0) -> list[MemberRow]:
        """The members of a round by name after `after`, each with its update.

        `number` is of the round in which they were asked; a limit of 0 gives all.
        """
        query = (
            sa.select(cohorts, *UPDATE_COLUMNS)
            .join(updates, ITS_UPDATE, isouter=True)
            .where(cohorts.c.run == run, cohorts.c.round == number)
            .order_by(cohorts.c.client)
        )
        query = query.where(cohorts.c.client > after) if after else query
        return self._rows(query.limit(limit) if limit else query, MemberRow)

    def page_of_rounds(
        self, run: str, *, before: int = 0, after: int = 0, limit: int = 50
    ) -> list[CountedRoundRow]:
        """Some of a run's rounds in order, as `list_rounds` has them.

        Args:
            run: id.
            before: only lower numbers than this, the highest of them; 0 for any.
            after: only higher numbers than this, the lowest of them, where `before` is 0.
            limit: most rounds.
        """
        query = sa.select(rounds).where(rounds.c.run == run).limit(limit)
        if after and not before:
            query = query.where(rounds.c.number > after).order_by(rounds.c.number)
        else:
            query = query.where(rounds.c.number < before) if before else query
            query = query.order_by(rounds.c.number.desc())
        with self._engine.connect() as connection:
            rows = read(connection, query, RoundRow)
            return with_updates(connection, run, sorted(rows, key=lambda row: row.number))

    def round(self, run: str, number: int) -> CountedRoundRow | None:
        """A round, as `list_rounds` has it."""
        query = sa.select(rounds).filter_by(run=run, number=number)
        with self._engine.connect() as connection:
            rows = read(connection, query, RoundRow)
            return next(iter(with_updates(connection, run, rows)), None)

    def num_rounds(self, run: str, *, before: int) -> int:
        """How many rounds of a run have a lower number than this."""
        query = sa.select(sa.func.count()).where(rounds.c.run == run, rounds.c.number < before)
        return int(self._values(query)[0])


def with_updates(
    connection: sa.Connection, run: str, rows: Sequence[RoundRow]
) -> list[CountedRoundRow]:
    """Rounds, each with its number of updates and their mean staleness."""
    if not rows:
        return []
    numbers = [row.number for row in rows]
    found = {
        number: (int(count), float(mean or 0.0))
        for number, count, mean in connection.execute(
            sa.select(
                counted_in,
                sa.func.sum(sa.func.coalesce(updates.c.devices, 1)),
                sa.func.avg(updates.c.staleness),
            )
            .where(updates.c.run == run, counted_in.in_(numbers))
            .group_by(counted_in)
        )
    }
    counts = [found.get(row.number, (0, 0.0)) for row in rows]
    return [
        CountedRoundRow(**values(row), accepted=accepted, staleness=staleness)
        for row, (accepted, staleness) in zip(rows, counts, strict=True)
    ]


def _summary(connection: sa.Connection, run: str, number: int, *, over: bool) -> dict[str, Any]:
    key = {"its_run": run, "its_round": number}
    return summarize(read(connection, _SESSIONS, SessionRow, key), over=over)
