"""How a server stands when it is asked: queues, clients, certificates, runs.

Invariants: nothing here is kept between two looks, so it costs nothing while nobody asks; labels
are of closed sets, but for `run`: active runs, and the few that ended within the last hour.
"""

import math
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from fedloom.protocol.version import __version__
from fedloom.server.context import World
from fedloom.server.engine import Phase
from fedloom.server.fleet.sessions import Fleet
from fedloom.server.insight.curves import curves, latest
from fedloom.server.ledger.rows import CurveRow, RunRow
from fedloom.server.pki.authority import Authority
from fedloom.server.rounds.manager import ACTIVE, Runs

ENDED_S = 3600.0
MOST_ENDED = 10
MEASURES = ("loss", "accuracy")
"""Metrics of clients that are shown: others have names of anybody's choice."""

Values = Mapping[str, Iterable[tuple[tuple[str, ...], float]]]
"""Name of a gauge → its labels' values, and its value."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A gauge, without its values."""

    name: str
    words: str
    labels: tuple[str, ...] = ()


GAUGES = (
    Gauge("fedloom_server", "1; the label says which version runs.", ("version",)),
    Gauge("fedloom_queue_depth", "Calls that wait for a thread, or are in it.", ("queue",)),
    Gauge("fedloom_uploads", "Updates that are coming in."),
    Gauge("fedloom_downloads", "Models that are going out."),
    Gauge("fedloom_transfers_waiting", "Transfers that wait for a place.", ("direction",)),
    Gauge("fedloom_clients", "Connected clients, by what they do.", ("state",)),
    Gauge("fedloom_clients_enrolled", "Clients in the ledger, by status.", ("status",)),
    Gauge("fedloom_watchers", "Readers of the live stream."),
    Gauge(
        "fedloom_certificate_expiry_seconds",
        "When certificates end, seconds since the epoch: the authority's root and issuer, this "
        "server's own, and the soonest of the latest ones of enrolled clients.",
        ("certificate",),
    ),
    Gauge("fedloom_disk_free_bytes", "Free on the disk of models and updates."),
    Gauge("fedloom_disk_bytes", "Size of that disk."),
    Gauge("fedloom_runs", "Runs that are active, by state.", ("state",)),
    Gauge("fedloom_run_rounds_wanted", "Training rounds that a run is to commit.", ("run",)),
    Gauge("fedloom_run_rounds_committed", "Training rounds that it has committed.", ("run",)),
    Gauge("fedloom_run_progress", "Share of a run's rounds that are committed.", ("run",)),
    Gauge(
        "fedloom_run_measure",
        "Mean over clients in the last round that measured it; not of private runs.",
        ("run", "kind", "measure"),
    ),
    Gauge("fedloom_run_epsilon", "Privacy that a run has spent.", ("run",)),
    Gauge("fedloom_round", "Number of a run's open round.", ("run",)),
    Gauge("fedloom_round_members", "Members of it, by phase.", ("run", "phase")),
    Gauge("fedloom_round_accepted", "Updates that it has.", ("run",)),
    Gauge("fedloom_round_goal", "Updates that it closes with.", ("run",)),
    Gauge("fedloom_round_quorum", "Fewest that it may close with at its deadline.", ("run",)),
    Gauge("fedloom_round_deadline_seconds", "Time until its deadline.", ("run",)),
)


def families(values: Values) -> Iterator[Metric]:
    """The gauges with their values."""
    for gauge in GAUGES:
        family = GaugeMetricFamily(gauge.name, gauge.words, labels=gauge.labels)
        for labels, value in values.get(gauge.name, ()):
            family.add_metric(labels, value)
        yield family


async def look(world: World, runs: Runs, authority: Authority | None) -> Values:
    """How everything stands now."""
    now, ledger = time.time(), world.ledger
    rows = await world.in_reader(ledger.list_runs)
    shown = _shown(rows, now)
    measured = {row.id: await world.in_reader(ledger.last_curve_rows, row.id) for row in shown}
    statuses = await world.in_reader(ledger.clients_by_status)
    soonest = await world.in_reader(ledger.first_certificate_end)
    disk = await world.in_disk(shutil.disk_usage, world.models.path("any").parent)
    return {
        **_of_server(world),
        "fedloom_clients_enrolled": [((name,), n) for name, n in statuses.items()],
        "fedloom_certificate_expiry_seconds": [*_ends(authority, soonest)],
        "fedloom_disk_free_bytes": [((), disk.free)],
        "fedloom_disk_bytes": [((), disk.total)],
        "fedloom_runs": [((state,), sum(r.state == state for r in rows)) for state in ACTIVE],
        **_of_runs(shown, measured),
        **_of_rounds(runs, shown),
    }


def _shown(rows: Iterable[RunRow], now: float) -> list[RunRow]:
    rows = list(rows)
    ended = [row for row in rows if (row.ended_at or -math.inf) > now - ENDED_S]
    return [row for row in rows if row.state in ACTIVE] + ended[-MOST_ENDED:]


def _of_server(world: World) -> Values:
    queues = {
        "ledger": world.in_ledger, "reader": world.in_reader, "fold": world.in_fold,
        "disk": world.in_disk, "access": world.in_access, "passwords": world.in_passwords,
    }  # fmt: skip
    up, down = world.uploads, world.downloads
    return {
        "fedloom_server": [((__version__,), 1)],
        "fedloom_queue_depth": [((name,), thread.pending) for name, thread in queues.items()],
        "fedloom_uploads": [((), up.busy)],
        "fedloom_downloads": [((), down.busy)],
        "fedloom_transfers_waiting": [(("up",), up.waiting), (("down",), down.waiting)],
        "fedloom_clients": [((state,), n) for state, n in states(world.fleet).items()],
        "fedloom_watchers": [((), len(world.live))],
    }


def states(fleet: Fleet) -> dict[str, int]:
    """How many connected clients do what."""
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
        run, wanted, committed = row.id, row.spec["rounds"], row.committed
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
