"""Pages of runs: all, and one."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from fedloom.server.access.scopes import Viewer
from fedloom.server.http.dependencies import Context
from fedloom.server.http.shared_answers import LivePart
from fedloom.server.insight.curves import TAIL, Curves, curves, latest, metrics
from fedloom.server.insight.pace import rounds_an_hour, time_left_s
from fedloom.server.ledger import require_run
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.rounds import rounds_of
from fedloom.server.queries.runs import sums
from fedloom.server.rounds.manager import ACTIVE
from fedloom.server.web.render import page
from fedloom.server.web.settings import as_toml, chosen
from fedloom.strategies.exact.grid import grid_lines

router = APIRouter(include_in_schema=False, route_class=LivePart)

ROUNDS_SHOWN = 12
CHARTS_SHOWN = 6


@router.get("/runs")
async def runs(
    request: Request, context: Context, who: Viewer, q: str = "", state: str = ""
) -> HTMLResponse:
    """Runs that match the filters, newest first."""
    rows = await context.in_reader(context.ledger.list_runs)
    like = [row for row in reversed(rows) if q.lower() in row.id.lower()]
    found = [row for row in like if state in ("", row.state)]
    return page(
        request, context, who, "runs", page="runs",
        rows=found[:500], num_all=len(rows), q=q, state=state,
        states=sorted({row.state for row in rows}),
    )  # fmt: skip


@router.get("/runs/{run}")
async def run(request: Request, context: Context, who: Viewer, run: str) -> HTMLResponse:
    """One run: its open round, curves, rounds, settings and actions."""
    return page(
        request, context, who, "run", page="runs", **await _seen(context, await context.run_id(run))
    )


async def _seen(context: ConsoleContext, run: str) -> dict[str, Any]:
    ledger = context.ledger
    row = require_run(await context.in_reader(ledger.run, run), run)
    views = await rounds_of(context, row, limit=40)
    rounds = views[::-1]
    counts = [r for r in rounds if r.state == "committed" and not r.undone_at]
    drawn = curves(reversed(counts))  # of the latest rounds; charts fetch all
    cost = await context.in_reader(ledger.cost, run)
    refusals = await context.in_reader(ledger.list_refusals, run, 10)
    driver = context.runs.get(run)
    committed, total = row.done_of
    left = total - committed
    ended = max((r.closed_at or 0.0 for r in rounds), default=row.created_at)
    return {
        "run": row,
        "live": driver.status() if driver is not None else None,
        "rounds": rounds[:ROUNDS_SHOWN],
        "is_active": row.state in ACTIVE,
        "an_hour": rounds_an_hour(rounds, ended),
        "left_s": time_left_s(rounds, left) if row.state == "running" else None,
        "metrics": metrics(drawn)[:CHARTS_SHOWN],
        "drawn": drawn,
        "tail": await tail(context, run),
        "latest": latest,
        "refusals": refusals,
        "cost": cost,
        "chosen": chosen(row.spec) + [("Sums", line) for line in _sums(row.spec)],
        "toml": as_toml(row.spec),
    }


def _sums(spec: Mapping[str, Any]) -> list[str]:
    """Steps and largest error of narrow sums."""
    facts = sums(spec)
    return [] if facts is None else ["; ".join(grid_lines(facts)[:2])]


async def tail(context: ConsoleContext, run: str) -> Curves:
    """The latest points of a run's curves, for pages that hold the earlier ones."""
    return curves(await context.in_reader(context.ledger.last_curve_rows, run, TAIL))
