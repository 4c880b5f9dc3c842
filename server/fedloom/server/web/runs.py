"""Pages of runs: all, and one."""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request

from fedloom.server.access.scopes import Viewer
from fedloom.server.access.studies import matching_studies, studies
from fedloom.server.http.dependencies import Context
from fedloom.server.http.shared_answers import LivePart
from fedloom.server.insight.curves import TAIL, Curves, curves, latest, metrics
from fedloom.server.insight.pace import rounds_an_hour
from fedloom.server.ledger import require_run
from fedloom.server.ledger.lists.lists import ListedRun
from fedloom.server.ledger.rows import RunRow
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.masking import claim_of, live_status
from fedloom.server.queries.rounds import rounds_of
from fedloom.server.queries.runs import failing_in, sums, time_left, with_place
from fedloom.server.rounds.manager import ACTIVE
from fedloom.server.rounds.sharing.queue import QUEUED, places
from fedloom.server.web.lists import Answer, ListColumn, listing, metric_columns, metric_names, utc
from fedloom.server.web.render import page
from fedloom.server.web.settings import as_toml, chosen
from fedloom.strategies.masking.sessions import sum_lines

router = APIRouter(include_in_schema=False, route_class=LivePart)

ROUNDS_SHOWN = 12
CHARTS_SHOWN = 6
REFUSALS_SHOWN = 20
OPEN = ("reporting", "masking", "closing")


def took_s(row: ListedRun) -> float | None:
    """How long a run that has ended took."""
    return None if row.ended_at is None else row.ended_at - row.created_at


COLUMNS = (
    ListColumn("run", "Run", lambda r: r.id),
    ListColumn("state", "State", lambda r: r.state),
    ListColumn("rounds", "Rounds", lambda r: r.done_of[0], num=True, first=True),
    ListColumn("of", "Wanted", lambda r: r.done_of[1], num=True, shown=False),
    ListColumn("strategy", "Strategy", lambda r: strategy_of(r.spec)),
)
STUDY = ListColumn("study", "Study", lambda r: r.study)
LATER = (
    ListColumn("started", "Started", lambda r: utc(r.created_at), first=True),
    ListColumn("ended", "Ended", lambda r: utc(r.ended_at), first=True),
    ListColumn("took", "Took", took_s, num=True, shown=False),
    ListColumn("model", "Model", lambda r: r.model),
    ListColumn("reason", "Reason", lambda r: r.reason, shown=False),
)
REFUSALS = (
    ListColumn("at", "When", lambda r: utc(r.at), first=True),
    ListColumn("client", "Client", lambda r: r.client),
    ListColumn("round", "Round", lambda r: r.round or None, num=True, first=True),
    ListColumn("code", "Code", lambda r: r.code),
    ListColumn("times", "Times", lambda r: r.times, num=True, first=True),
    ListColumn("message", "Why", lambda r: r.message),
)


@router.get("/runs", response_model=None)
async def runs(request: Request, context: Context, who: Viewer) -> Answer:
    """Runs that match the filters, newest first unless sorted."""
    asked = listing(
        request, "q", "state", "study", key="started", descending=True, own="newest first"
    )
    q, state, study = asked.filters.values()
    read = context.ledger.listed_runs
    seen = matching_studies(study)
    rows = await context.in_reader(read, asked.cut(), text=q, state=state, studies=seen)
    names = metric_names(asked, rows, metrics_of)
    known = context.study_choices()
    columns = (*COLUMNS, *([STUDY] if known else []), *metric_columns(names, metrics_of), *LATER)
    asked.fill(rows, columns)
    if asked.as_csv:
        return await asked.csv("runs")
    states = await context.in_reader(context.ledger.run_states, studies())
    queued = await context.in_reader(context.ledger.list_runs, (QUEUED,))
    return page(
        request, context, who, "runs", page="runs",
        list=asked, num_all=sum(states.values()), states=sorted(states),
        strategy_of=strategy_of, took_s=took_s, in_queue=places(queued), studies=known,
    )  # fmt: skip


def strategy_of(spec: Mapping[str, Any]) -> str:
    """A run's strategy, or its Flower ServerApp."""
    flower = spec.get("flower")
    return str(flower["server_app"] if flower else spec.get("strategy", {}).get("name", ""))


def metrics_of(row: ListedRun) -> dict[str, Any]:
    """A run's latest metrics: of evaluations, and of training where those lack one."""
    evaluated, trained = row.evaluation or {}, row.training or {}
    return {**(trained.get("values") or {}), **(evaluated.get("values") or {})}


@router.get("/runs/{run}", response_model=None)
async def run(request: Request, context: Context, who: Viewer, run: str) -> Answer:
    """One run: its open round, curves, rounds, refusals, settings and actions."""
    run = await context.run_id(run)
    refusals = listing(
        request, "q", "code", prefix="refusals", key="at", descending=True, own="newest first",
        limit=REFUSALS_SHOWN,
    )  # fmt: skip
    text, code = refusals.filters["q"], refusals.filters["code"]
    read = partial(context.ledger.listed_refusals, run, refusals.cut(), text=text, code=code)
    await refusals.read(context.in_reader, read, REFUSALS)
    if refusals.as_csv:
        return await refusals.csv(f"refusals-{run}")
    seen = await _seen(context, run)
    return page(request, context, who, "run", page="runs", refusals=refusals, **seen)


async def _seen(context: ConsoleContext, run: str) -> dict[str, Any]:
    ledger = context.ledger
    row = require_run(await context.in_reader(ledger.run, run), run)
    views = await rounds_of(context, row, limit=40)
    rounds = views[::-1]
    counts = [r for r in rounds if r.state == "committed" and not r.undone_at]
    drawn = curves(reversed(counts))  # of the latest rounds; charts fetch all
    cost = await context.in_reader(ledger.cost, run)
    still = [r.clients for r in rounds if r.clients is not None and r.state in OPEN]
    cost = replace(  # the ledger sums rounds that are over
        cost,
        bytes_up=cost.bytes_up + sum(each.bytes_up for each in still),
        bytes_down=cost.bytes_down + sum(each.bytes_down for each in still),
    )
    driver = context.runs.get(run)
    live = live_status(driver)
    ended = max((r.closed_at or 0.0 for r in rounds), default=row.created_at)
    return {
        "run": row,
        "place": (await with_place(context, row)).place,
        "live": live,
        "failing": failing_in(row, rounds, live),
        "rounds": rounds[:ROUNDS_SHOWN],
        "is_active": row.state in ACTIVE,
        "an_hour": rounds_an_hour(rounds, ended),
        "left_of": time_left(row, rounds, time.time(), live),
        "metrics": metrics(drawn)[:CHARTS_SHOWN],
        "drawn": drawn,
        "tail": await tail(context, run),
        "latest": latest,
        "claim": claim_of(row),
        "cost": cost,
        "chosen": chosen(row.spec) + [("Sums", line) for line in _sums(row)],
        "toml": as_toml(row.spec),
    }


def _sums(row: RunRow) -> list[str]:
    """Steps and largest error of narrow sums."""
    facts = sums(row.spec, held=bool(row.upstream))
    lines = [] if facts is None else sum_lines(facts)
    return [] if facts is None else ["; ".join(lines if "masking" in facts else lines[:2])]


async def tail(context: ConsoleContext, run: str) -> Curves:
    """The latest points of a run's curves, for pages that hold the earlier ones."""
    return curves(await context.in_reader(context.ledger.last_curve_rows, run, TAIL))
