"""Gates and drivers of a masked round in every order of their statements.

As `test_gate_interleavings`: see `support.masked_actors` for what must hold. Each rule that is
taken away is found.
"""

import re
from dataclasses import dataclass
from functools import partial
from unittest.mock import ANY, Mock

import pytest

from fedloom.server.engine import SessionState
from fedloom.server.ledger.masking import bodies, sessions
from fedloom.server.ledger.objects import stored_bodies
from fedloom.server.ledger.objects.stored_bodies import StoredBodies
from fedloom.server.ledger.replicas import batch_accepts, gate_queues, lease_rows
from fedloom.server.ledger.replicas.gate_queues import GateLease
from fedloom.server.ledger.store import is_there
from fedloom.server.ledger.tables import spool_objects, updates
from support.interleavings import InvariantError, explore, walk
from support.ledger_actors import RUN
from support.masked_actors import MaskedGates, MaskedScenario
from support.postgresql import PostgreSQL

WAIT_MS = 60_000


def drive(do):
    if do.freeze():
        do.unmask()


def go_on(do):
    if do.take_over():
        [session] = do.ledger.sessions(RUN, 1)
        if session.state is SessionState.MASKING:
            drive(do)


def watch(do):
    do.strike_out()
    do.freeze()


def begin_anew(do):
    do.give_up("ann.1")
    do.upload("ann.1")


SCENARIOS = {
    "same body": MaskedScenario(
        {"g": lambda do: do.upload("ann.1"), "h": lambda do: do.upload("ann.1"), "a": drive},
        accepted=("bob.1",),
    ),
    "other body": MaskedScenario(
        {"g": lambda do: do.accept("ann.1"), "h": lambda do: do.upload("ann.2")}, stored=("ann.1",)
    ),
    "two bodies": MaskedScenario(
        {"g": lambda do: do.upload("ann.1"), "h": lambda do: do.upload("ann.2"), "a": drive},
        accepted=("bob.1",),
    ),
    "at the driver": MaskedScenario(
        {"a": lambda do: do.accept("ann.1"), "h": lambda do: do.upload("ann.2")}, stored=("ann.1",)
    ),
    "given up": MaskedScenario(
        {"g": lambda do: do.accept("ann.1"), "h": begin_anew}, stored=("ann.1",)
    ),
    "end": MaskedScenario(
        {"g": lambda do: do.accept("ann.1"), "h": lambda do: do.accept("bob.1"), "a": drive},
        stored=("ann.1", "bob.1"),
    ),
    "late": MaskedScenario(
        {"g": lambda do: do.upload("ann.1"), "a": lambda do: do.freeze()}, accepted=("bob.1",)
    ),
    "outsider": MaskedScenario(
        {"g": lambda do: do.accept("eve.1"), "a": lambda do: do.freeze()}, stored=("eve.1",),
        accepted=("bob.1",),
    ),
    "early": MaskedScenario(
        {
            "g": lambda do: do.accept("ann.1"),
            "h": lambda do: do.accept("ann.1"),
            "a": lambda do: do.ask(),
        },
        stored=("ann.1",), sharing=True,
    ),
    "abandoned": MaskedScenario(
        {"g": lambda do: do.upload("ann.1"), "a": lambda do: do.abandon()}, accepted=("bob.1",)
    ),
    "take-over": MaskedScenario(
        {"g": lambda do: do.accept("ann.1"), "a": drive, "b": go_on},
        stored=("ann.1",), accepted=("bob.1",), lease="expired",
    ),
    "struck out": MaskedScenario(
        {"g": lambda do: do.accept("ann.1"), "a": watch}, stored=("ann.1",), accepted=("bob.1",),
        late=("g",),
    ),
    "shut out": MaskedScenario(
        {"g": lambda do: do.accept("ann.1"), "a": lambda do: do.ledger.set_hold(
            "ann", "quarantine", "")}, stored=("ann.1",),
    ),
    "declined": MaskedScenario(
        {"g": lambda do: do.accept("ann.1"), "a": lambda do: do.fail("ann")}, stored=("ann.1",)
    ),
    "seen": MaskedScenario(
        {"h": lambda do: do.see("ann", "bob"), "a": drive}, accepted=("ann.1", "bob.1")
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def gates():
    server = PostgreSQL()
    server.execute("ALTER SYSTEM SET fsync = off")  # no order depends on it
    server.execute("SELECT pg_reload_conf()")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease_rows, "WAIT_MS", WAIT_MS)
        gates = MaskedGates(server)
        yield gates
        gates.close()
    server.close()


def run_of(gates, name):
    return lambda choose: gates.run(SCENARIOS[name], choose)


def check(gates, name, *, walks, **limits):
    run = run_of(gates, name)
    count = walks
    for _ in explore(run, **limits):
        count += 1
    for seed in range(walks):
        walk(run, seed)
    print(f"{name}: {count} schedules")


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_order_of_statements_breaks_an_invariant(gates, name):
    """In schedules with at most one preemption or death, and in drawn ones with many."""
    check(gates, name, interventions=1, limit=3, walks=1)


@pytest.mark.longest
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_order_with_two_interventions_breaks_an_invariant(gates, name):
    check(gates, name, interventions=2, limit=80, walks=15)


# ---- rules taken away ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Removal:
    """A rule of the product that is taken away; see `test_gate_interleavings.Removal`."""

    scenario: str
    found: str
    clause: str = ""
    instead: str = ""
    patched: tuple = ()


def by_its_row(connection, file, run, number):
    """Whether an update in clear was accepted."""
    return is_there(connection, updates, run=run, round=number, file=file)


def drop_blindly(self, file, run, number):
    found = self.bodies_of_file(file)
    self._change(spool_objects.delete().filter_by(file=file))
    return found


NOT_WHOLE = "was accepted, and its body is|The body of ann changed"
LATE = "is taken|are taken|was taken in a session"
RULES = {
    "the fence of gates": Removal(
        "struck out", "though it was struck out", patched=(GateLease, "check", lambda *_: None)
    ),
    "accepting locks the session": Removal(
        "end", LATE, r"(?<=FROM masking_sessions WHERE )(.*) FOR UPDATE", r"\1"
    ),
    "a body is taken while its session takes bodies": Removal(
        "late", LATE,
        patched=(sessions, "_ADMITTED", dict.fromkeys(sessions._ADMITTED, tuple(SessionState))),
    ),
    "only members that have shared": Removal(
        "outsider", "has not shared", patched=(sessions, "_FROM", {sessions.BODY: "members"})
    ),
    "a client in quarantine is refused": Removal(
        "shut out", "is .*quarantine", r"(?<=SELECT clients.status, )clients.hold", "NULL"
    ),
    "accepting locks the client": Removal(
        "shut out", "is .*quarantine", r"(clients.hold FROM clients.*) FOR NO KEY UPDATE", r"\1"
    ),
    "accepting compares the number of parts": Removal(
        "given up", NOT_WHOLE, patched=(gate_queues, "len", lambda _: ANY)
    ),
    "accepting compares the header": Removal(
        "other body", NOT_WHOLE,
        patched=(batch_accepts, "hashlib", Mock(sha256=lambda _: Mock(hexdigest=lambda: ANY))),
    ),
    "accepting locks the body": Removal(
        "other body", NOT_WHOLE, r"(spool_objects.parts FROM spool_objects.*) FOR SHARE", r"\1"
    ),
    "the driver checks bodies, too": Removal(
        "at the driver", NOT_WHOLE, patched=(bodies, "lock_body", lambda *_: None)
    ),
    "no body begins in place of one that a message accepts": Removal(
        "other body", NOT_WHOLE, patched=(stored_bodies, "_is_accepted", by_its_row)
    ),
    "a body that a message accepts is not given up": Removal(
        "given up", NOT_WHOLE, patched=(stored_bodies, "_is_accepted", by_its_row)
    ),
    "a late body is deleted": Removal(
        "late", "Late bodies are left", patched=(StoredBodies, "drop_unaccepted", lambda *_: [])
    ),
    "an accepted body is not deleted as a late one": Removal(
        "early", NOT_WHOLE, patched=(StoredBodies, "drop_unaccepted", drop_blindly)
    ),
    "deleting a late body locks it": Removal(
        "early", NOT_WHOLE, r"^(SELECT spool_objects.object, spool_objects.header.*) FOR UPDATE",
        r"\1",
    ),
    "clients are locked in one order": Removal(
        "seen", "wait for locks of each other",
        patched=(sessions, "lock_clients", lambda *_: None),
    ),
}  # fmt: skip


SLOW = {
    "accepting locks the session",
    "accepting locks the body",
    "an accepted body is not deleted as a late one",
    "deleting a late body locks it",
    "clients are locked in one order",
}
"""Found after several schedules."""


@pytest.fixture
def without(gates, monkeypatch):
    """Takes a rule away for the rest of a test."""

    def take_away(removal):
        if removal.patched:
            monkeypatch.setattr(*removal.patched, raising=False)
        else:
            rewrite = partial(re.compile(removal.clause).sub, removal.instead)
            monkeypatch.setattr(gates.scheduler, "rewrite", rewrite)

    return take_away


def first_violation(gates, name, **limits):
    """The first violation in a scenario, None if there is none, and the schedules until then."""
    count = 0
    try:
        for _ in explore(run_of(gates, name), **limits):
            count += 1
    except InvariantError as violation:
        return violation, count + 1
    return None, count


@pytest.mark.parametrize(
    "rule", [pytest.param(each, marks=pytest.mark.long) if each in SLOW else each for each in RULES]
)
def test_a_rule_that_is_taken_away_is_missed(gates, without, rule):
    """At most two preemptions and deaths show what it prevents."""
    removal = RULES[rule]
    without(removal)
    violation, count = first_violation(gates, removal.scenario, interventions=2, limit=200)
    assert violation is not None, f"not found in {count} schedules"
    assert re.search(removal.found, str(violation)), violation
    print(f"found in schedule {count}: {str(violation).partition(chr(10))[0]}")
