"""Reads the values of the gauges: queues, clients, certificates, runs and open rounds.

Invariants: nothing is kept between scrapes, so gauges cost nothing without a scraper; labels have
fixed values, except `run`: the active runs and up to `MOST_ENDED` that ended within an hour.
"""

import math
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from statistics import median

from fedloom.protocol.version import __version__
from fedloom.server.cool_off import CoolOffs
from fedloom.server.engine import MaskedRound, Phase, SessionState
from fedloom.server.fleet.context import FleetContext
from fedloom.server.fleet.device_reports import DeviceReport, Gpu
from fedloom.server.fleet.sessions import Fleet
from fedloom.server.insight.curves import curves, latest
from fedloom.server.ledger.rows import CurveRow, RunRow
from fedloom.server.metrics.gauges import Values
from fedloom.server.pki.authority import Authority
from fedloom.server.queries.check_ins import check_ins
from fedloom.server.queries.clients import failing
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.rounds.manager import ACTIVE, Runs
from fedloom.server.rounds.sharing.queue import QUEUED
from fedloom.server.threads import Thread

ENDED_S = 3600.0
MOST_ENDED = 10
MEASURES = ("loss", "accuracy")
"""Metrics that are shown; clients choose the names of other metrics freely."""

MISSED = 3
"""Reports that a device may miss before its last one no longer counts in the metrics."""


async def gauge_values(context: ConsoleContext) -> Values:
    """The value of every gauge now."""
    now, ledger = time.time(), context.ledger
    rows = await context.in_reader(ledger.list_runs)
    shown = _shown(rows, now)
    measured = {row.id: await context.in_reader(ledger.last_curve_rows, row.id) for row in shown}
    fails = await failing(context)
    statuses = await context.in_reader(ledger.clients_by_status)
    soonest = await context.in_reader(ledger.first_certificate_end)
    disk = await context.in_disk(shutil.disk_usage, context.models.path("any").parent)
    return {
        **_of_server(context),
        **({} if context.replica is None else context.replica.values()),
        "fedloom_clients_failing": [((), len(fails))],
        **_of_devices(context),
        **_of_check_ins(context),
        "fedloom_clients_enrolled": [((name,), n) for name, n in statuses.items()],
        "fedloom_certificate_expiry_seconds": [*_ends(context.authority, soonest)],
        "fedloom_disk_free_bytes": [((), disk.free)],
        "fedloom_disk_bytes": [((), disk.total)],
        "fedloom_runs": [
            ((state,), sum(r.state == state for r in rows)) for state in (*ACTIVE, QUEUED)
        ],
        **_of_runs(shown, measured),
        **_of_rounds(context.runs, shown),
    }


def _shown(rows: Iterable[RunRow], now: float) -> list[RunRow]:
    rows = list(rows)
    ended = [row for row in rows if (row.ended_at or -math.inf) > now - ENDED_S]
    return [row for row in rows if row.state in ACTIVE] + ended[-MOST_ENDED:]


def of_transfers(server: FleetContext | ConsoleContext, **queues: Thread) -> Values:
    """The version, the queues, these and those of storage, and the transfers of a server."""
    queues = {
        "ledger": server.in_ledger, "reader": server.in_reader, "fold": server.in_fold,
        "disk": server.in_disk, **queues,
    }  # fmt: skip
    up, down = [server.uploads], [server.downloads, server.extra_downloads]
    return {
        "fedloom_server": [((__version__,), 1)],
        "fedloom_queue_depth": [((name,), thread.pending) for name, thread in queues.items()],
        "fedloom_uploads": [((), sum(each.busy for each in up))],
        "fedloom_downloads": [((), sum(each.busy for each in down))],
        "fedloom_transfers_waiting": [
            ((way,), sum(each.waiting for each in slots))
            for way, slots in (("up", up), ("down", down))
        ],
    }


def _of_server(context: ConsoleContext) -> Values:
    access = context.access
    queues = {"access": access.in_access, "passwords": access.in_passwords}
    return {
        **of_transfers(context, **queues),
        "fedloom_clients": [
            ((state,), n) for state, n in states(context.fleet, context.runs.cool_offs).items()
        ],
        "fedloom_watchers": [((), len(context.live))],
    }


def _of_devices(context: ConsoleContext) -> Values:
    # An owner may have withdrawn the readings since.
    since = time.time() - MISSED * max(10.0, context.config.clients.device_report_s)
    found = list(context.devices.of((session.client for session in context.fleet), since))
    gpus = [gpu for report in found for gpu in report.gpus]
    readings = {
        "cpu_percent": [each.cpu for each in found],
        "memory_percent": [_percent(each) for each in found],
        "temperature_celsius": [each.temperature for each in found],
        "battery_percent": [each.battery for each in found],
        "gpu_percent": [each.busy for each in gpus],
        "gpu_memory_percent": [_percent(each) for each in gpus],
        "gpu_temperature_celsius": [each.temperature for each in gpus],
    }
    values: list[tuple[tuple[str, ...], float]] = []
    for name, several in readings.items():
        if known := [each for each in several if each is not None]:
            for quantile, of in (("0", min), ("0.5", median), ("1", max)):
                values.append(((name, quantile), of(known)))
    return {"fedloom_devices_reporting": [((), len(found))], "fedloom_device_reading": values}


def _of_check_ins(context: ConsoleContext) -> Values:
    view = check_ins(context)
    states = ("expected", "waiting", "soon", "missing")
    found = [((state,), 0 if view is None else getattr(view, state)) for state in states]
    return {"fedloom_check_in_devices": found}


def _percent(of: DeviceReport | Gpu) -> float | None:
    used, total = of.memory_used_bytes, of.memory_total_bytes
    return None if used is None or total is None else 100 * used / total


def states(fleet: Fleet, cool_offs: CoolOffs) -> dict[str, int]:
    """Number of connected clients per state."""
    names = ("available", "working", "resting", "cooling", "quarantine", "drain")
    counts = dict.fromkeys(names, 0)
    available = set(fleet.available())
    for session in fleet:
        held = fleet.held(session.client)
        if held is not None:
            counts[held.value] += 1
        elif session.task is not None:
            counts["working"] += 1
        elif cool_offs.left_s(session.client):
            counts["cooling"] += 1
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
        if isinstance(open_round.engine, MaskedRound):
            states = Counter(each.state for each in open_round.engine.sessions)
            for state in SessionState:
                put("_sessions", (run, state.value), states[state])
        if (left_s := status["deadline_left_s"]) is not None:
            put("_deadline_seconds", (run,), left_s)
    return values
