"""Two servers of one ledger and one object store: one drives, the other takes over.

PostgreSQL, the store, both servers and the devices are processes. haproxy is what devices reach.
"""

import signal
import time
from functools import partial

import pytest

from fedloom.protocol.errors import UnavailableError
from fedloom.server.ledger.tables import updates
from support.marks import sampled
from support.patience import PATIENCE_S
from support.proxy import hello
from support.replicas import (
    DEVICES,
    Replicas,
    actions,
    check_all_counted,
    has_rounds,
    metrics,
    rows,
    spec,
)
from support.site_servers import Cluster, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.usefixtures("credentials")]


@pytest.fixture
def paired(tmp_path, database, s3):
    """Makes a pair with connected devices."""
    made, cluster = [], Cluster(tmp_path)

    def make(kill=""):
        url, store = database.create(tmp_path.name), s3.url(tmp_path.name)
        pair = Replicas(tmp_path, url, store, kills={0: kill})
        made.append(pair)
        driver = pair.driver
        cluster.run_devices(driver, cluster.enrol(driver, DEVICES))
        wait_until(lambda: driver.online() == len(DEVICES), "devices attend")
        return pair

    yield make
    cluster.close()
    for pair in made:
        pair.close()


def driving(epoch):
    """The metrics of a server that drives, without gates."""
    return {"fedloom_driver_epoch": epoch, "fedloom_replica_drives": 1, "fedloom_gates": 0}


def is_on_standby(replica):
    """Whether a command at a replica is answered so."""
    with pytest.raises(UnavailableError) as raised:
        replica.online()
    return "drives. Run the command there" in str(raised.value)


@pytest.mark.parametrize(
    "place", sampled(["upload.synced:3", "accept.after:7", "commit.model:2", "commit.ledger:2"], 2)
)
def test_a_killed_driver_is_replaced(paired, alone, small_model, place):
    """By the other server, at once and with its keys: same bits, each update counted once."""
    pair = paired(place)
    run = pair.first.submit(spec(), small_model)
    pair.first.wait_for_kill()
    died = time.monotonic()
    assert pair.driver is pair.second
    taken_s = time.monotonic() - died
    assert pair.second.ended(run).model == alone
    check_all_counted(pair.second, run)
    assert actions(pair.second).count("driver.begin") == 2
    print(f"{place}: drives after {taken_s:.1f} s")


def test_a_driver_that_stood_still_commits_nothing_more(paired, alone, small_model):
    """Another server drives meanwhile. When it continues, it notices and ends."""
    pair = paired()
    first, second = pair.first, pair.second
    run = first.submit(spec(), small_model)
    wait_until(lambda: len(first.rounds(run)) >= 2, "a second round")
    first.kill(signal.SIGSTOP)
    assert wait_until(lambda: second.drives, "the second drives")
    assert second.ended(run).model == alone
    check_all_counted(second, run)
    before = second.rounds(run), rows(second, updates)
    assert first.continued() == UnavailableError.exit_code
    assert (second.rounds(run), rows(second, updates)) == before
    begun = [name for name in actions(second) if name.startswith("driver.")]
    assert begun == ["driver.begin", "driver.begin", "driver.end"]


def test_two_servers_that_drive_commit_each_round_once(
    paired, database, alone, small_model, tmp_path
):
    """The lease is taken from a server in the middle of its work, which notices by itself."""
    pair = paired()
    run = pair.first.submit(spec(), small_model)
    for number in (2, 3):
        wait_until(partial(has_rounds, pair.driver, run, number), "a later round")
        deposed = pair.driver
        while deposed.process.poll() is None:  # it may renew the lease before another looks
            database.execute("UPDATE drivers SET renewed_at = 0", tmp_path.name)
            time.sleep(0.05)
        assert deposed.process.returncode == UnavailableError.exit_code
        assert pair.driver is next(each for each in pair.all if each is not deposed)
        deposed.launch("")
        wait_until(partial(is_on_standby, deposed), "on standby")
    assert pair.driver.ended(run).model == alone
    check_all_counted(pair.driver, run)


def test_a_stopped_driver_is_replaced_at_once(paired, alone, small_model):
    """It releases the lease, and is on standby when it is started again."""
    pair = paired()
    run = pair.first.submit(spec(), small_model)
    wait_until(partial(has_rounds, pair.first, run, 2), "a second round")
    assert metrics(pair.first).items() >= driving(1).items()
    pair.first.stop()
    assert pair.driver is pair.second
    pair.first.launch("")
    wait_until(partial(is_on_standby, pair.first), "on standby")
    standby = {"fedloom_driver_epoch": 2, "fedloom_replica_drives": 0}
    wait_until(lambda: metrics(pair.first) == standby, "it knows who drives")
    assert metrics(pair.second).items() >= driving(2).items()
    for host in pair.second.settings.public.hosts:  # once the proxy has asked both servers
        wait_until(lambda h=host: not pair.door.refuses(sent=hello(h)), f"{host} is served")
    wait_until(partial(has_rounds, pair.second, run, 3), "a later round")
    pair.second.stop()
    assert pair.driver is pair.first
    assert pair.first.ended(run).model == alone
    check_all_counted(pair.first, run)


def test_the_database_restarts(paired, database, alone, small_model):
    """Twice, once as a crash: nothing acknowledged is lost, and no run is paused."""
    pair = paired()
    run = pair.first.submit(spec(), small_model)
    for number, how in ((2, signal.SIGINT), (3, signal.SIGQUIT)):
        wait_until(lambda number=number: len(pair.driver.rounds(run)) >= number, "a later round")
        database.stop(how)
        time.sleep(1.0)
        database.start()
    assert pair.driver.ended(run).model == alone
    check_all_counted(pair.driver, run)


def test_a_replica_without_the_master_key_does_not_start(paired):
    """At its start, not when it is its turn."""
    pair = paired()
    wait_until(lambda: "on standby" in pair.second.log(), "the second waits")
    pair.second.stop()
    assert pair.second.process.returncode == 0
    (pair.second.state / "master.key").unlink()
    pair.second.launch("")
    assert pair.second.process.wait(PATIENCE_S) == 2
    assert "copy it from another replica" in pair.second.log()
    settings = pair.second.state / "server.toml"
    settings.write_text(settings.read_text().replace("replicated = true", "replicated = false"))
    pair.second.launch("")
    assert pair.second.process.wait(PATIENCE_S) == 2, "it would drive beside the first"
    assert "Expected replicated = true, as this ledger has the keys" in pair.second.log()
