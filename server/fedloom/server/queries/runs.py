"""Reads runs: all, one with its latest rounds, and the refusals of one."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedloom.protocol.errors import UsageError
from fedloom.server.insight import pace
from fedloom.server.insight.failing import failing
from fedloom.server.ledger.rows import RunRow, values
from fedloom.server.planning.spec import parse
from fedloom.server.queries import views
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.masking import claim_of, live_status
from fedloom.server.queries.round_views import RoundView
from fedloom.server.queries.rounds import rounds_of, run_row
from fedloom.server.rounds.sharing.queue import QUEUED, places

_OUTCOME = {"number", "state", "cause", "reason", "accepted"}

LATEST_ROUNDS = 50
"""Rounds in the answer about a run; pages of rounds have the others."""


def run_summary(row: RunRow, place: int | None = None) -> views.RunView:
    """A run without its specification and rounds; `place` is its place in the queue."""
    (committed, total), (priority, share) = row.done_of, row.rank
    own = {"rounds_total": total, "rounds_committed": committed}
    rank = {"priority": priority, "share": share, "study": row.study or "", "place": place}
    claim = {"masking": claim_of(row)}
    return views.RunView.model_validate({**values(row), **own, **rank, **claim})


async def with_place(context: ConsoleContext, row: RunRow) -> views.RunView:
    """A run without its specification and rounds, with its place in the queue."""
    if row.state != QUEUED:
        return run_summary(row)
    queued = await context.in_reader(context.ledger.list_runs, (QUEUED,))
    return run_summary(row, places(queued).get(row.id))


def best_rounds(rows: Iterable[RunRow]) -> set[tuple[str, int]]:
    """Run and round of the best model of each run that has one."""
    return {(row.id, row.best["round"]) for row in rows if row.best and row.best["model"]}


async def list_runs(context: ConsoleContext, study: str = "") -> views.RunList:
    """All runs, or those of a study, oldest first."""
    rows = await context.runs_seen(study)
    queue = places(rows)
    return views.RunList(runs=[run_summary(row, queue.get(row.id)) for row in rows])


async def run_detail(context: ConsoleContext, run: str) -> views.RunDetail:
    """The run that `run` names: its specification, its latest rounds, and its live status."""
    row = await run_row(context, run)
    rounds = await rounds_of(context, row, limit=LATEST_ROUNDS)
    earlier = 0
    if rounds and rounds[0].number > 1:
        earlier = await context.in_reader(
            context.ledger.num_rounds, row.id, before=rounds[0].number
        )
    driver = context.runs.get(row.id)
    facts = sums(row.spec, held=bool(row.upstream))
    live = live_status(driver)
    return views.RunDetail(
        **(await with_place(context, row)).model_dump(),
        spec=row.spec,
        sums=facts,
        rounds=rounds,
        rounds_earlier=earlier,
        failing=failing_in(row, rounds, live),
        **time_left(row, rounds, time.time(), live),
        live=None if live is None else views.LiveView.model_validate(live),
    )


def failing_in(
    row: RunRow, rounds: Sequence[RoundView], live: Mapping[str, Any] | None
) -> views.FailingView | None:
    """What fails in a run, from its latest rounds in any order; None if it has ended."""
    if live is None:
        return None
    newest = sorted(rounds, key=lambda each: -each.number)
    found = failing({**values(row), "rounds": [_outcome(r) for r in newest], "live": live})
    return None if found is None else views.FailingView.model_validate(found, from_attributes=True)


def _outcome(each: RoundView) -> dict[str, Any]:
    kinds = [kind.model_dump() for kind in each.failures]
    return each.model_dump(include=_OUTCOME) | {"failures": kinds}


def time_left(
    row: RunRow, rounds: Sequence[RoundView], now: float, live: Mapping[str, Any] | None
) -> dict[str, Any]:
    """`time_left_s` and `time_left_range_s` of a run; None of both unless it is running."""
    committed, total = row.done_of
    selects = ((live or {}).get("round") or {}).get("state") == "selecting"
    found = None
    if row.state == "running":
        found = pace.time_left(rounds, total - committed, now, selects=selects)
    return {
        "time_left_s": None if found is None else found.expected_s,
        "time_left_range_s": None if found is None else found.range_s,
    }


def sums(spec: Mapping[str, Any], *, held: bool = False) -> dict[str, Any] | None:
    """The grid of a run's narrow sums; None for exact sums, and with [privacy].

    Args:
        spec: of the run.
        held: whether it is a run of a parent.
    """
    if not (spec.get("sum_bits") or spec.get("masking")) or spec.get("privacy"):
        return None
    try:
        checked = parse(spec)
    except UsageError:  # a run of an earlier version, with settings that are refused now
        return None
    return checked.sum_facts(held=held)


async def refusals(context: ConsoleContext, run: str, limit: int) -> views.RefusalList:
    """Refused requests of clients for a run, newest first."""
    run = await context.run_id(run)
    await context.refusals.store(context)
    rows = await context.in_reader(context.ledger.list_refusals, run, limit)
    return views.RefusalList(
        refusals=[views.RefusalView.model_validate(values(row)) for row in rows]
    )
