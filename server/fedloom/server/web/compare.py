"""The page that compares runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request

from fedloom.server.access.scopes import Viewer
from fedloom.server.http.dependencies import Context
from fedloom.server.http.shared_answers import LivePart
from fedloom.server.insight.curves import curves, latest, metrics
from fedloom.server.ledger import require_run
from fedloom.server.queries.overview import MAX_COMPARED
from fedloom.server.web.lists import Answer, ListColumn, listing
from fedloom.server.web.render import page
from fedloom.server.web.settings import chosen

MAX_LISTED = 200
"""Runs to choose from: the chosen ones, then the newest."""

router = APIRouter(include_in_schema=False, route_class=LivePart)


COLUMNS = (
    ListColumn("run", "Run", lambda f: f["row"].id),
    ListColumn("state", "State", lambda f: f["row"].state),
    ListColumn("rounds", "Rounds", lambda f: f["row"].done_of[0], num=True, first=True),
    ListColumn("of", "Wanted", lambda f: f["row"].done_of[1], num=True, shown=False),
)


@router.get("/compare", response_model=None)
async def compare(request: Request, context: Context, who: Viewer) -> Answer:
    """Curves of the ticked runs in one plot, and the differences of their settings."""
    ledger = context.ledger
    rows = await context.runs_seen()
    asked = request.query_params.getlist("runs")
    names = dict.fromkeys(name for text in asked for name in text.split(",") if name)
    wanted = [await context.run_id(name) for name in list(names)[:MAX_COMPARED]]
    found: list[dict[str, Any]] = []
    for name in wanted:
        row = require_run(await context.in_reader(ledger.run, name), name)
        drawn = curves(await context.in_reader(ledger.curve_rows, name))
        found.append({"id": name, "row": row, "curves": drawn, "settings": dict(chosen(row.spec))})
    table = listing(request, "runs", key="asked", own="as chosen")
    table.filters["runs"] = ",".join(wanted)
    table.cut_out(found, COLUMNS, _settings(found), metrics_of)
    if table.as_csv:
        return await table.csv("comparison")
    measured = dict.fromkeys(name for each in found for name in metrics(each["curves"]))
    newest = rows[::-1]
    newest.sort(key=lambda row: row.id not in wanted)
    return page(
        request, context, who, "compare", page="runs",
        rows=newest[:MAX_LISTED], wanted=wanted, found=found, metrics=list(measured)[:4],
        list=table,
    )  # fmt: skip


def metrics_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """A run's latest metrics: of evaluations, and of training where those lack one."""
    drawn = found["curves"]
    kinds = ("training", "evaluation")
    values = {(kind, name): latest(drawn, kind, name) for kind in kinds for name in drawn[kind]}
    return {name: value for (_, name), value in values.items() if value is not None}


def _settings(found: Sequence[Mapping[str, Any]]) -> list[ListColumn]:
    """Columns of the runs' settings; those that differ are shown."""

    def read(name: str) -> Callable[[Any], Any]:
        return lambda each: each["settings"].get(name)

    def differs(name: str) -> bool:
        return len({read(name)(each) for each in found}) > 1

    names = dict.fromkeys(name for each in found for name in each["settings"])
    return [ListColumn(f"setting.{n}", n, read(n), shown=differs(n)) for n in names]
