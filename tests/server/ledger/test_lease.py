"""The lease of the server that drives, on a real PostgreSQL: two ledgers are two servers."""

import asyncio
import threading
import time

import pytest
import sqlalchemy as sa

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.server.ledger import Ledger
from fedloom.server.ledger.access.accounts import Scope
from fedloom.server.ledger.audit_trail import Filter
from fedloom.server.ledger.lists.order import Cut
from fedloom.server.ledger.replicas.gate_queues import GateLease
from fedloom.server.ledger.replicas.lease_rows import (
    LEASE_S,
    WAIT_MS,
    Lease,
    LeaseLostError,
    LeaseRows,
)
from fedloom.server.moving.stillness import standing_still
from fedloom.server.replicas.lease import ReplicaTurn
from support.patience import PATIENCE_S

pytestmark = pytest.mark.long


@pytest.fixture
def opened(database):
    """Opens the ledger as another server each time; all are closed at the end."""
    found = []

    def open_ledger():
        ledger = Ledger(database.url())
        rows = ledger.lease_rows()
        found.extend((ledger, rows))
        return ledger, rows

    yield open_ledger
    for each in found:
        each.close()
    for table in ("drivers", "gates", "wrapped_keys", "audit"):
        database.execute(f"DELETE FROM {table}")


def expire(database):
    database.execute(f"UPDATE drivers SET renewed_at = renewed_at - {LEASE_S + 1}")


def write_key(ledger, name="noise/run.key"):
    """A small change of the ledger."""
    ledger.change_wrapped_keys(lambda _: {name: b"sealed"})


def test_a_lease_of_the_future_may_be_taken_over(opened, database):
    """By the clock of a database that another one has replaced: nobody renews it."""
    (_, first), (_, second) = opened(), opened()
    first.take("one", "a")
    database.execute(f"UPDATE drivers SET renewed_at = renewed_at + {2 * LEASE_S}")
    lease, _ = second.take("two", "b")
    assert lease.epoch == 2
    assert second.driver().age_s < LEASE_S


@pytest.mark.parametrize("wanted", ["", "&target_session_attrs=any"])
def test_several_hosts_must_lead_to_the_primary(opened, database, wanted):
    opened()
    hosts = f"host=127.0.0.1:{database.port}&host=127.0.0.1:{database.port}"
    url = f"postgresql+psycopg://postgres@/postgres?{hosts}{wanted}"
    rows = LeaseRows(sa.make_url(url))
    with pytest.raises(UsageError, match="Expected target_session_attrs=read-write"):
        rows.check_durable()
    rows.close()
    rows = LeaseRows(sa.make_url(f"{url}&target_session_attrs=read-write".replace(wanted, "")))
    rows.check_durable()
    rows.close()


def test_one_server_drives_at_a_time(opened, database):
    """A held lease cannot be taken; an expired or released one can, with the next epoch."""
    (_, first), (_, second) = opened(), opened()
    lease, before = first.take("one", "a")
    assert (lease, before) == (Lease(1, "one"), None)
    assert second.take("two", "b") is None
    assert second.driver().name == "a"
    assert first.renew(lease)
    expire(database)
    taken, before = second.take("two", "b")
    assert (taken.epoch, before.holder) == (2, "one")
    assert not first.renew(lease)
    first.release(lease)  # of an epoch that has passed: no effect
    assert first.take("one", "a") is None
    second.release(taken)
    assert first.take("one", "a")[0].epoch == 3


def test_a_server_that_ceased_to_drive_neither_renews_nor_commits(opened):
    """The next one is woken by the release, and drives while the first one ends."""
    (first, rows), (second, _) = opened(), opened()

    async def play():
        turns = [ReplicaTurn(ledger, gates=True) for ledger in (first, second)]
        await turns[0].wait(lambda _: None, lambda: None)
        standing_by = asyncio.Event()
        waiting = asyncio.ensure_future(turns[1].wait(lambda _: standing_by.set(), lambda: None))
        await standing_by.wait()
        bell = second.doorbell("other")
        await bell.turned.wait()  # it listens
        bell.turned.clear()
        write_key(first)
        await asyncio.to_thread(turns[0].release)
        await asyncio.wait_for(bell.turned.wait(), PATIENCE_S)
        turns[0]._renew()  # of a thread that came late
        with pytest.raises(LeaseLostError):
            write_key(first)
        await asyncio.wait_for(waiting, PATIENCE_S)
        assert rows.driver().epoch == turns[1].epoch == 2
        turns[0]._renew()
        write_key(second)
        bell.close()
        await asyncio.to_thread(turns[1].release)
        assert rows.driver().is_gone

    asyncio.run(play())


def test_servers_that_take_at_once_get_one_lease(opened):
    """Also the first one, for which there is no row to lock."""
    for _ in range(3):
        every = [opened()[1] for _ in range(6)]
        gate, taken = threading.Barrier(len(every)), []

        def take(number, rows, gate=gate, taken=taken):
            gate.wait()
            taken.append(rows.take(str(number), "x"))

        threads = [threading.Thread(target=take, args=each) for each in enumerate(every)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        [(lease, _)] = [each for each in taken if each is not None]
        every[0].release(lease)


@pytest.mark.parametrize("wrong_s", [0.0, 300.0, -300.0])
def test_times_of_rounds_are_the_databases(opened, database, monkeypatch, wrong_s):
    """A replica whose clock is wrong has the deadline of another one."""
    ledger, rows = opened()
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + wrong_s)
    ledger.ahead_s = rows.ahead_s()
    assert abs(ledger.ahead_s + wrong_s) < 1.0
    [(found,)] = database.execute("SELECT extract(epoch FROM clock_timestamp())")
    assert abs(ledger.wall() - float(found)) < 2.0


def test_a_late_commit_is_refused(opened, database):
    """Of a server whose epoch has passed, or whose epoch another holder has."""
    (ledger, rows), (_, other) = opened(), opened()
    lease, _ = rows.take("one", "a")
    ledger.fence(lease.check)
    write_key(ledger)
    expire(database)
    other.take("two", "b")
    with pytest.raises(LeaseLostError, match="driven since epoch 1"):
        write_key(ledger, "noise/late.key")
    assert "noise/late.key" not in ledger.wrapped_keys()
    database.execute("UPDATE drivers SET epoch = 1")  # as after a restored backup
    with pytest.raises(LeaseLostError):
        write_key(ledger, "noise/late.key")
    assert ledger.wrapped_keys().keys() == {"noise/run.key"}


def test_every_kind_of_change_is_fenced(opened):
    """Rows, accounts, and the audit trail's entries and prunings."""
    ledger, _ = opened()
    ledger.fence(Lease(7, "nobody").check)
    changes = [
        lambda: ledger.revoke("ward"),
        lambda: ledger.accounts.add_user("ann", Scope.VIEWER, "secret", time.time()),
        lambda: ledger.trail.append("ann", "server", "thing.verb", "", {}),
        lambda: ledger.claim_store("owner/x"),
    ]
    for change in changes:
        with pytest.raises(LeaseLostError):
            change()
    assert ledger.trail.head().id == 0


def test_taking_over_waits_for_a_commit_that_passed_the_fence(opened, database):
    """Else the new driver would read the ledger as it was before that commit."""
    (ledger, rows), (_, other) = opened(), opened()
    lease, _ = rows.take("one", "a")
    passed, go, taken_at = threading.Event(), threading.Event(), []

    def slow(connection):
        lease.check(connection)
        passed.set()
        assert go.wait(PATIENCE_S)

    ledger.fence(slow)
    writing = threading.Thread(target=write_key, args=(ledger, "noise/slow.key"))
    writing.start()
    assert passed.wait(PATIENCE_S)
    expire(database)

    def take():
        while other.take("two", "b") is None:
            pass
        taken_at.append(time.monotonic())

    taking = threading.Thread(target=take)
    taking.start()
    time.sleep(0.5)
    assert not taken_at
    committing = time.monotonic()
    go.set()
    writing.join()
    taking.join()
    assert taken_at[0] >= committing
    assert "noise/slow.key" in ledger.wrapped_keys()


def test_a_server_that_stands_still_in_a_transaction_holds_nobody_up(opened, database):
    """Its session is ended by the database, and its locks with it."""
    (ledger, rows), (_, other) = opened(), opened()
    lease, _ = rows.take("one", "a")
    passed, go, failed = threading.Event(), threading.Event(), []

    def slow(connection):
        lease.check(connection)
        passed.set()
        assert go.wait(PATIENCE_S)

    ledger.fence(slow)

    def write():
        try:
            write_key(ledger, "noise/still.key")
        except sa.exc.OperationalError as error:
            failed.append(error)

    writing = threading.Thread(target=write)
    writing.start()
    assert passed.wait(PATIENCE_S)
    expire(database)
    deadline = time.monotonic() + PATIENCE_S
    taken = None
    while taken is None:
        assert time.monotonic() < deadline
        try:
            taken = other.take("two", "b")
        except sa.exc.OperationalError:
            continue  # the wait for the lock is limited, too
    go.set()
    writing.join()
    assert failed
    assert "noise/still.key" not in other_keys(database)


def test_a_move_holds_the_lease_and_ends_gates(opened, database):
    """No server drives meanwhile, nor ever after a move to another database."""
    (ledger, rows), (gated, other) = opened(), opened()
    write_key(ledger)
    with standing_still(ledger) as still:
        still.end(moved=False)
    assert rows.take("one", "a")[0].epoch == 2, "it was freed"
    with pytest.raises(UsageError, match="that no server drives, got a: stop it"):
        standing_still(ledger).__enter__()
    expire(database)
    other.join("gate", "b")
    gated.fence(GateLease("gate").check)
    write_key(gated)
    with standing_still(ledger) as still:
        with pytest.raises(LeaseLostError):
            write_key(gated)
        assert other.take("two", "b") is None
        still.check()
        other.join("late", "c")
        with pytest.raises(UnavailableError, match="got one that was started"):
            still.check()
        other.leave("late")
        still.end(moved=True)
    assert other.take("two", "b") is None
    assert "to which this ledger was moved" in other.driver().name
    assert not other.driver().is_gone


def test_a_server_that_drives_meanwhile_stops_a_move(opened, database):
    """Its lease was taken, after it had stood still itself, say."""
    (ledger, _), (_, other) = opened(), opened()
    write_key(ledger)
    with standing_still(ledger) as still:
        while other.take("two", "b") is None:
            expire(database)
        with pytest.raises(UnavailableError, match="Nothing has changed"):
            still.check()
    assert other.driver().holder == "two"


def other_keys(database):
    return {name for (name,) in database.execute("SELECT name FROM wrapped_keys")}


def test_a_slow_reader_of_a_list_is_not_ended(opened):
    """It is within a transaction, but holds no locks."""
    ledger, rows = opened()
    lease, _ = rows.take("one", "a")
    ledger.fence(lease.check)
    for number in range(3):
        ledger.trail.append("ann", "server", "thing.verb", str(number), {})
    found = ledger.trail.listed(Filter(), Cut(limit=10))
    first = next(found)
    time.sleep(WAIT_MS / 1000 + 0.5)
    assert [row["subject"] for row in (first, *found)] == ["2", "1", "0"]


def test_a_database_that_may_forget_is_refused(opened, database):
    """A commit that is not on disk must not be acknowledged."""
    _, rows = opened()
    rows.check_durable()
    database.execute("ALTER DATABASE postgres SET synchronous_commit = off")
    _, again = opened()
    with pytest.raises(UsageError, match="synchronous_commit on, got synchronous_commit = off"):
        again.check_durable()
    database.execute("ALTER DATABASE postgres RESET synchronous_commit")
