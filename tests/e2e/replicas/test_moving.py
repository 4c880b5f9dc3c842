"""`fedloom server move`: to PostgreSQL and an object store and back, within rounds of one run."""

import json
import os
import signal
import subprocess
import sys

import pytest

from fedloom.server import config as server_config
from fedloom.server.ledger import Ledger
from fedloom.server.ledger.moving.copies import tables_of
from support.site_servers import RUN_SEED, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.usefixtures("credentials")]

DEVICES = ["ward.one", "ward.two", "ward.three"]
SPEC = {
    "name": "moved",
    "seed": RUN_SEED,
    "strategy": {"name": "fedadam"},
    "cohort": {"goal": 3, "quorum": 3, "deadline_s": 600.0},
    "train": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
}
KEYS = ("pki/root.key", "pki/issuing.pem")


def move(server, database, store, kill="", **environment):
    """The process of a move."""
    command = [sys.executable, "-m", "fedloom.cli.main", "server", "move", "--dir", server.state]
    command += ["--database", database, "--store", store, "--json"]
    variables = {**os.environ, "FEDLOOM_KILL": kill, **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    server.settings = server_config.load(server.state)
    return done


def play(cluster, server, model, breaks, *, names=DEVICES, rounds=3):
    """Run twice: without a break, and stopped in rounds whose last device trains.

    Args:
        cluster: of the devices.
        server: that runs.
        model: to begin with.
        breaks: what is done one after another while it is stopped, for each of these rounds.
        names: of the devices.
        rounds: of the run.

    Returns:
        Both last models, which are the same if nothing is lost, and the second run.
    """
    configs = cluster.enrol(server.start(), names)
    cohort = {**SPEC["cohort"], "goal": len(names), "quorum": len(names)}
    spec = {**SPEC, "rounds": rounds, "cohort": cohort}
    devices = cluster.run_devices(server, configs)
    expected = server.ended(server.submit(spec, model)).model
    run = ""

    def accepted(number):
        return server.ledger(lambda ledger: ledger.accepted(run, number))

    for number, acts in breaks.items():
        devices.kill()
        quick = cluster.run_devices(server, configs[:-1])
        last = cluster.run_devices(server, configs[-1:], stuck=number)
        run = run or server.submit(spec, model)
        wait_until(lambda number=number: len(accepted(number)) == len(names) - 1, "all but one")
        server.stop()
        for each in (quick, last):
            each.kill()
            each.wait()
        before = accepted(number)
        for act in acts:
            act()
            server.start()
            if act is not acts[-1]:
                server.stop()
        assert accepted(number) == before
        devices = cluster.run_devices(server, configs)
    return expected, server.ended(run).model, run


def check_counted(server, run, names=DEVICES):
    """Each round is committed once and counts every device."""
    listed = server.rounds(run)
    assert [each.state for each in listed] == ["committed"] * len(listed)
    for row in listed:
        found = server.ledger(lambda ledger, row=row: ledger.accepted(run, row.number))
        assert sorted(each.client for each in found) == sorted(names)


def content(server):
    """The digests of all rows."""
    return server.ledger(lambda ledger: ledger.digests(tables_of(with_store=False), (1 << 31) - 1))


def test_an_open_round_continues_after_each_move(cluster, s3, database, large_model):
    """Killed at two steps there, and moved back: same rows, keys and bits."""
    server, url, store = cluster.server("moved"), database.create("moved"), s3.url("moved")

    def keys():
        return [(server.state / name).read_bytes() for name in KEYS]

    def there():
        before, settings = content(server), (server.state / "server.toml").read_text()
        for place in ("move.body:2", "move.rows"):
            killed = move(server, url, store, place)
            assert killed.returncode == -signal.SIGKILL, killed.stdout
            assert (server.state / "server.toml").read_text() == settings
        done = move(server, url, store)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["models"] >= 3
        assert json.loads(done.stdout)["updates"] == 2
        assert (server.settings.database, server.settings.store) == (url, store)
        for name in ("ledger.sqlite", "spool"):
            assert not (server.state / name).exists()
            assert (server.state / f"{name}.moved").exists()
        after = content(server)
        assert {name for name in before if before[name] != after[name]} == {"audit"}

    def back():
        for folder in ("models", "spool"):  # the copies, as on another machine
            for path in (server.state / folder).iterdir():
                path.unlink()
        assert move(server, "", "", "move.body:2").returncode == -signal.SIGKILL
        done = move(server, "", "")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["updates"] == 2

    first = keys()
    expected, found, run = play(cluster, server, large_model, {2: [there], 3: [back]})
    assert found == expected
    check_counted(server, run)
    assert keys() == first
    verified = subprocess.run(
        [sys.executable, "-m", "fedloom.cli.main", "audit", "verify", "--dir", server.state],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_sum_whose_updates_are_gone_moves_to_and_fro(cluster, s3, small_model):
    """A checkpoint of sixteen, and an update after it, within one round that ends in the store.

    Unless the update was added together with the last of the sixteen: then it is in the checkpoint.
    """
    names = [f"ward.d{number:02d}" for number in range(18)]
    server, files = cluster.server("many"), []

    def to(target):
        def act():
            files.append({p.name for p in (server.state / "spool").glob("*..sum")})
            done = move(server, "", target)
            assert done.returncode == 0, done.stdout
            files.append(json.loads(done.stdout)["updates"])

        return act

    breaks = {1: [to(s3.url("first")), to(""), to(s3.url("second"))]}
    expected, found, run = play(cluster, server, small_model, breaks, names=names, rounds=1)
    assert found == expected
    check_counted(server, run, names)
    sums, moved = files[::2], files[1::2]
    assert [len(each) for each in sums] == [1, 1, 1]
    assert moved in ([2, 2, 2], [1, 1, 1]), "the sum, and the update that is not in it"


def test_what_cannot_move_is_refused(cluster, database, s3, small_model):
    """A running server; an accepted update that is damaged or gone: nothing is changed."""
    server = cluster.server("busy")
    outcomes = []

    def refused():
        [path] = (server.state / "spool").glob("*.ward.one")
        data = path.read_bytes()
        for damaged in (bytes([*data[:1000], data[1000] ^ 1, *data[1001:]]), None):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            outcomes.append(move(server, "", s3.url("busy")))
        path.write_bytes(data)
        database.create("busy")
        assert move(server, database.url("busy"), "").returncode == 0, "files stay where they are"

    expected, found, run = play(cluster, server, small_model, {1: [refused]}, rounds=1)
    assert found == expected
    check_counted(server, run)
    [damaged, gone] = outcomes
    assert damaged.returncode == gone.returncode == 4
    assert "Expected the accepted update moved-" in damaged.stdout
    assert "got other bytes" in damaged.stdout
    assert "is missing in the spool" in gone.stdout
    assert server.settings.store == ""
    done = move(server, "", "")
    assert done.returncode == 5
    assert "Another server is running" in done.stdout + done.stderr


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


def test_the_store_alone_changes_and_then_the_database_alone(cluster, s3, database, large_model):
    """One ledger for files and objects: killed at each step, to and fro; then its models stay."""
    server, store = cluster.server("store").start(), s3.url("store")
    digest = server.upload(large_model)
    server.submit({**SPEC, "rounds": 1}, large_model)  # no device is there: no round opens
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
