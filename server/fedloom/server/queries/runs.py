"""Reads runs: all, one with its latest rounds, and the refusals of one."""

from collections.abc import Mapping
from typing import Any

from fedloom.protocol.errors import UsageError
from fedloom.server.ledger.rows import RunRow, values
from fedloom.server.planning.spec import parse
from fedloom.server.queries import views
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.rounds import rounds_of, run_row

LATEST_ROUNDS = 50
"""Rounds in the answer about a run; pages of rounds have the others."""


def run_summary(row: RunRow) -> views.RunView:
    """A run without its specification and rounds."""
    committed, total = row.done_of
    return views.RunView.model_validate(
        {**values(row), "rounds_total": total, "rounds_committed": committed}
    )


async def list_runs(context: ConsoleContext) -> views.RunList:
    """All runs, oldest first."""
    rows = await context.in_reader(context.ledger.list_runs)
    return views.RunList(runs=[run_summary(row) for row in rows])


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
    facts = sums(row.spec)
    return views.RunDetail(
        **run_summary(row).model_dump(),
        spec=row.spec,
        sums=facts,
        rounds=rounds,
        rounds_earlier=earlier,
        live=None if driver is None else views.LiveView.model_validate(driver.status()),
    )


def sums(spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """The grid of a run's narrow sums; None for exact sums, and with [privacy]."""
    if spec.get("sum_bits") is None or spec.get("privacy"):
        return None
    try:
        checked = parse(spec)
    except UsageError:  # a run of an earlier version, with settings that are refused now
        return None
    grid = checked.grid()
    return None if grid is None else grid.facts(checked.precision)


async def refusals(context: ConsoleContext, run: str, limit: int) -> views.RefusalList:
    """Refused requests of clients for a run, newest first."""
    run = await context.run_id(run)
    await context.refusals.store(context)
    rows = await context.in_reader(context.ledger.list_refusals, run, limit)
    return views.RefusalList(
        refusals=[views.RefusalView.model_validate(values(row)) for row in rows]
    )
