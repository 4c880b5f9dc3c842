"""Reads the values of the gauges: queues, clients, certificates, runs and open rounds.

Invariants: nothing is kept between scrapes, so gauges cost nothing without a scraper; labels have
fixed values, except `run`: the active runs and up to `MOST_ENDED` that ended within an hour.
"""

import math
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from fedloom.protocol.version import __version__
from fedloom.server.engine import Phase
from fedloom.server.fleet.sessions import Fleet
from fedloom.server.insight.curves import curves, latest
from fedloom.server.ledger.rows import CurveRow, RunRow
from fedloom.server.metrics.gauges import Values
from fedloom.server.pki.authority import Authority
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.rounds.manager import ACTIVE, Runs

ENDED_S = 3600.0
MOST_ENDED = 10
MEASURES = ("loss", "accuracy")
"""Metrics that are shown; clients choose the names of other metrics freely."""


async def gauge_values(context: ConsoleContext) -> Values:
    """The value of every gauge now."""
    now, ledger = time.time(), context.ledger
    rows = await context.in_reader(ledger.list_runs)
    shown = _shown(rows, now)
    measured = {row.id: await context.in_reader(ledger.last_curve_rows, row.id) for row in shown}
    statuses = await context.in_reader(ledger.clients_by_status)
    soonest = await context.in_reader(ledger.first_certificate_end)
    disk = await context.in_disk(shutil.disk_usage, context.models.path("any").parent)
    return {
        **_of_server(context),
        "fedloom_clients_enrolled": [((name,), n) for name, n in statuses.items()],
        "fedloom_certificate_expiry_seconds": [*_ends(context.authority, soonest)],
        "fedloom_disk_free_bytes": [((), disk.free)],
        "fedloom_disk_bytes": [((), disk.total)],
        "fedloom_runs": [((state,), sum(r.state == state for r in rows)) for state in ACTIVE],
        **_of_runs(shown, measured),
        **_of_rounds(context.runs, shown),
    }


def _shown(rows: Iterable[RunRow], now: float) -> list[RunRow]:
    rows = list(rows)
    ended = [row for row in rows if (row.ended_at or -math.inf) > now - ENDED_S]
    return [row for row in rows if row.state in ACTIVE] + ended[-MOST_ENDED:]


def _of_server(context: ConsoleContext) -> Values:
    access = context.access
    queues = {
        "ledger": context.in_ledger, "reader": context.in_reader, "fold": context.in_fold,
        "disk": context.in_disk, "access": access.in_access, "passwords": access.in_passwords,
    }  # fmt: skip
    up, down = [context.uploads], [context.downloads, context.extra_downloads]
    return {
        "fedloom_server": [((__version__,), 1)],
        "fedloom_queue_depth": [((name,), thread.pending) for name, thread in queues.items()],
        "fedloom_uploads": [((), sum(each.busy for each in up))],
        "fedloom_downloads": [((), sum(each.busy for each in down))],
        "fedloom_transfers_waiting": [
            ((way,), sum(each.waiting for each in slots))
            for way, slots in (("up", up), ("down", down))
        ],
        "fedloom_clients": [((state,), n) for state, n in states(context.fleet).items()],
        "fedloom_watchers": [((), len(context.live))],
    }


def states(fleet: Fleet) -> dict[str, int]:
    """Number of connected clients per state."""
    counts = dict.fromkeys(("available", "working", "resting", "quarantine", "drain"), 0)
    available = set(fleet.available())
    for session in fleet:
        held = fleet.held(session.client)
        if held is not None:
            counts[held.value] += 1
        elif session.task is not None:
            counts["working"] += 1
        else:
            counts["available" if session.client in available else "resting"] += 1
    return counts


def _ends(
    authority: Authority | None, soonest: float | None
) -> Iterator[tuple[tuple[str, ...], float]]:
    ends: dict[str, datetime] = {} if authority is None else authority.ends()
    for name, end in ends.items():
        yield (name,), end.timestamp()
    if soonest is not None:
        yield ("client",), soonest


def _of_runs(rows: Iterable[RunRow], measured: Mapping[str, list[CurveRow]]) -> Values:
    values: dict[str, list[tuple[tuple[str, ...], float]]] = {
        f"fedloom_run_{name}": []
        for name in ("rounds_wanted", "rounds_committed", "progress", "measure", "epsilon")
    }
    for row in rows:
        run, (committed, wanted) = row.id, row.done_of
        values["fedloom_run_rounds_wanted"].append(((run,), wanted))
        values["fedloom_run_rounds_committed"].append(((run,), committed))
        values["fedloom_run_progress"].append(((run,), committed / wanted if wanted else 1.0))
        found = curves(measured[run])
        for kind in ("training", "evaluation"):
            for name in MEASURES:
                if (value := latest(found, kind, name)) is not None:
                    values["fedloom_run_measure"].append(((run, kind, name), value))
        if spent := [value for value in found["epsilon"] if value is not None]:
            values["fedloom_run_epsilon"].append(((run,), spent[-1]))
    return values


def _of_rounds(runs: Runs, rows: Iterable[RunRow]) -> Values:
    values: dict[str, list[tuple[tuple[str, ...], float]]] = {}

    def put(name: str, labels: tuple[str, ...], value: float) -> None:
        values.setdefault(f"fedloom_round{name}", []).append((labels, value))

    for row in rows:
        run = row.id
        driver = runs.get(run)
        open_round = None if driver is None else driver.round
        if open_round is None or open_round.engine.state.is_over:
            continue
        status = open_round.status()
        put("", (run,), status["number"])
        for phase in Phase:
            put("_members", (run, phase.value), status["clients"].get(phase.value, 0))
        for name in ("accepted", "goal", "quorum"):
            put(f"_{name}", (run,), status[name])
        if (left_s := status["deadline_left_s"]) is not None:
            put("_deadline_seconds", (run,), left_s)
    return values
