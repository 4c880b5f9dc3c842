"""Routes for whoever watches: the whole server at a glance, and the curves of runs."""

import shutil
import time
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from fedloom.server.access.scopes import Viewer
from fedloom.server.http.shared_answers import Shared
from fedloom.server.insight import pace
from fedloom.server.insight.curves import curves
from fedloom.server.insight.health import Facts, assess
from fedloom.server.ledger import Row
from fedloom.server.queries.parts import FAULTS, Here, NotFoundError, Parts
from fedloom.server.queries.views import LiveView
from fedloom.server.rounds.manager import ACTIVE
from fedloom.server.routes.rounds import rounds_of

router = APIRouter(tags=["overview"], responses=FAULTS, route_class=Shared)

ROUNDS_SHOWN = 20
MAX_COMPARED = 12


class AlertView(BaseModel):
    """Something for an operator to look at."""

    level: Annotated[str, Field(description="warn or bad")]
    what: str
    todo: str
    link: Annotated[str, Field(description="a page of the console; empty for none")]
    client: Annotated[str, Field(description="whom alone it is about; empty for none")]
    run: str


class RoundBrief(BaseModel):
    """A round, in short."""

    run: str
    number: int
    kind: str
    state: str
    reason: str
    cause: Annotated[str | None, Field(description="as in a round")]
    opened_at: float
    deadline_at: float
    closed_at: float | None
    accepted: int
    bytes_up: int
    bytes_down: int
    model_out: str | None


class Progress(BaseModel):
    """An active run at a glance."""

    id: str
    name: str
    state: str
    reason: str
    created_at: float
    rounds_total: int
    rounds_committed: int
    rounds_an_hour: float
    time_left_s: Annotated[float | None, Field(description="null while nobody can tell")]
    live: LiveView | None
    rounds: Annotated[list[RoundBrief], Field(description="the latest, newest first")]


class Overview(BaseModel):
    """The whole server at a glance."""

    level: Annotated[str, Field(description="ok, idle, warn or bad")]
    headline: str
    alerts: Annotated[list[AlertView], Field(description="the worst first")]
    clients_online: int
    clients_available: Annotated[int, Field(description="online, and not at work")]
    clients_enrolled: int
    runs: Annotated[list[Progress], Field(description="active ones, newest first")]
    rounds_an_hour: float
    bytes_up: Annotated[int, Field(description="from clients, in the rounds shown")]
    bytes_down: int


class Curve(BaseModel):
    """One metric over rounds; null where a round has none."""

    mean: list[float | None]
    low: Annotated[
        list[float | None] | None, Field(description="the lowest of the run's quantiles")
    ] = None
    high: list[float | None] | None = None


class CurvesView(BaseModel):
    """What a run measured, column by column."""

    number: list[int]
    at: Annotated[list[float | None], Field(description="when each round ended")]
    training: dict[str, Curve]
    evaluation: dict[str, Curve]
    epsilon: Annotated[list[float | None], Field(description="empty without privacy")]


class RunCurves(BaseModel):
    """A run beside others."""

    id: str
    name: str
    curves: CurvesView


class Compared(BaseModel):
    """Several runs' curves."""

    runs: list[RunCurves]


@router.get("/overview")
async def overview(here: Here, _: Viewer) -> Overview:
    """Is the server healthy, what runs, and what needs attention and why."""
    return await look(here)


@router.get("/runs/{run}/curves")
async def run_curves(here: Here, _: Viewer, run: str) -> CurvesView:
    """What a run's committed rounds measured, column by column."""
    rows = await here.world.in_reader(here.world.ledger.curve_rows, await here.run_id(run))
    return CurvesView.model_validate(curves(rows))


@router.get("/curves")
async def compare(
    here: Here,
    _: Viewer,
    runs: Annotated[str, Query(max_length=2000, description="ids, by commas")],
) -> Compared:
    """The curves of several runs, to lay over each other."""
    wanted = list(dict.fromkeys(name for name in runs.split(",") if name))[:MAX_COMPARED]
    if not wanted:
        raise NotFoundError("Expected the ids of runs to compare, got none.")
    found = []
    for name in wanted:
        run = await here.run_id(name)
        rows = await here.world.in_reader(here.world.ledger.curve_rows, run)
        drawn = CurvesView.model_validate(curves(rows))
        found.append(RunCurves(id=run, name=run.rpartition("-")[0], curves=drawn))
    return Compared(runs=found)


async def look(here: Parts) -> Overview:
    """What `overview` answers."""
    world, ledger, now = here.world, here.world.ledger, time.time()
    rows = await world.in_reader(ledger.list_runs)
    active = [await _progress(here, row, now) for row in reversed(rows) if row["state"] in ACTIVE]
    enrolled = (await world.in_reader(ledger.clients_by_status)).get("active", 0)
    facts = Facts(
        now=now,
        clients_online=len(world.fleet),
        clients_enrolled=enrolled,
        active=tuple(run.model_dump() for run in active),
        ended=tuple(row for row in rows if row["state"] not in ACTIVE),
        refused=tuple(await world.in_reader(ledger.refused_since, now - 3600)),
        authority_until=here.authority.until.timestamp() if here.authority else None,
        disk_free=await world.in_disk(_disk_free, world.models.path("any").parent),
    )
    health = assess(facts)
    return Overview(
        level=health.level,
        headline=health.headline,
        alerts=[AlertView(**_plain(alert)) for alert in health.alerts],
        clients_online=len(world.fleet),
        clients_available=len(world.fleet.available()),
        clients_enrolled=enrolled,
        runs=active,
        rounds_an_hour=sum(run.rounds_an_hour for run in active),
        bytes_up=sum(each.bytes_up for run in active for each in run.rounds),
        bytes_down=sum(each.bytes_down for run in active for each in run.rounds),
    )


async def _progress(here: Parts, row: Row, now: float) -> Progress:
    views = await rounds_of(here, row, limit=ROUNDS_SHOWN)
    rounds = [{**view.model_dump(), "run": row["id"]} for view in reversed(views)]
    for each in rounds:
        each["bytes_up"] = each["clients"]["bytes_up"]
        each["bytes_down"] = each["clients"]["bytes_down"]
    driver = here.runs.get(row["id"])
    total, committed = row["spec"]["rounds"], row["committed"]
    left_s = pace.time_left_s(rounds, total - committed) if row["state"] == "running" else None
    return Progress(
        **{name: row[name] for name in ("id", "name", "state", "reason", "created_at")},
        rounds_total=total,
        rounds_committed=committed,
        rounds_an_hour=pace.rounds_an_hour(rounds, now) if row["state"] == "running" else 0.0,
        time_left_s=left_s,
        live=None if driver is None else LiveView.model_validate(driver.status()),
        rounds=[RoundBrief(**{n: r[n] for n in RoundBrief.model_fields}) for r in rounds],
    )


def _disk_free(directory: Path) -> float:
    usage = shutil.disk_usage(directory)
    return usage.free / usage.total


def _plain(alert: Any) -> dict[str, Any]:
    return {name: getattr(alert, name) for name in AlertView.model_fields}
