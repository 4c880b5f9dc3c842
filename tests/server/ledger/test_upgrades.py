"""Servers of two versions of the ledger on a real PostgreSQL: which reads, which waits."""

import asyncio
import threading
import time

import pytest
import sqlalchemy as sa

from fedloom.protocol.errors import UsageError
from fedloom.server.http import unix_socket
from fedloom.server.ledger import Ledger, migrations
from fedloom.server.ledger.migrations import OlderServerError, Step, readable_from
from fedloom.server.ledger.tables import versions
from fedloom.server.replicas.opening import open_ledger
from support.contexts import rows_of
from support.patience import PATIENCE_S

pytestmark = pytest.mark.long

NOW = migrations.VERSION


@pytest.fixture
def url(database, request):
    return database.create(request.node.name[:60])


@pytest.fixture
def opened(url):
    """Opens the ledger as another server each time; all are closed at the end."""
    found = []

    def open_ledger():
        found.append(Ledger(url))
        return found[-1]

    yield open_ledger
    for each in found:
        each.close()


@pytest.fixture
def newer(monkeypatch):
    """Makes this process one of the next version, whose step is readable from a version on."""
    count = []

    def make(least, change=lambda connection: None):
        def step(connection):
            count.append(1)
            change(connection)

        monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS, Step(step, least)))
        monkeypatch.setattr(migrations, "VERSION", NOW + 1)
        return count

    yield make
    monkeypatch.undo()


def version(ledger):
    [row] = rows_of(ledger, versions.select())
    return row["version"], row["readable_from"]


@pytest.mark.parametrize(
    ("least", "expected"),
    [
        ([1, 2, 3], 3),
        ([1, 2, 2], 2),
        ([1, 1, 2], 2),
        ([1, 1, 1], 1),
        ([0, 0, 0], 0),
        ([1, 1, 3], 3),
    ],
)
def test_the_least_version_that_reads_all_steps(least, expected):
    """Each step after a version must be readable from it."""
    steps = [Step(lambda _: None, each) for each in least]
    assert readable_from(steps) == expected


def test_a_server_of_the_version_before_works_on_an_expanded_ledger(opened, newer, monkeypatch):
    """It leaves the schema alone; a contracted ledger it refuses."""
    newer(NOW)
    ledger = opened()
    assert version(ledger) == (NOW + 1, NOW)
    monkeypatch.undo()
    before = opened()
    before.trail.append("ann", "server", "thing.verb", "", {})
    before.check_readable()
    assert version(before) == (NOW + 1, NOW)
    with before._engine.begin() as connection:
        connection.execute(versions.update().values(readable_from=NOW + 1))
    with pytest.raises(UsageError, match=f"got version {NOW + 1}: a newer fedloom wrote it"):
        before.check_readable()
    with pytest.raises(UsageError, match="a newer fedloom wrote it"):
        opened()


@pytest.mark.parametrize("who", ["driver", "gate"])
def test_a_ledger_that_a_live_server_could_not_read_stays(opened, database, newer, who):
    """Until it has stopped. One that reads the result is no reason to wait."""
    rows = opened().lease_rows()
    if who == "driver":
        lease, _ = rows.take("one", "fl-1")
    else:
        rows.join("gate", "fl-1")
    count = newer(NOW + 1)
    for _ in range(2):
        with pytest.raises(OlderServerError, match=f"got fl-1, which reads versions to {NOW}"):
            opened()
    assert not count
    rows.release(lease) if who == "driver" else rows.leave("gate")
    assert version(opened()) == (NOW + 1, NOW + 1)
    rows.close()


def test_a_replica_waits_for_an_older_driver(opened, newer, url, tmp_path, caplog):
    """It says for whom, also to commands; it stops when told."""
    rows = opened().lease_rows()
    lease, _ = rows.take("one", "fl-1")
    newer(NOW + 1)

    async def ask(how):
        stopping = asyncio.Event()
        async with unix_socket.listening(tmp_path / how) as listener:
            waiting = asyncio.ensure_future(open_ledger(tmp_path, url, listener, stopping))
            while "this server waits: Expected that no older" not in caplog.text:
                rows.renew(lease)
                await asyncio.sleep(0.05)
            stopping.set() if how == "stop" else rows.release(lease)
            return await waiting

    assert asyncio.run(ask("stop")) is None
    caplog.clear()
    ledger = asyncio.run(ask("release"))
    assert version(ledger) == (NOW + 1, NOW + 1)
    ledger.close()
    rows.close()


def test_an_expansion_does_not_wait_for_a_live_driver(opened, newer):
    rows = opened().lease_rows()
    lease, _ = rows.take("one", "fl-1")
    newer(NOW)
    assert version(opened()) == (NOW + 1, NOW)
    assert rows.renew(lease)
    rows.close()


def test_servers_that_start_at_once_upgrade_once(opened, newer):
    opened()
    count = newer(NOW, lambda connection: connection.execute(sa.text("SELECT pg_sleep(0.3)")))
    threads = [threading.Thread(target=opened) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == [1]
    assert version(opened()) == (NOW + 1, NOW)


def test_an_upgrade_waits_in_turns_for_what_holds_a_table(opened, newer, monkeypatch):
    """Others get past it: a statement that waits for a lock holds up all that come after it."""
    monkeypatch.setattr(migrations, "_WAIT_MS", 300)
    ledger = opened()
    newer(NOW, lambda connection: connection.execute(sa.text("LOCK TABLE runs")))
    with ledger._engine.connect() as long_one:
        long_one.execute(sa.text("SELECT * FROM runs"))
        upgrading = threading.Thread(target=opened)
        upgrading.start()
        deadline = time.monotonic() + PATIENCE_S
        while not _waits(ledger):
            assert time.monotonic() < deadline
        assert ledger.list_runs() == [], "it waited for the upgrade, but not for the long one"
        assert upgrading.is_alive()
    upgrading.join()
    assert version(ledger) == (NOW + 1, NOW)


def test_an_upgrade_holds_one_table_at_a_time(opened):
    """It and a transaction that uses tables the other way round would each wait for the other."""
    ledger = opened()
    with ledger._engine.begin() as connection:
        for table in ("drivers", "gates"):
            connection.execute(sa.text(f"ALTER TABLE {table} DROP COLUMN ledger_version"))
        connection.execute(sa.text("ALTER TABLE schema_version DROP COLUMN readable_from"))
    with ledger._engine.connect() as driver:
        driver.execute(sa.text("SELECT * FROM gates"))
        upgrading = threading.Thread(target=opened)
        upgrading.start()
        deadline = time.monotonic() + PATIENCE_S
        while not _waits(ledger):
            assert time.monotonic() < deadline
        driver.execute(sa.text("SET LOCAL lock_timeout = '500ms'"))
        driver.execute(sa.text("SELECT * FROM drivers"))
    upgrading.join()
    names = {each["name"] for each in sa.inspect(ledger._engine).get_columns("gates")}
    assert "ledger_version" in names
    assert version(ledger) == (NOW, NOW)


def _waits(ledger):
    with ledger._engine.connect() as connection:
        found = connection.execute(sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted"))
        return found.scalar()
