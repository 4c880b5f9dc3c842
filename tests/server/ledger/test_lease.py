"""The lease of the server that drives, on a real PostgreSQL: two ledgers are two servers."""

import threading
import time

import pytest
import sqlalchemy as sa

from fedloom.protocol.errors import UsageError
from fedloom.server.ledger import Ledger
from fedloom.server.ledger.access.accounts import Scope
from fedloom.server.ledger.audit_trail import Filter
from fedloom.server.ledger.lists.order import Cut
from fedloom.server.ledger.replicas.lease_rows import LEASE_S, WAIT_MS, Lease, LeaseLostError
from support.patience import PATIENCE_S
from support.postgresql import PostgreSQL

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def database():
    server = PostgreSQL()
    yield server
    server.close()


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
    for table in ("drivers", "wrapped_keys", "audit"):
        database.execute(f"DELETE FROM {table}")


def expire(database):
    database.execute(f"UPDATE drivers SET renewed_at = renewed_at - {LEASE_S + 1}")


def write_key(ledger, name="noise/run.key"):
    """A small change of the ledger."""
    ledger.write_wrapped_key(name, b"sealed")


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
