"""`fedloom server rotate-master-key` beside running replicas, killed at any place."""

import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.ledger import Ledger
from fedloom.server.ledger.audit_trail import audit
from fedloom.server.replicas.key_vault import MASTER_KEY, NEXT_KEY, OLD_KEY, KeyVault
from support.contexts import rows_of
from support.patience import PATIENCE_S
from support.replicas import DEVICES, Replicas, has_rounds, spec
from support.site_servers import Cluster, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.usefixtures("credentials")]


def rotate(state, *words, kill=""):
    command = [sys.executable, "-m", "fedloom.cli.main", "server", "rotate-master-key"]
    variables = {**os.environ, "FEDLOOM_KILL": kill}
    command += ["--dir", state, "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == (-signal.SIGKILL if kill else 0), done.stdout + done.stderr


def test_replicas_follow_a_rotation(tmp_path, database, s3, small_model):
    """The driver by its next key; a replica without it does not drive until it gets a copy."""
    url, store = database.create(tmp_path.name), s3.url(tmp_path.name)
    pair, cluster = Replicas(tmp_path, url, store), Cluster(tmp_path)
    first, second = pair.all
    try:
        cluster.run_devices(first, cluster.enrol(first, DEVICES))
        wait_until(lambda: first.online() == len(DEVICES), "devices attend")
        wait_until(lambda: "on standby" in second.log(), "the second waits")
        old = (first.state / MASTER_KEY).read_bytes()
        rotate(first.state)
        new = (first.state / NEXT_KEY).read_bytes()
        rotate(first.state, "--finish", kill="master.rotated")
        assert (first.state / MASTER_KEY).read_bytes() == old
        private = {"mechanism": "dp_fedavg", "clip": 1.0, "noise_multiplier": 0.1, "delta": 1e-3}
        settings = spec(privacy=private, weighting="uniform", rounds=6, evaluate=False)
        run = first.submit(settings, small_model)
        assert (first.state / MASTER_KEY).read_bytes() == new
        assert (first.state / OLD_KEY).read_bytes() == old
        assert not (first.state / NEXT_KEY).exists()
        wait_until(lambda: has_rounds(first, run, 2), "a round is open")
        first.kill()
        wait_until(lambda: "this server cannot drive: Expected the master" in second.log(), "told")
        assert not second.drives
        assert second.process.poll() is None
        shutil.copy(first.state / MASTER_KEY, second.state / NEXT_KEY)
        assert pair.driver is second
        assert (second.state / MASTER_KEY).read_bytes() == new
        assert second.ended(run).committed == 6, "its noise is that of the first's key"
        (first.state / MASTER_KEY).write_bytes(old)
        first.launch("")
        assert first.process.wait(PATIENCE_S) == UsageError.exit_code
        assert "copy it from another replica" in first.log().splitlines()[-1]
    finally:
        cluster.close()
        pair.close()


@pytest.fixture
def ledgers(tmp_path, database):
    """A database, and two ledgers of it."""
    url = database.create(tmp_path.name)
    found = Ledger(url), Ledger(url)
    yield url, *found
    for each in found:
        each.close()


def test_keys_are_readable_after_a_kill_at_each_step(tmp_path, ledgers):
    """By the old master key, or the new one; the command ends what is left."""
    (url, ledger, _), state = ledgers, tmp_path / "server"
    content = {"signing/key.json": b"a signing key", "noise/run-1.key": b"a key of noise"}
    for name, key in content.items():
        (state / name).parent.mkdir(parents=True)
        (state / name).write_bytes(key)
        (state / name).chmod(0o600)
    (state / "server.toml").write_text(f'database = "{url}"\n')
    vault = KeyVault(state, ledger)
    vault.restore()
    for place in ("master.next", "master.rotated", "master.old"):
        before = ledger.wrapped_keys()
        rotate(state, kill=place if place == "master.next" else "")
        following = (state / NEXT_KEY).read_bytes()
        rotate(state)  # the same key as before
        assert (state / NEXT_KEY).read_bytes() == following
        if place != "master.next":
            rotate(state, "--finish", kill=place)
        vault.check()
        for name in content:
            (state / name).unlink()
        vault.restore()
        assert {name: (state / name).read_bytes() for name in content} == content
        if (state / NEXT_KEY).exists():
            rotate(state, "--finish")
        assert (state / MASTER_KEY).read_bytes() == following
        assert not {*before.values()} & {*ledger.wrapped_keys().values()}
    assert {row["action"] for row in rows_of(ledger, audit.select())} == {"master_key.rotate"}


def test_a_key_that_is_written_during_a_rotation_is_under_the_new_one(tmp_path, ledgers):
    """Neither change misses the other: they take turns in the database."""
    (_, ledger, second), state, other = ledgers, tmp_path / "a", tmp_path / "b"
    for folder in (state, other):
        (folder / "noise").mkdir(parents=True)
    (state / "noise/run-1.key").write_bytes(b"a key of noise")
    vault = KeyVault(state, ledger)
    vault.restore()
    vault.prepare_rotation()
    for name in (MASTER_KEY, NEXT_KEY):
        shutil.copy(state / name, other)
    begun, go = threading.Event(), threading.Event()
    change = ledger.change_wrapped_keys

    def slowly(make):
        def made(rows):
            begun.set()
            assert go.wait(PATIENCE_S)
            return make(rows)

        change(made)

    ledger.change_wrapped_keys = slowly
    rotating = threading.Thread(target=vault.rotate)
    rotating.start()
    assert begun.wait(PATIENCE_S)
    writing = threading.Thread(
        target=KeyVault(other, second).write, args=(other / "noise/run-2.key", b"another one")
    )
    writing.start()
    writing.join(1.0)
    assert writing.is_alive()
    go.set()
    for thread in (rotating, writing):
        thread.join()
    vault.fetch()
    assert (state / "noise/run-2.key").read_bytes() == b"another one"
    assert (other / MASTER_KEY).read_bytes() == (state / MASTER_KEY).read_bytes()
