"""Gates and drivers in every order of their statements; each rule that is taken away is found.

As `test_interleavings`: see `support.interleavings` for schedules and `support.gate_actors` for
what must hold. Two actors of one gate are stricter than the product, where one thread makes all of
a server's changes, and a gate seals a round once.
"""

import re
from dataclasses import dataclass, replace
from functools import partial
from unittest.mock import ANY, Mock

import pytest

from fedloom.server.ledger import rounds
from fedloom.server.ledger.objects import stored_bodies
from fedloom.server.ledger.objects.stored_bodies import StoredBodies
from fedloom.server.ledger.replicas import batch_accepts, gate_queues, lease_rows
from fedloom.server.ledger.replicas.batch_accepts import GateUpload
from fedloom.server.ledger.replicas.gate_queues import GateLease, GateQueues, Received, Telling
from fedloom.server.ledger.tables import inbox, spool_objects
from fedloom.server.rounds.fold import Folder
from support.gate_actors import Gates, Scenario, update_of
from support.interleavings import InvariantError, explore, walk
from support.ledger_actors import RUN
from support.postgresql import PostgreSQL

WAIT_MS = 60_000
"""In place of the product's 2 s, within which a busy machine may not come to the next step."""


def drive(do):
    do.read()
    do.finish()


def go_on(do):
    if do.take_over():
        do.read()
        if do.ledger.open_round_of(RUN) is not None:
            do.finish()


def watch(do):
    do.strike_out()
    do.finish()


def quarantine(do):
    do.ledger.set_hold("ann", "quarantine", "")


def revoke(do):
    do.ledger.revoke("ann")


def accept_and_seal(*names):
    def perform(do):
        do.accept(*names)
        do.seal()

    return perform


def accept_and_seal_each(*names):
    def perform(do):
        for name in names:
            do.accept(name)
            do.seal(name.split(".")[0])

    return perform


def begin_anew(do):
    do.give_up("ann.1")
    do.upload("ann.1")


def stay_and_accept(do):
    do.stay()
    do.accept("ann.1")


SCENARIOS = {
    "same body": Scenario({"g": lambda do: do.upload("ann.1"), "h": lambda do: do.upload("ann.1")}),
    "other body": Scenario(
        {"g": lambda do: do.accept("ann.1"), "h": lambda do: do.upload("ann.2")}, stored=("ann.1",)
    ),
    "at the driver": Scenario(
        {"a": lambda do: do.accept("ann.1"), "h": lambda do: do.upload("ann.2")}, stored=("ann.1",)
    ),
    "given up": Scenario(
        {"g": lambda do: do.accept("ann.1"), "h": begin_anew}, stored=("ann.1",)
    ),
    "messages": Scenario(
        {"g": lambda do: do.tell(), "h": lambda do: do.tell(), "a": lambda do: do.read()}
    ),
    "capacity": Scenario(
        {
            "g": lambda do: do.accept("ann.1", "bob.1"),
            "h": lambda do: do.accept("zoe.1", "eve.1"),
        },
        stored=("ann.1", "bob.1", "eve.1", "zoe.1"),
    ),
    "end": Scenario(
        {"g": accept_and_seal("ann.1"), "h": accept_and_seal("bob.1"), "a": drive},
        stored=("ann.1", "bob.1"),
    ),
    "many sums": Scenario(
        {"g": accept_and_seal_each("ann.1", "bob.1"), "a": drive}, stored=("ann.1", "bob.1")
    ),
    "late sums": Scenario(
        {
            "g": lambda do: do.seal("ann"),
            "g2": lambda do: do.seal("bob"),
            "a": lambda do: do.finish(2),
        },
        accepted={"ann.1": "g", "bob.1": "g"},
    ),
    "half a sum": Scenario(
        {"g": lambda do: do.seal(), "a": lambda do: do.finish(1)},
        accepted={"ann.1": "g", "bob.1": "g"},
    ),
    "take-over": Scenario(
        {"g": accept_and_seal("ann.1"), "a": drive, "b": go_on},
        stored=("ann.1",), accepted={"bob.1": "h"}, lease="expired",
    ),
    "struck out": Scenario(
        {"g": stay_and_accept, "g2": lambda do: do.seal(), "a": watch},
        stored=("ann.1",), accepted={"bob.1": "g"}, late=("g",),
    ),
    "left": Scenario(
        {"h": lambda do: do.accept("ann.1"), "h2": lambda do: do.leave()}, stored=("ann.1",)
    ),
    "shut out": Scenario(
        {"g": lambda do: do.accept("ann.1"), "h": lambda do: do.accept("bob.1"), "a": quarantine},
        stored=("ann.1", "bob.1"),
    ),
    "revoked": Scenario(
        {"g": lambda do: do.accept("ann.1"), "a": revoke}, stored=("ann.1",)
    ),
    "two sums": Scenario(
        {"g": lambda do: do.seal("ann"), "g2": lambda do: do.seal(), "a": lambda do: do.finish()},
        accepted={"ann.1": "g", "bob.1": "g"},
    ),
    "seen": Scenario(
        {
            "g": lambda do: do.accept("bob.1", "ann.1"),
            "h": lambda do: do.see("bob", "ann"),
            "a": lambda do: do.see("ann", "bob"),
        },
        stored=("ann.1", "bob.1"), failures=2,
    ),
    "declined": Scenario(
        {"g": lambda do: do.accept("ann.1"), "a": lambda do: do.decline("ann")}, stored=("ann.1",)
    ),
    "failed": Scenario(
        {"g": lambda do: do.accept("ann.1"), "a": lambda do: do.fail("ann")},
        stored=("ann.1",), failures=2,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def gates():
    server = PostgreSQL()
    server.execute("ALTER SYSTEM SET fsync = off")  # no order depends on it
    server.execute("SELECT pg_reload_conf()")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease_rows, "WAIT_MS", WAIT_MS)
        gates = Gates(server)
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
    check(gates, name, interventions=1, limit=4, walks=1)


@pytest.mark.longest
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_order_with_two_interventions_breaks_an_invariant(gates, name):
    """All of them, where they are fewer than the limit, and more drawn ones."""
    check(gates, name, interventions=2, limit=160, walks=30)


# ---- rules taken away ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Removal:
    """A rule of the product that is taken away; see `test_interleavings.Removal`.

    Attributes:
        patched: of a module or class of the product, an attribute, and what replaces it.
    """

    scenario: str
    found: str
    clause: str = ""
    instead: str = ""
    patched: tuple = ()


def note_blindly(self, name, parts):
    change = spool_objects.update().filter_by(object=name)
    return self._change(change.values(parts=[*parts])) == 1


def without_it(*_):
    return {}


def take_to_the_last(self):
    """Read messages in one transaction, and delete all up to the last of them in another one."""
    with self._engine.connect() as connection:
        found = connection.execute(inbox.select().order_by(inbox.c.id)).mappings().all()
    last = found[-1]["id"] if found else 0
    self._change(inbox.delete().where(inbox.c.id <= last))
    return [Received(row["gate"], 0, Telling(row["kind"], "", row["client"])) for row in found]


def merge_blindly(self, sealed, members):
    self.partial.merge(sealed.partial)
    self.folded.update(members)


def merge_what_is_new(self, sealed, members):
    """Add a sum as if it had no member that is folded already."""
    if not self.folded.issuperset(members):
        merge_blindly(self, sealed, members)


NOT_WHOLE = "was accepted, and its body (is|changed)"
CHANGED_LATE = r"\w+ changed: .*, then|Rows changed"
RULES = {
    "the fence of gates": Removal(
        "struck out", "though it was struck out", patched=(GateLease, "check", lambda *_: None)
    ),
    "the fence of gates locks the row": Removal(
        "struck out", "though it was struck out", r"(?<=FROM gates WHERE )(.*) FOR KEY SHARE", r"\1"
    ),
    "accepting locks the round, one slot": Removal(
        "same body", "UniqueViolation", r"(rounds.kind FROM rounds.*) FOR UPDATE", r"\1"
    ),
    "accepting locks the round, its capacity": Removal(
        "capacity", "Accepted 3 of 2",
        r"(FROM rounds.*) FOR UPDATE", r"\1",
    ),
    "accepting locks the round, its end": Removal(
        "end", "was accepted in a round that is", r"(rounds.kind FROM rounds.*) FOR UPDATE", r"\1"
    ),
    "only members": Removal(
        "capacity", "zoe was accepted, and is no member",
        patched=(batch_accepts, "check_member", lambda *_, **__: None),
    ),
    "a client in quarantine is refused": Removal(
        "shut out", "is .*quarantine", r"(?<=SELECT clients.status, )clients.hold", "NULL"
    ),
    "accepting locks the client, quarantine": Removal(
        "shut out", "is .*quarantine", r"(clients.hold FROM clients.*) FOR NO KEY UPDATE", r"\1"
    ),
    "accepting locks the client, revocation": Removal(
        "revoked", "is .*revoked", r"(clients.hold FROM clients.*) FOR NO KEY UPDATE", r"\1"
    ),
    "accepting compares the number of parts": Removal(
        "given up", NOT_WHOLE, patched=(gate_queues, "len", lambda _: ANY)
    ),
    "accepting compares the header": Removal(
        "other body", NOT_WHOLE,
        patched=(batch_accepts, "hashlib", Mock(sha256=lambda _: Mock(hexdigest=lambda: ANY))),
    ),
    "the driver checks bodies, too": Removal(
        "at the driver", NOT_WHOLE, patched=(gate_queues, "lock_body", lambda *_: None)
    ),
    "accepting locks the body": Removal(
        "other body", NOT_WHOLE, r"(spool_objects.parts FROM spool_objects.*) FOR SHARE", r"\1"
    ),
    "a body begins alone": Removal(
        "same body", "Of one file each", r"pg_advisory_xact_lock\(.*\) AS", "1 AS"
    ),
    "no body begins in place of an accepted one": Removal(
        "other body", NOT_WHOLE, patched=(stored_bodies, "_is_accepted", lambda *_: False)
    ),
    "an accepted body is not given up": Removal(
        "given up", NOT_WHOLE, patched=(stored_bodies, "_is_accepted", lambda *_: False)
    ),
    "giving up locks the body": Removal(
        "given up", NOT_WHOLE, r"^(SELECT spool_objects.object, spool_objects.file.*) FOR UPDATE",
        r"\1",
    ),
    "parts are added to those that are known": Removal(
        "same body", NOT_WHOLE, patched=(StoredBodies, "note_parts", note_blindly)
    ),
    "noting parts locks the body": Removal(
        "same body", NOT_WHOLE, r"^(SELECT spool_objects.object, spool_objects.file.*) FOR UPDATE",
        r"\1",
    ),
    "an update is sealed once": Removal(
        "two sums", CHANGED_LATE, r" AND updates.sealed_in IS NULL"
    ),
    "all members are sealed, or none": Removal(
        "two sums", "the rows say", patched=(gate_queues, "len", lambda _: ANY)
    ),
    "a round that is over is not sealed": Removal(
        "end", CHANGED_LATE, patched=(gate_queues, "CLOSING", ANY)
    ),
    "sealing locks the round": Removal(
        "end", CHANGED_LATE, r"^(SELECT rounds.state FROM rounds.*) FOR UPDATE", r"\1"
    ),
    "what is folded is not merged again": Removal(
        "late sums", r"Expected 51, got \d+", patched=(Folder, "merge", merge_blindly)
    ),
    "a sum of which a part is folded is not merged": Removal(
        "half a sum", r"Expected 51, got \d+", patched=(Folder, "merge", merge_what_is_new)
    ),
    "who has reported stays so": Removal(
        "failed", "Accepted .*, reported", patched=(rounds, "is_there", lambda *_, **__: False)
    ),
    "setting a phase locks the member": Removal(
        "declined", "Accepted .*, reported", r"(FROM cohorts WHERE.*) FOR UPDATE", r"\1"
    ),
    "clients are locked in one order": Removal(
        "seen", "wait for locks of each other", patched=(gate_queues, "lock_together", without_it)
    ),
    "messages are deleted as they are read": Removal(
        "messages", r"a read .*, deleted", patched=(GateQueues, "take_inbox", take_to_the_last)
    ),
}  # fmt: skip


SLOW = {
    "a round that is over is not sealed",
    "accepting locks the client, quarantine",
    "accepting locks the round, its end",
    "clients are locked in one order",
    "a body begins alone",
    "messages are deleted as they are read",
    "noting parts locks the body",
    "parts are added to those that are known",
    "sealing locks the round",
    "the fence of gates locks the row",
}
"""Found after seven schedules or more."""


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
    violation, count = first_violation(gates, removal.scenario, interventions=2, limit=400)
    assert violation is not None, f"not found in {count} schedules"
    assert re.search(removal.found, str(violation)), violation
    print(f"found in schedule {count}: {str(violation).partition(chr(10))[0]}")


@pytest.mark.parametrize("locked", [True, pytest.param(False, marks=pytest.mark.long)])
def test_gates_that_accept_for_two_runs_do_not_wait_for_each_other(gates, monkeypatch, locked):
    """They lock the rounds in one order, whatever the order of the updates."""
    monkeypatch.setattr(gates.scheduler, "on_commit", lambda _: None)
    if not locked:  # one by one, each locks its own round
        monkeypatch.setattr(gate_queues, "lock_together", without_it)
        monkeypatch.setattr(gate_queues, "together", lambda _: [])

    def accept(gate, *wanted):
        uploads = [
            GateUpload(update=replace(update_of(name), run=run, file=""), capacity=9, parts=0)
            for name, run in wanted
        ]
        accepted = gates.servers[gate].ledger.accept_at_gate(gate, 0, uploads)
        assert [each.run for each in accepted] == [run for _, run in wanted]

    def run(choose):
        gates.set_up(Scenario({}))
        gates.add_run("other")
        points = []
        programs = {
            "g": partial(accept, "g", ("ann.1", RUN), ("bob.1", "other")),
            "h": partial(accept, "h", ("ann.1", "other"), ("bob.1", RUN)),
        }
        gates.scheduler.run(programs, choose, points)
        return points

    if locked:
        list(explore(run, interventions=1, limit=12))
        return
    with pytest.raises(InvariantError, match="wait for locks of each other"):
        list(explore(run, interventions=1, limit=40))
