"""Gates and drivers of a run with buffers in every order of their statements.

As `test_gate_interleavings`: see `support.interleavings` for schedules and `support.buffer_actors`
for what must hold.
"""

import re
from dataclasses import dataclass
from functools import partial

import pytest

from fedloom.server.ledger.replicas import gate_queues, lease_rows
from fedloom.server.ledger.tables import rounds
from fedloom.server.rounds import engines
from support.buffer_actors import Buffers, BufferScenario, upload_of
from support.interleavings import InvariantError, explore, walk
from support.ledger_actors import RUN
from support.postgresql import PostgreSQL

WAIT_MS = 60_000
"""As in `test_gate_interleavings`."""


def accept(*tasks):
    return lambda do: do.accept(*tasks)


def accept_and_seal(*tasks):
    def perform(do):
        do.accept(*tasks)
        do.seal()

    return perform


def close(do):
    do.close()
    do.read()


def close_twice(do):
    do.close()
    do.close()
    do.read()


def read_and_close(do):
    do.read()
    do.close()


def go_on(do):
    if do.take_over():
        do.close()
        do.read()


def abandon(do):
    do.abandon()
    do.read()


def decline_and_close(do):
    do.decline("ann")
    do.close()
    do.read()


SCENARIOS = {
    "close": BufferScenario({"g": accept("ann.1"), "h": accept("eve.2"), "a": close}),
    "full": BufferScenario({"g": accept("ann.1", "eve.2"), "h": accept("bob.1", "sam.2")}),
    "both": BufferScenario({"g": accept("ann.1"), "h": accept("ann.1"), "a": close}),
    "sums": BufferScenario({"g": accept_and_seal("ann.1", "eve.2"), "g2": lambda do: do.seal(),
                            "a": close}),
    "told": BufferScenario({"g": accept("ann.1"), "a": close, "a2": lambda do: do.read()}),
    "take-over": BufferScenario(
        {"g": accept("ann.1"), "a": read_and_close, "b": go_on}, lease="expired"
    ),
    "stale": BufferScenario({"g": accept("ann.1"), "h": accept("eve.2"), "a": close_twice}),
    "abandoned": BufferScenario({"g": accept("eve.2"), "a": abandon}),
    "declined": BufferScenario({"g": accept("ann.1"), "a": decline_and_close}),
}  # fmt: skip


@pytest.fixture(scope="module")
def buffers():
    server = PostgreSQL()
    server.execute("ALTER SYSTEM SET fsync = off")  # no order depends on it
    server.execute("SELECT pg_reload_conf()")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease_rows, "WAIT_MS", WAIT_MS)
        buffers = Buffers(server)
        yield buffers
        buffers.close()
    server.close()


def run_of(buffers, name):
    return lambda choose: buffers.run(SCENARIOS[name], choose)


def check(buffers, name, *, walks, **limits):
    run, count = run_of(buffers, name), walks
    for _ in explore(run, **limits):
        count += 1
    for seed in range(walks):
        walk(run, seed)
    print(f"{name}: {count} schedules")


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_order_of_statements_breaks_an_invariant(buffers, name):
    """In schedules with at most one preemption or death, and in drawn ones with many."""
    check(buffers, name, interventions=1, limit=2, walks=1)


@pytest.mark.longest
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_order_with_two_interventions_breaks_an_invariant(buffers, name):
    """All of them, where they are fewer than the limit, and more drawn ones."""
    check(buffers, name, interventions=2, limit=40, walks=10)


# ---- rules taken away ---------------------------------------------------------------------------


@dataclass(frozen=True)
class BufferRule:
    """A rule of the product that is taken away; see `test_interleavings.Removal`."""

    scenario: str
    found: str
    clause: str = ""
    instead: str = ""
    patched: tuple = ()


_check_at_work = gate_queues._check_at_work
LOCKS = r"^(SELECT rounds\.(?:run, rounds\.number|state, rounds\.kind) .*) FOR UPDATE"
RULES = {
    "accepting locks the open buffer, its end": BufferRule(
        "close", "was accepted in a round that is", LOCKS, r"\1"
    ),
    "accepting locks the open buffer, its capacity": BufferRule(
        "full", "has [34] of 2", LOCKS, r"\1"
    ),
    "accepting locks the open buffer, one slot": BufferRule(
        "both", "UniqueViolation|was answered", LOCKS, r"\1"
    ),
    "accepting locks the buffer that it has found": BufferRule(
        "close", "was answered .*full", r"^(SELECT rounds\.run, .*) FOR UPDATE", r"\1"
    ),
    "all work ends with an abandoned buffer": BufferRule(
        "abandoned", "rounds before",
        patched=(gate_queues, "_stands", lambda run: rounds.c.run == run),
    ),
    "only who is at work": BufferRule(
        "declined", "its client has declined", r"cohorts\.phase (?=FROM)", "'offered' AS phase "
    ),
    "accepting locks the task": BufferRule(
        "declined", "its client has declined", r"(cohorts\.phase FROM .*) FOR UPDATE", r"\1"
    ),
    "at most so many models behind": BufferRule(
        "stale", "was accepted, [23] models behind",
        patched=(gate_queues, "_check_at_work", lambda *of: _check_at_work(*of[:2], 9)),
    ),
    "what a gate tells late counts in no other buffer": BufferRule(
        "told", r"a counts \{'ann'\}, the rows set", patched=(engines, "lacks", lambda *_: True)
    ),
    "sealing locks the round": BufferRule(
        "sums", "(ann.1|eve.2): .*, then", r"^(SELECT rounds.state FROM .*) FOR UPDATE", r"\1"
    ),
}  # fmt: skip
SLOW = {
    "accepting locks the open buffer, its end",
    "accepting locks the open buffer, one slot",
    "accepting locks the buffer that it has found",
    "accepting locks the task",
    "sealing locks the round",
}
"""Found after eight schedules or more."""


@pytest.mark.parametrize(
    "rule", [pytest.param(each, marks=pytest.mark.long) if each in SLOW else each for each in RULES]
)
def test_a_rule_that_is_taken_away_is_missed(buffers, monkeypatch, rule):
    """At most two preemptions and deaths show what it prevents."""
    removal = RULES[rule]
    if removal.patched:
        monkeypatch.setattr(*removal.patched)
    else:
        rewrite = partial(re.compile(removal.clause).sub, removal.instead)
        monkeypatch.setattr(buffers.scheduler, "rewrite", rewrite)
    count, run = [], run_of(buffers, removal.scenario)
    with pytest.raises(InvariantError) as violation:
        count.extend(explore(run, interventions=2, limit=200))
    assert re.search(removal.found, str(violation.value)), violation.value
    print(f"{rule}: schedule {len(count) + 1}: {str(violation.value).partition(chr(10))[0]}")


@pytest.mark.parametrize("ordered", [True, pytest.param(False, marks=pytest.mark.long)])
def test_gates_that_accept_for_two_runs_do_not_wait_for_each_other(buffers, monkeypatch, ordered):
    """They lock the open buffers in one order, whatever the order of the updates."""
    monkeypatch.setattr(buffers.scheduler, "on_commit", lambda _: None)
    lock_together = gate_queues.lock_together

    def one_by_one(connection, updates, runs):
        found = {}
        for each in updates:
            found |= lock_together(connection, [each], runs & {each.run})
        return found

    if not ordered:
        monkeypatch.setattr(gate_queues, "lock_together", one_by_one)

    def accept(gate, *wanted):
        uploads = [upload_of(task, run) for task, run in wanted]
        accepted = buffers.servers[gate].ledger.accept_at_gate(gate, 0, uploads)
        assert [(each.run, each.counted) for each in accepted] == [(run, 2) for _, run in wanted]

    def run(choose):
        buffers.set_up(BufferScenario({}))
        buffers.add_run("other")
        points = []
        programs = {
            "g": partial(accept, "g", ("ann.1", RUN), ("bob.1", "other")),
            "h": partial(accept, "h", ("eve.2", "other"), ("sam.2", RUN)),
        }
        buffers.scheduler.run(programs, choose, points)
        return points

    if ordered:
        list(explore(run, interventions=1, limit=8))
        return
    with pytest.raises(InvariantError, match="wait for locks of each other"):
        list(explore(run, interventions=1, limit=400))
