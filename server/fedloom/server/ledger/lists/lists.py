"""The lists of runs, rounds, models and tokens, each as one page of a query."""

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from fedloom.server.ledger.lists.order import Cut, cut, like
from fedloom.server.ledger.members import with_updates
from fedloom.server.ledger.refusals import times
from fedloom.server.ledger.rows import (
    CountedRoundRow,
    ModelRow,
    PromotionRow,
    RefusalRow,
    RoundRow,
    RunRow,
    TokenRow,
)
from fedloom.server.ledger.store import Store, counted, read
from fedloom.server.ledger.tables import models, promotions, refusals, rounds, runs, tokens
from fedloom.server.ledger.updates import COMMITTED

LOOK_BACK = 20
"""Latest committed rounds of a run in which its metrics are looked for."""

_COUNTS = (
    "selected", "took", "training", "uploaded", "counted", "declined", "failed", "refused", "late",
    "lost", "retries", "bytes_up", "bytes_down",
)  # fmt: skip

USED, UNUSED, EXPIRED = "used", "unused", "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun(RunRow):
    """A run with the metrics of its latest committed rounds that have some."""

    training: dict[str, Any] | None
    evaluation: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel(ModelRow):
    """A model with its latest evaluation, by a round that began with it.

    Attributes:
        promoted: whether it is the promoted model.
    """

    evaluation: dict[str, Any] | None
    promoted: bool


class Lists(Store):
    """Methods about lists that are sorted by any column."""

    def listed_runs(
        self, page: Cut, *, text: str = "", state: str = "", studies: Collection[str] | None = None
    ) -> list[ListedRun]:
        """Runs, newest first; `text` is a part of the id, `studies` are those to list."""
        training, evaluation = (_latest(rounds.c[kind].name) for kind in ("training", "evaluation"))
        query = sa.select(runs, training.label("training"), evaluation.label("evaluation"))
        if text:
            query = query.where(like(runs.c.id, text))
        if state:
            query = query.where(runs.c.state == state)
        study = sa.func.coalesce(runs.c.study, "")
        if studies is not None:
            query = query.where(study.in_(studies))
        strategy = sa.func.coalesce(
            runs.c.spec["flower", "server_app"].as_string(),
            runs.c.spec["strategy", "name"].as_string(),
        )
        columns = {
            "run": runs.c.id, "state": runs.c.state, "strategy": strategy,
            "rounds": runs.c.committed, "of": runs.c.spec["rounds"].as_integer(),
            "started": runs.c.created_at, "ended": runs.c.ended_at, "model": runs.c.model,
            "took": runs.c.ended_at - runs.c.created_at, "reason": runs.c.reason,
            "study": study,
        }  # fmt: skip
        key = (runs.c.created_at.desc(), runs.c.id)
        return self._rows(cut(query, page, columns, key, (evaluation, training)), ListedRun)

    def run_states(self, studies: Collection[str] | None = None) -> dict[str, int]:
        """Number of runs by state, of all or of some studies."""
        query = sa.select(runs.c.state, sa.func.count()).group_by(runs.c.state)
        return self._pairs(query if studies is None else query.where(runs.c.study.in_(studies)))

    def listed_rounds(self, run: str, page: Cut, *, state: str = "") -> list[CountedRoundRow]:
        """A run's rounds, newest first; `state` may be `undone` too."""
        query = sa.select(rounds).where(rounds.c.run == run)
        if state == "undone":
            query = query.where(rounds.c.undone_at.is_not(None))
        elif state:
            query = query.where(rounds.c.state == state, rounds.c.undone_at.is_(None))
        columns: dict[str, Any] = {name: counted(name) for name in _COUNTS}
        columns["trained"] = columns.pop("training")
        columns |= {name: rounds.c.summary[name].as_float() for name in ("p50_s", "p95_s")}
        columns |= {
            "round": rounds.c.number, "state": rounds.c.state, "ended": rounds.c.closed_at,
            "model": rounds.c.model_out, "duration_s": rounds.c.closed_at - rounds.c.opened_at,
        }  # fmt: skip
        key = (rounds.c.number.desc(),)
        query = cut(query, page, columns, key, (rounds.c.evaluation, rounds.c.training))
        with self._engine.connect() as connection:
            return with_updates(connection, run, read(connection, query, RoundRow))

    def listed_models(
        self, page: Cut, *, run: str = "", runs: Collection[str] | None = None
    ) -> list[ListedModel]:
        """Models, newest first, of one run or of all; pruned ones too.

        With `runs`, of these alone, and without what other runs do with the same models.
        """
        its = rounds.alias()
        seen = sa.true() if runs is None else its.c.run.in_(runs)
        evaluation = (
            sa.select(its.c.evaluation)
            .where(its.c.model_in == models.c.digest, its.c.state == COMMITTED, _some(its), seen)
            .order_by(its.c.closed_at.desc())
            .limit(1)
            .scalar_subquery()
        )
        newest = sa.select(sa.func.max(promotions.c.id)).scalar_subquery()
        promoted = sa.select(promotions.c.digest).where(promotions.c.id == newest)
        is_it: sa.ColumnElement[Any] = sa.literal(value=False)
        if runs is None:
            is_it = sa.func.coalesce(models.c.digest == promoted.scalar_subquery(), sa.false())
        query = sa.select(models, evaluation.label("evaluation"), is_it.label("promoted"))
        query = query.where(models.c.run == run) if run else query
        query = query if runs is None else query.where(models.c.run.in_(runs))
        columns = {
            "model": models.c.digest, "run": models.c.run, "round": models.c.round,
            "size": models.c.size_bytes, "created": models.c.created_at,
            "state": sa.case((is_it, 0), (models.c.round == 0, 1), else_=2),
        }  # fmt: skip
        key = (models.c.created_at.desc(), models.c.run.desc(), models.c.round.desc())
        return self._rows(cut(query, page, columns, key, (evaluation,)), ListedModel)

    def listed_tokens(self, page: Cut, *, text: str = "", state: str = "") -> Iterator[TokenRow]:
        """Tokens without their hashes, newest first; `text` is a part of the client or the id.

        They are read one after another, see `each`.
        """
        status = sa.case(
            (tokens.c.used_at.is_not(None), USED),
            (tokens.c.expires_at <= time.time(), EXPIRED),
            else_=UNUSED,
        )
        query = sa.select(*(c for c in tokens.c if c.name != "secret_hash"))
        if text:
            query = query.where(sa.or_(like(tokens.c.client, text), like(tokens.c.id, text)))
        query = query.where(status == state) if state else query
        columns = {
            "client": tokens.c.client, "state": status, "created": tokens.c.created_at,
            "used": tokens.c.used_at, "expires": tokens.c.expires_at, "id": tokens.c.id,
        }  # fmt: skip
        key = (tokens.c.created_at.desc(), tokens.c.id.desc())
        return self._each(cut(query, page, columns, key), TokenRow)

    def listed_refusals(
        self, run: str, page: Cut, *, text: str = "", code: str = ""
    ) -> Iterator[RefusalRow]:
        """Refusals of a run, newest first; `text` is a part of the client.

        They are read one after another, see `each`.
        """
        known = [column for column in refusals.c if column.name != times.name]
        query = sa.select(*known, times).where(refusals.c.run == run)
        query = query.where(like(refusals.c.client, text)) if text else query
        query = query.where(refusals.c.code == code) if code else query
        columns = {name: refusals.c[name] for name in ("at", "client", "round", "code", "message")}
        key = (refusals.c.id.desc(),)
        return self._each(cut(query, page, columns | {"times": times}, key), RefusalRow)

    def listed_promotions(self, page: Cut) -> Iterator[PromotionRow]:
        """Promotions, newest first, read one after another, see `each`."""
        columns = {name: promotions.c[name] for name in ("at", "run", "round", "note")}
        columns["model"] = promotions.c.digest
        query = cut(sa.select(promotions), page, columns, (promotions.c.id.desc(),))
        return self._each(query, PromotionRow)


def _latest(kind: str) -> Any:
    """The latest metrics of a run, of a kind that some of its last rounds have."""
    its = rounds.alias()
    recent = (
        sa.select(its.c.number, its.c[kind])
        .where(its.c.run == runs.c.id, its.c.state == COMMITTED, its.c.undone_at.is_(None))
        .order_by(its.c.number.desc())
        .limit(LOOK_BACK)
        .correlate(runs)
        .subquery()
    )
    found = sa.select(recent.c[kind]).where(sa.func.length(sa.cast(recent.c[kind], sa.Text)) > 4)
    return found.order_by(recent.c.number.desc()).limit(1).scalar_subquery()


def _some(its: Any) -> Any:
    """Whether a round has an evaluation: one without holds `null` or `{}`."""
    return sa.func.length(sa.cast(its.c.evaluation, sa.Text)) > 4
