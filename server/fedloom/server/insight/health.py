"""Alerts for operators: what is wrong, why, and what to do.

Each rule is a function from facts to alerts, which the console and the API show. A rule raises an
alert only if an operator can act on it; a client that declines, for example, is none.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fedloom.server.insight.failing import advice
from fedloom.server.ledger.rows import ClientRow, RefusalCount, RunRow
from fedloom.server.metrics.meters import STOPPED
from fedloom.strategies.exact.grid import MANY_VANISHED

DAY_S = 86400.0
SLOW_START_S = 60.0
MANY_REFUSED = 3
MOST_FAILING = 3
"""Failing clients with an alert of their own."""
SHORT_OF_DISK = 0.05


class Level(StrEnum):
    """Severity."""

    OK = "ok"
    IDLE = "idle"
    WARN = "warn"
    BAD = "bad"


_WORST_FIRST = (Level.BAD, Level.WARN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something that needs an operator.

    Attributes:
        what: the problem, one sentence.
        todo: what to do about it.
        link: a page that shows more.
        run: id of its run, if it concerns one.
        client: name of its client, if it concerns exactly one.
    """

    level: Level
    what: str
    todo: str
    link: str = ""
    run: str = ""
    client: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Input of the rules.

    Attributes:
        now: seconds since the epoch.
        clients_online: connected clients.
        checking_in: clients that come when told, connected or not.
        check_in_every_s: mean time between check-ins of one.
        clients_enrolled: enrolled clients that are not revoked.
        active: running and paused runs: `id`, `state`, `reason`, `committed`, `created_at`,
            `rounds` (the latest, newest first), `live` (see `RunDriver.status`; None for none) and
            `failing` (see `fedloom.server.insight.failing`).
        ended: runs that ended.
        refused: refusals of the last hour by code.
        authority_until: first expiry of the authority's certificates, seconds since the epoch; None
            on plaintext.
        disk_free: share of the state directory's disk that is free.
        failing: clients that fail again and again, those with most recent failures first.
    """

    now: float
    clients_online: int = 0
    checking_in: int = 0
    check_in_every_s: float = 0.0
    clients_enrolled: int = 0
    active: tuple[Mapping[str, Any], ...] = ()
    ended: tuple[RunRow, ...] = ()
    refused: tuple[RefusalCount, ...] = ()
    authority_until: float | None = None
    disk_free: float = 1.0
    failing: tuple[ClientRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Health:
    """A server's severity, a headline and its alerts."""

    level: Level
    headline: str
    alerts: list[Alert] = field(default_factory=list)


def assess(facts: Facts) -> Health:
    """Apply all rules; the worst alerts come first."""
    alerts = [alert for rule in _RULES for alert in rule(facts)]
    alerts.sort(key=lambda alert: _WORST_FIRST.index(alert.level))
    if alerts:
        number = len(alerts)
        noun = "thing needs" if number == 1 else "things need"
        return Health(alerts[0].level, f"{number} {noun} your attention", alerts)
    running = [run for run in facts.active if run["state"] == "running"]
    if running:
        return Health(Level.OK, "Everything is well")
    return Health(Level.IDLE, "Nothing is running")


def _failing_runs(facts: Facts) -> Iterator[Alert]:
    for run in facts.active:
        if found := run.get("failing"):
            page = f"/runs/{run['id']}"
            yield Alert(
                level=Level.BAD if found["stuck"] else Level.WARN,
                what=found["what"],
                todo=found["todo"],
                link=f"{page}/rounds/{found['number']}",
                run=run["id"],
            )


def _paused(facts: Facts) -> Iterator[Alert]:
    for run in facts.active:
        if run["state"] == "paused" and not _has_failures(run):
            why = run["reason"].rstrip(".")
            yield Alert(
                level=Level.WARN,
                what=f"{run['id']} is paused{': ' + why if why else ''}.",
                todo="Resume it when you are ready. Updates are accepted meanwhile.",
                link=f"/runs/{run['id']}",
                run=run["id"],
            )


def _failed(facts: Facts) -> Iterator[Alert]:
    for run in facts.ended:
        if run.state == "failed" and facts.now - (run.ended_at or 0) < DAY_S:
            yield Alert(
                level=Level.BAD,
                what=f"{run.id} failed: {run.reason.rstrip('.') or 'see the log'}.",
                todo="Fix the cause, then clone the run and start it from its last model.",
                link=f"/runs/{run.id}",
                run=run.id,
            )


def _too_few(facts: Facts) -> Iterator[Alert]:
    for run, live in _open(facts):
        if live["state"] != "selecting" or live["paused"]:
            continue
        since = run["rounds"][0]["closed_at"] if run["rounds"] else None
        waited_s = facts.now - (since or run["created_at"])
        if live["available"] < live["goal"] and waited_s > SLOW_START_S:
            enough = live["available"] + facts.checking_in >= live["goal"]
            if enough and waited_s < 2 * facts.check_in_every_s:
                continue  # they come
            elsewhere = facts.clients_online - live["available"]
            enough = facts.clients_online >= live["goal"] and len(facts.active) > 1
            held = live.get("held_back", 0)
            if held:
                yield Alert(
                    level=Level.WARN,
                    what=f"{run['id']} waits for clients: {live['available']} of {live['goal']} "
                    f"may take part. Its privacy claim holds back {held} that did so already.",
                    todo="Start or enrol clients that have not taken part, or stop the run.",
                    link="/clients",
                    run=run["id"],
                )
                continue
            if cooling := run["live"].get("clients_cooling", 0):
                yield Alert(
                    level=Level.WARN,
                    what=f"{run['id']} waits for clients: {live['available']} of {live['goal']} "
                    f"are available. {cooling} cool off after failures.",
                    todo="Fix what fails, then release them: `fedloom client release NAME`.",
                    link="/clients?state=cooling",
                    run=run["id"],
                )
                continue
            yield Alert(
                level=Level.WARN,
                what=f"{run['id']} waits for clients: {live['available']} of {live['goal']} "
                + (f"are free; {elsewhere} others are online." if enough else "are available."),
                todo="Pause the run that uses the others, release clients on hold, or lower this "
                "run's goal."
                if enough
                else "Start or enrol more clients, or lower the run's goal.",
                link="/clients",
                run=run["id"],
            )


def _short_of_quorum(facts: Facts) -> Iterator[Alert]:
    for run, live in _open(facts):
        left_s = live["deadline_left_s"]
        if live["state"] != "reporting" or live["paused"] or left_s is None:
            continue
        opened = next((r for r in run["rounds"] if r["number"] == live["number"]), None)
        whole_s = opened["deadline_at"] - opened["opened_at"] if opened else left_s
        missing = live["quorum"] - live["accepted"]
        if missing > 0 and not _has_failures(run) and left_s < max(5.0, 0.25 * whole_s):
            yield Alert(
                level=Level.BAD,
                what=f"Round {live['number']} of {run['id']} will be abandoned in {left_s:.0f} s: "
                f"{live['accepted']} of the {live['quorum']} updates of its quorum are accepted.",
                todo="Extend its deadline, or lower its quorum.",
                link=f"/runs/{run['id']}",
                run=run["id"],
            )


def _abandoned(facts: Facts) -> Iterator[Alert]:
    for run in facts.active:
        over = [r for r in run["rounds"] if r["state"] in ("committed", "abandoned")][:5]
        by_themselves = [r for r in over if r["cause"] != STOPPED]  # not aborted by an operator
        lost = [r for r in by_themselves if r["state"] == "abandoned"]
        reported = run["state"] != "running" or _has_failures(run)
        if lost and by_themselves[0] is lost[0] and not reported:
            several = f"{len(lost)} of the last {len(over)} rounds were"
            times = "1 round was" if len(lost) == 1 else several
            yield Alert(
                level=Level.BAD if len(lost) > 1 else Level.WARN,
                what=f"{times} abandoned in {run['id']}: {lost[0]['reason'].rstrip('.')}.",
                todo="Check what its clients did in that round. Three in a row pause the run.",
                link=f"/runs/{run['id']}/rounds/{lost[0]['number']}",
                run=run["id"],
            )


def _underflowed(facts: Facts) -> Iterator[Alert]:
    for run in facts.active:
        last = next((r for r in run["rounds"] if r.get("underflow") is not None), None)
        if last is not None and last["underflow"] >= MANY_VANISHED:
            yield Alert(
                level=Level.WARN,
                what=f"Round {last['number']} of {run['id']} rounded {last['underflow']:.0%} of "
                "the values other than zero to zero.",
                todo="Submit the run again with lower max_abs and max_weight, or with more "
                "sum_bits: docs/exactness.md.",
                link=f"/runs/{run['id']}/rounds/{last['number']}",
                run=run["id"],
            )


def _refused(facts: Facts) -> Iterator[Alert]:
    for row in facts.refused:
        if not _alarms(row):
            continue
        whose = row.client or "An unknown device"
        several = row.clients > 1
        its = "" if several else row.client or ""
        yield Alert(
            level=Level.WARN,
            what=(f"{row.clients} clients were" if several else f"{whose} was")
            + f" refused {row.times} times in the last hour ({row.code}): {row.message}",
            client=its,
            todo=advice(f"{row.code}: {row.message}", most=_are_most(row, facts), client=its)
            if several or row.client
            else "Check which device tries to connect without a valid certificate or token.",
            link="/clients" if several or not row.client else f"/clients/{row.client}",
        )


def _alarms(row: RefusalCount) -> bool:
    return row.times >= MANY_REFUSED and row.code not in _HARMLESS


def _failing_clients(facts: Facts) -> Iterator[Alert]:
    """A few of many clients fail; where more than half do, the run is the cause, not they."""
    if len(facts.failing) > facts.clients_enrolled / 2:
        return
    refused = {row.client for row in facts.refused if row.clients == 1 and _alarms(row)}
    for row in facts.failing[:MOST_FAILING]:
        if row.name in refused:
            continue  # it has an alert with the same error
        yield Alert(
            level=Level.WARN,
            what=f"{row.name} fails again and again, last in round "
            f"{row.failed_round} of {row.failed_run}: {(row.failed_why or '').rstrip('.')}.",
            todo="Fix its code or data, then release it; or quarantine it.",
            link=f"/clients/{row.name}",
            client=row.name,
        )
    if (more := len(facts.failing) - MOST_FAILING) > 0:
        yield Alert(
            level=Level.WARN,
            what=f"{more} more client{'s fail' if more > 1 else ' fails'} again and again.",
            todo="Compare their last errors, versions and labels.",
            link="/clients?state=failing",
        )


def _are_most(row: RefusalCount, facts: Facts) -> bool:
    return row.clients > 1 and 2 * row.clients >= facts.clients_online


_HARMLESS = frozenset({"busy", "round_closed", "stale_round", "future_round", "not_in_cohort"})
"""Codes of refusals that are normal in rounds."""


def _certificates(facts: Facts) -> Iterator[Alert]:
    left_s = None if facts.authority_until is None else facts.authority_until - facts.now
    if left_s is not None and left_s < 30 * DAY_S:
        yield Alert(
            level=Level.BAD if left_s < 3 * DAY_S else Level.WARN,
            what=f"A certificate of this server's authority expires in {max(0, left_s) / DAY_S:.0f}"
            " days. After that, no client can connect.",
            todo="Renew it before then: see docs/deployment.md.",
            link="/enrolment",
        )


def _disk(facts: Facts) -> Iterator[Alert]:
    if facts.disk_free < SHORT_OF_DISK:
        yield Alert(
            level=Level.BAD,
            what=f"Only {100 * facts.disk_free:.1f} % of the server's disk is free. Rounds wait "
            "while it is full.",
            todo="Free space on the disk of the state directory.",
        )


def _nobody(facts: Facts) -> Iterator[Alert]:
    running = any(run["state"] == "running" for run in facts.active)
    if running and not facts.clients_online and not facts.checking_in:
        enrolled = facts.clients_enrolled
        yield Alert(
            level=Level.BAD,
            what="No client is connected"
            + (f", although {enrolled} are enrolled." if enrolled else ", and none is enrolled."),
            todo="Check that the clients' agents run and reach the fleet's address."
            if enrolled
            else "Create tokens and enrol devices.",
            link="/clients" if enrolled else "/enrolment",
        )


def _has_failures(run: Mapping[str, Any]) -> bool:
    """Whether `_failing_runs` says what is wrong with a run."""
    return bool(run.get("failing"))


def _open(facts: Facts) -> Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for run in facts.active:
        live = (run["live"] or {}).get("round")
        if live and run["state"] == "running":
            yield run, live


_RULES: tuple[Callable[[Facts], Iterator[Alert]], ...] = (
    _nobody,
    _failed,
    _failing_runs,
    _short_of_quorum,
    _abandoned,
    _paused,
    _too_few,
    _underflowed,
    _failing_clients,
    _refused,
    _certificates,
    _disk,
)
