"""Servers of one ledger in every order of their statements; each rule that is taken away is found.

The product's own transactions run on PostgreSQL, paused before every statement and commit: see
`support.interleavings` for schedules and `support.ledger_actors` for what must hold. A schedule
that a failure prints is repeated by `ledgers.run(SCENARIOS[name], follow(parse("a*3 b*7")))`.

Two actors of one server are stricter than the product, where one thread makes all changes: the
fence alone orders the transactions of two servers, so only such actors miss the lock of a round.
"""

import re
from dataclasses import dataclass
from functools import partial

import pytest

from fedloom.server.ledger import rounds, updates
from fedloom.server.ledger.replicas import lease_rows
from fedloom.server.ledger.replicas.lease_rows import Lease
from support.interleavings import InvariantError, explore, follow, parse, walk
from support.ledger_actors import Ledgers, Scenario
from support.postgresql import PostgreSQL

WAIT_MS = 60_000
"""In place of the product's 2 s, within which a busy machine may not come to the next step."""


def train(do):
    do.accept("ann.1")
    do.finish(1)
    do.open(2)


def take_over(do):
    if do.take():
        do.go_on()


def accept_again(do):
    """The update of another body, and a repeat of the first."""
    if do.take():
        do.accept("ann.2")
        do.accept("ann.1")


def begin(do):
    if do.take():
        do.accept("ann.1")


def keep(do):
    do.renew()
    do.release()


SCENARIOS = {
    "take-over": Scenario("expired", {"a": train, "b": take_over}),
    "repeat": Scenario("expired", {"a": lambda do: do.accept("ann.1"), "b": accept_again}),
    "end": Scenario(
        "expired", {"a1": lambda do: do.finish(1), "a2": lambda do: do.abandon(1), "b": take_over}
    ),
    "uploads": Scenario(
        "held",
        {
            "a1": lambda do: do.accept("ann.1", "bob.1"),
            "a2": lambda do: do.accept("eve.1", "ann.2", "bob.1"),
            "a3": lambda do: do.finish(1),
        },
    ),
    "lease": Scenario("expired", {"a": keep, "b": begin, "c": begin}),
    "first": Scenario("free", {"a": begin, "b": begin, "c": lambda do: do.accept("bob.1")}),
    "restored": Scenario("restored", {"a": train, "b": lambda do: do.finish(1)}),
}


@pytest.fixture(scope="module")
def ledgers():
    server = PostgreSQL()
    server.execute("ALTER SYSTEM SET fsync = off")  # no order depends on it
    server.execute("SELECT pg_reload_conf()")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease_rows, "WAIT_MS", WAIT_MS)
        ledgers = Ledgers(server)
        yield ledgers
        ledgers.close()
    server.close()


def run_of(ledgers, name):
    return lambda choose: ledgers.run(SCENARIOS[name], choose)


def check(ledgers, name, *, walks, **limits):
    run = run_of(ledgers, name)
    for _ in explore(run, **limits):
        pass
    for seed in range(walks):
        walk(run, seed)


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_order_of_statements_breaks_an_invariant(ledgers, name):
    """In schedules with at most one preemption or death, and in drawn ones with many."""
    check(ledgers, name, interventions=1, limit=24, walks=4)


@pytest.mark.longest
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_order_with_two_interventions_breaks_an_invariant(ledgers, name):
    """All of them, where they are fewer than the limit, and more drawn ones."""
    check(ledgers, name, interventions=2, limit=400, walks=100)


# ---- rules taken away ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Removal:
    """A rule of the product that is taken away.

    Attributes:
        scenario: in which it is missed.
        found: how the violation is described.
        clause: of a statement, as a regular expression.
        instead: what stands in the statement in its place.
        patched: an attribute of the product, and what replaces it.
    """

    scenario: str
    found: str
    clause: str = ""
    instead: str = ""
    patched: tuple = ()


OF_ANOTHER = r"committed by Lease.*, not by"
CHANGED = r"Round 1: (\w+), then \1|Round 1: (committed|abandoned), then"
RULES = {
    "the fence": Removal(
        "take-over", OF_ANOTHER, patched=(Lease, "check", lambda *_: None)
    ),
    "the fence compares the holder": Removal(
        "restored", OF_ANOTHER, r"AND drivers.holder = \S+(?= FOR KEY SHARE)"
    ),
    "the fence locks its epoch": Removal(
        "take-over", f"{OF_ANOTHER}|UniqueViolation", "FOR KEY SHARE"
    ),
    "taking over locks the lease": Removal(
        "lease", "follows Lease", r"(?<=AS age FROM drivers) FOR UPDATE"
    ),
    "taking over looks again under the lock": Removal(
        "lease", "was taken from", r"CAST\(.* AS age(?= FROM drivers FOR UPDATE)", "1e9 AS age"
    ),
    "renewing compares the lease": Removal(
        "lease", "changed the lease", r"(?<=^UPDATE drivers SET renewed_at=)(.*) WHERE .*", r"\1"
    ),
    "accepting locks the round": Removal(
        "uploads", "accepted (3 of 2|in a round that is)", r"(?<=FROM rounds)(.*) FOR UPDATE", r"\1"
    ),
    "accepting looks at the state": Removal(
        "uploads", "accepted in a round that is", "(?<=^SELECT )rounds.state", "'reporting'"
    ),
    "accepting looks at the capacity": Removal(
        "uploads", "accepted 3 of 2", r"sum\(.*(?=, %\(coalesce_3)", "sum(0)"
    ),
    "a repeat is the same update": Removal(
        "repeat", "was answered False", patched=(updates, "check_same", lambda *_: None)
    ),
    "a round is opened once": Removal(
        "take-over", "UniqueViolation", patched=(rounds, "is_there", lambda *_, **__: False)
    ),
    "only a round that closed commits": Removal(
        "end", CHANGED, r"(?<=^UPDATE rounds SET)(.*model_out.*) AND rounds.state = .*", r"\1"
    ),
    "only a round that is open closes": Removal(
        "end", CHANGED, r"(?<=^UPDATE rounds SET state=)(\S+ closed_at.*) AND \S+ IN .*", r"\1"
    ),
    "only a round that is open is abandoned": Removal(
        "end", CHANGED, r"(?<=^UPDATE rounds SET)(.* cause=.*) AND rounds.state IN .*", r"\1"
    ),
}  # fmt: skip


@pytest.fixture
def without(ledgers, monkeypatch):
    """Takes a rule away for the rest of a test."""

    def take_away(removal):
        if removal.patched:
            monkeypatch.setattr(*removal.patched)
        else:
            rewrite = partial(re.compile(removal.clause).sub, removal.instead)
            monkeypatch.setattr(ledgers.scheduler, "rewrite", rewrite)

    return take_away


def first_violation(ledgers, name, **limits):
    """The first violation in a scenario, None if there is none, and the schedules until then."""
    count = 0
    try:
        for _ in explore(run_of(ledgers, name), **limits):
            count += 1
    except InvariantError as violation:
        return violation, count + 1
    return None, count


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_taken_away_is_missed(ledgers, without, rule):
    """At most two preemptions and deaths show what it prevents."""
    removal = RULES[rule]
    without(removal)
    violation, count = first_violation(ledgers, removal.scenario, interventions=2, limit=200)
    assert violation is not None, f"not found in {count} schedules"
    assert re.search(removal.found, str(violation)), violation
    print(f"found in schedule {count}: {str(violation).partition(chr(10))[0]}")


def test_a_schedule_is_repeated(ledgers, without):
    """The schedule of a violation leads to it again."""
    removal = RULES["the fence locks its epoch"]
    without(removal)
    found, _ = first_violation(ledgers, removal.scenario, interventions=1, limit=200)
    with pytest.raises(InvariantError) as again:
        ledgers.run(SCENARIOS[removal.scenario], follow(parse(found.schedule)))
    assert str(again.value) == str(found)


def test_actors_that_wait_for_each_other_are_found(ledgers, monkeypatch):
    """A preemption between two locks that are taken in different orders."""
    monkeypatch.setattr(ledgers.scheduler, "on_commit", lambda name: None)
    engine = ledgers.servers["a"].turn._rows._engine  # without a fence

    def lock(*tables):
        with engine.begin() as connection:
            for table in tables:
                connection.exec_driver_sql(f"LOCK TABLE {table}")

    programs = {"a": partial(lock, "runs", "models"), "b": partial(lock, "models", "runs")}

    def run(choose):
        points = []
        ledgers.scheduler.run(programs, choose, points)
        return points

    with pytest.raises(InvariantError, match="wait for locks of each other"):
        list(explore(run, interventions=1, limit=20))
