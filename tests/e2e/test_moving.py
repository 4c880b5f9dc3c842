"""`fedloom server move`: to PostgreSQL and an object store and back, between rounds of one run."""

import json
import os
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from fedloom.protocol.tensors.container import write_file
from fedloom.server import config as server_config
from fedloom.server.ledger import Ledger
from fedloom.server.ledger.moving.copies import tables_of
from support.object_store import CREDENTIALS, S3Server
from support.postgresql import PostgreSQL
from support.site_servers import RUN_SEED, Cluster, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

DEVICES = ["ward.one", "ward.two", "ward.three"]
SPEC = {
    "name": "moved",
    "rounds": 6,
    "seed": RUN_SEED,
    "strategy": {"name": "fedadam"},
    "cohort": {"goal": 3, "quorum": 3, "deadline_s": 300.0},
    "train": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
}
KEYS = ("pki/root.key", "pki/issuing.pem")


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    server = S3Server(tmp_path_factory.mktemp("s3") / "log")
    yield server
    server.close()


@pytest.fixture(scope="module")
def database():
    server = PostgreSQL()
    yield server
    server.close()


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    rng, path = np.random.default_rng(3), tmp_path_factory.mktemp("model") / "model.safetensors"
    arrays = {"w": rng.normal(0, 1, (2_200_000,)), "b": rng.normal(0, 1, (3, 5))}
    write_file(path, {name: array.astype(np.float32) for name, array in arrays.items()})
    return path


def move(server, database, store, kill="", **environment):
    """The process of a move."""
    command = [sys.executable, "-m", "fedloom.cli.main", "server", "move", "--dir", server.state]
    command += ["--database", database, "--store", store, "--json"]
    variables = {**os.environ, "FEDLOOM_KILL": kill, **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    server.settings = server_config.load(server.state)
    return done


def has_rounds(server, run, count):
    return len(server.rounds(run)) == count


def play(cluster, server, model, breaks):
    """Run to the end, stopped in two rounds that are then dropped; the last model's digest.

    Args:
        cluster: of the devices.
        server: that runs.
        model: to begin with.
        breaks: what is done while it is stopped, for each of the rounds.
    """
    configs, run = cluster.enrol(server.start(), DEVICES), ""
    for number, act in breaks.items():
        devices = cluster.run_devices(server, configs, stuck=number)
        if run:
            server.control.post("runs", run, "resume")
        else:
            run = server.submit(SPEC, model)
        wait_until(partial(has_rounds, server, run, number), "the round opens")
        server.control.post("runs", run, "pause")
        server.control.post("runs", run, "abort")
        server.stop()
        devices.kill()
        devices.wait()
        act()
        server.start()
    cluster.run_devices(server, configs)
    server.control.post("runs", run, "resume")
    return server.ended(run).model


def content(server):
    """The digests of all rows."""
    return server.ledger(lambda ledger: ledger.digests(tables_of(with_store=False), (1 << 31) - 1))


def test_a_run_continues_after_each_move(cluster, s3, database, model):
    """Killed at three steps there, and moved back: same rows, keys and bits."""
    expected = play(cluster, cluster.server("alone"), model, {3: bool, 6: bool})
    cluster.servers["alone"].stop()
    server, url, store = cluster.server("moved"), database.create("moved"), s3.url("moved")

    def keys():
        return [(server.state / name).read_bytes() for name in KEYS]

    def there():
        before, settings = content(server), (server.state / "server.toml").read_text()
        for place in ("move.model:2", "move.rows", "move.settings"):
            killed = move(server, url, store, place)
            assert killed.returncode == -signal.SIGKILL, killed.stdout
            assert (server.state / "server.toml").read_text() == settings
        done = move(server, url, store)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["models"] >= 3
        assert (server.settings.database, server.settings.store) == (url, store)
        assert not (server.state / "ledger.sqlite").exists()
        after = content(server)
        assert {name for name in before if before[name] != after[name]} == {"audit"}

    def back():
        for path in (server.state / "models").iterdir():
            path.unlink()  # the copies, as on another machine
        assert move(server, "", "", "move.model:2").returncode == -signal.SIGKILL
        done = move(server, "", "")
        assert done.returncode == 0, done.stderr

    first = keys()
    assert play(cluster, server, model, {3: there, 6: back}) == expected
    assert keys() == first
    verified = subprocess.run(
        [sys.executable, "-m", "fedloom.cli.main", "audit", "verify", "--dir", server.state],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_server_that_is_not_at_rest_is_refused(cluster, database, model):
    """While it runs, and with an open round; nothing is changed."""
    server = cluster.server("busy").start()
    cluster.run_devices(server, cluster.enrol(server, DEVICES), stuck=1)
    url = database.create("busy")
    done = move(server, url, "")
    assert done.returncode == 5
    assert "Another server is running" in done.stdout + done.stderr
    server.submit(SPEC, model)
    wait_until(lambda: server.ledger(lambda ledger: ledger.open_rounds()), "a round opens")
    server.stop()
    done = move(server, url, "")
    assert done.returncode == 2
    assert "Expected no open round, got round 1 of moved" in done.stdout + done.stderr
    assert server_config.load(server.state).database == ""


def test_a_database_with_other_rows_is_refused(cluster, database):
    """It is another server's."""
    url, server = database.create("taken"), cluster.server("server")
    ledger = Ledger(url)
    ledger.trail.append("ann", "server", "thing.verb", "", {})
    ledger.close()
    server.start()
    server.stop()
    done = move(server, url, "")
    assert done.returncode == 2
    assert "Expected an empty database" in done.stdout + done.stderr
    assert (server.state / "ledger.sqlite").exists()


def test_the_store_alone_changes_and_then_the_database_alone(cluster, s3, database, model):
    """One ledger for files and objects: killed at each step, to and fro; then its models stay."""
    server, store = cluster.server("store").start(), s3.url("store")
    digest = server.upload(model)
    server.submit(SPEC, model)  # no device is there: no round opens
    expected = server.model(digest)
    server.stop()
    for target, places in (
        (store, ("move.model", "move.settings")),
        ("", ("move.model", "move.settings", "move.forget")),
    ):
        for place in places:
            assert move(server, "", target, place).returncode == -signal.SIGKILL
        done = move(server, "", target)
        assert done.returncode == 0, done.stdout
        assert server.settings.store == target
        assert (server.ledger(lambda ledger: ledger.store_claim()) is None) == (not target)
        for path in (server.state / "models").iterdir() if target else ():
            path.unlink()
        server.start()
        assert [each["state"] for each in server.control.get("runs")["runs"]] == ["running"]
        server.stop()
    assert server.model(digest) == expected
    done = move(server, "", "")
    assert done.returncode == 2
    assert "nothing is to be moved" in done.stdout
    before = content(server)
    assert move(server, database.create("database"), "").returncode == 0
    after = content(server)
    assert {name for name in before if before[name] != after[name]} == {"audit"}
    server.start()
    server.stop()
    assert server.model(digest) == expected
