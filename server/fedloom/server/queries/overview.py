"""The overview of a server, and the curves of its runs."""

import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from fedloom.server.access.studies import sees, studies
from fedloom.server.insight import pace
from fedloom.server.insight.curves import curves
from fedloom.server.insight.health import Facts, assess
from fedloom.server.ledger import Filter
from fedloom.server.ledger.rows import ClientRow, RunRow
from fedloom.server.queries.check_ins import check_ins
from fedloom.server.queries.clients import failing, study_of_failure
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.errors import NotFoundError
from fedloom.server.queries.masking import claim_of, live_status
from fedloom.server.queries.masking_views import MaskingClaim
from fedloom.server.queries.round_views import FailureView, RoundView
from fedloom.server.queries.rounds import rounds_of
from fedloom.server.queries.runs import failing_in, time_left
from fedloom.server.queries.views import BestView, CheckInsView, FailingView, LiveView, ReplicaView
from fedloom.server.rounds.manager import ACTIVE

ROUNDS_SHOWN = 20
MAX_COMPARED = 12


class AlertView(BaseModel):
    """Something that needs an operator."""

    level: Annotated[str, Field(description="warn or bad")]
    what: str
    todo: str
    link: Annotated[str, Field(description="a page of the console; empty for none")]
    client: Annotated[str, Field(description="its client; empty if none or several")]
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
    failures: list[FailureView] = []
    underflow: Annotated[float | None, Field(description="as in a round")] = None


class ActiveRun(BaseModel):
    """An active run at a glance."""

    id: str
    name: str
    state: str
    reason: str
    created_at: float
    rounds_total: int
    rounds_committed: int
    rounds_an_hour: Annotated[float, Field(description="0 after too few rounds")]
    time_left_s: Annotated[float | None, Field(description="null while unknown")]
    time_left_range_s: Annotated[
        tuple[float, float] | None, Field(description="null if time_left_s says enough")
    ] = None
    failing: Annotated[
        FailingView | None, Field(description="null if nothing fails, or few of many clients")
    ] = None
    best: Annotated[BestView | None, Field(description="as of a run")] = None
    masking: Annotated[MaskingClaim | None, Field(description="as of a run")] = None
    live: LiveView | None
    rounds: Annotated[list[RoundBrief], Field(description="the latest, newest first")]


class Overview(BaseModel):
    """The whole server at a glance."""

    level: Annotated[str, Field(description="ok, idle, warn or bad")]
    headline: str
    alerts: Annotated[list[AlertView], Field(description="the worst first")]
    clients_online: int
    clients_available: Annotated[int, Field(description="online without a task")]
    clients_enrolled: int
    clients_failing: Annotated[int, Field(description="failing or cooling off, without a hold")]
    runs: Annotated[list[ActiveRun], Field(description="active ones, newest first")]
    rounds_an_hour: float
    bytes_up: Annotated[int, Field(description="from clients, in the rounds shown")]
    bytes_down: int
    replicas: Annotated[
        list[ReplicaView], Field(description="that serve clients; empty for a server alone")
    ] = []
    check_ins: Annotated[CheckInsView | None, Field(description="null without such devices")] = None


class Curve(BaseModel):
    """One metric over rounds; null where a round has none."""

    mean: list[float | None]
    low: Annotated[
        list[float | None] | None, Field(description="the lowest of the run's quantiles")
    ] = None
    high: list[float | None] | None = None
    median: list[float | None] | None = None
    disagree: Annotated[
        list[bool] | None, Field(description="whether the mean is outside the clients' quartiles")
    ] = None


class CurvesView(BaseModel):
    """A run's metrics in columns."""

    number: list[int]
    at: Annotated[list[float | None], Field(description="when each round ended")]
    bytes: Annotated[
        list[int | None],
        Field(description="up and down, of all rounds up to this one, abandoned ones too"),
    ] = []
    training: dict[str, Curve]
    evaluation: dict[str, Curve]
    epsilon: Annotated[list[float | None], Field(description="empty without privacy")]


class RunCurves(BaseModel):
    """A run beside others."""

    id: str
    name: str
    began: Annotated[float | None, Field(description="when its first round opened")]
    curves: CurvesView


class Compared(BaseModel):
    """Several runs' curves."""

    runs: list[RunCurves]


async def run_curves(context: ConsoleContext, run: str) -> CurvesView:
    """The curves of the run that `run` names."""
    return await _curves_of(context, await context.run_id(run))


async def compared(context: ConsoleContext, names: Iterable[str]) -> Compared:
    """The curves of several runs, at most `MAX_COMPARED`.

    Raises:
        NotFoundError: a run does not exist, or none is named.
    """
    wanted = list(dict.fromkeys(name for name in names if name))[:MAX_COMPARED]
    if not wanted:
        raise NotFoundError("Expected the ids of runs to compare, got none.")
    runs = [await context.run_id(name) for name in wanted]
    return Compared(runs=[await _beside(context, run) for run in runs])


async def _beside(context: ConsoleContext, run: str) -> RunCurves:
    first = await context.in_reader(context.ledger.round, run, 1)
    return RunCurves(
        id=run,
        name=run.rpartition("-")[0],
        began=None if first is None else first.opened_at,
        curves=await _curves_of(context, run),
    )


async def _curves_of(context: ConsoleContext, run: str) -> CurvesView:
    rows = await context.in_reader(context.ledger.curve_rows, run)
    return CurvesView.model_validate(curves(rows))


async def overview(context: ConsoleContext) -> Overview:
    """Health, alerts, active runs and traffic of the server, or of the studies that are seen."""
    now, fleet = time.time(), context.fleet
    rows = await context.runs_seen()
    active = [await _active_run(context, row, now) for row in reversed(rows) if row.state in ACTIVE]
    enrolled = await _enrolled(context)
    online = sum(sees(fleet.study_of(session.client)) for session in fleet)
    fails = [row for row in await failing(context) if _sees_failures(context, row)]
    coming = check_ins(context)
    facts = Facts(
        checking_in=coming.expected if coming else 0,
        check_in_every_s=context.config.check_in.every_s,
        now=now,
        clients_online=online,
        clients_enrolled=enrolled,
        active=tuple(run.model_dump() for run in active),
        ended=tuple(row for row in rows if row.state not in ACTIVE),
        failing=tuple(fails),
        **(await _of_server(context, now) if studies() is None else {}),
    )
    health = assess(facts)
    return Overview(
        level=health.level,
        headline=health.headline,
        alerts=[AlertView.model_validate(alert, from_attributes=True) for alert in health.alerts],
        clients_online=online,
        clients_available=sum(sees(fleet.study_of(name)) for name in fleet.available()),
        clients_enrolled=enrolled,
        clients_failing=len(fails),
        runs=active,
        rounds_an_hour=sum(run.rounds_an_hour for run in active),
        bytes_up=sum(each.bytes_up for run in active for each in run.rounds),
        bytes_down=sum(each.bytes_down for run in active for each in run.rounds),
        replicas=replicas(context) if studies() is None else [],
        check_ins=coming,
    )


def replicas(context: ConsoleContext) -> list[ReplicaView]:
    """The driver and its gates; none for a server alone."""
    state = context.replica
    if state is None:
        return []
    there = len(context.fleet) - sum(gate.streams for gate in state.gates)
    gates = [ReplicaView(name=g.name, drives=False, streams=g.streams) for g in state.gates]
    return [ReplicaView(name=state.name, drives=True, streams=max(0, there)), *gates]


async def _of_server(context: ConsoleContext, now: float) -> dict[str, Any]:
    """Facts of the whole server: those who are limited to studies do not see them."""
    until = context.authority.until.timestamp() if context.authority else None
    return {
        "refused": tuple(await context.in_reader(context.ledger.refused_since, now - 3600)),
        "authority_until": until,
        "disk_free": await context.in_disk(_disk_free, context.models.path("any").parent),
    }


async def _enrolled(context: ConsoleContext) -> int:
    """Number of clients that are seen and not revoked."""
    if studies() is None:
        return (await context.in_reader(context.ledger.clients_by_status)).get("active", 0)
    names = await context.in_reader(context.ledger.names, Filter(status="active"))
    return sum(sees(context.fleet.study_of(name)) for name in names)


def _sees_failures(context: ConsoleContext, row: ClientRow) -> bool:
    """Whether a failing client and the run in which it failed last are seen."""
    whose = context.fleet.study_of(row.name), study_of_failure(context, row)
    return all(sees(study) for study in whose)


async def _active_run(context: ConsoleContext, row: RunRow, now: float) -> ActiveRun:
    rounds = (await rounds_of(context, row, limit=ROUNDS_SHOWN))[::-1]
    driver, is_running = context.runs.get(row.id), row.state == "running"
    committed, total = row.done_of
    live = live_status(driver)
    return ActiveRun(
        id=row.id,
        name=row.name,
        state=row.state,
        reason=row.reason,
        created_at=row.created_at,
        rounds_total=total,
        rounds_committed=committed,
        rounds_an_hour=pace.rounds_an_hour(rounds, now) if is_running else 0.0,
        **time_left(row, rounds, now, live),
        failing=failing_in(row, rounds, live),
        best=None if row.best is None else BestView.model_validate(row.best),
        masking=claim_of(row),
        live=None if live is None else LiveView.model_validate(live),
        rounds=[_brief(row.id, each) for each in rounds],
    )


def _brief(run: str, view: RoundView) -> RoundBrief:
    up, down = (view.clients.bytes_up, view.clients.bytes_down) if view.clients else (0, 0)
    more = {"bytes_up": up, "bytes_down": down, "failures": view.failures}
    return RoundBrief.model_validate({**view.model_dump(), **more, "run": run})


def _disk_free(directory: Path) -> float:
    usage = shutil.disk_usage(directory)
    return usage.free / usage.total
