"""A full disk or an unavailable database delays a round and loses no update."""

import asyncio
import errno
import os
import subprocess
import sys

import numpy as np
import pytest
from sqlalchemy.exc import OperationalError

from fedloom.client import Client
from fedloom.server.ledger import Ledger
from fedloom.server.rounds import fold, storage_retry
from fedloom.server.storage.model_store import ModelStore
from support.agents import Adder, Agents, result, submit, until
from support.federation import Federation
from support.patience import PATIENCE_S

pytestmark = pytest.mark.e2e

ZEROS = {"w": np.zeros((4, 3), np.float32)}
FULL = OSError(errno.ENOSPC, "No space left on device")
AWAY = OperationalError("INSERT", {}, Exception("database or disk is full"))


class Broken(Client):
    """Fails, so that another client is recruited in its place."""

    def train(self, params, task):
        raise ValueError("no data here")


def _failing_at_first(monkeypatch, owner, method, error, times=2):
    """Make the first calls of a method fail, the first after its work; returns the calls."""
    real, calls = getattr(owner, method), []

    def sometimes(*args, **kwargs):
        calls.append(args)
        if len(calls) == 1:
            real(*args, **kwargs)
        if len(calls) <= times:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, method, sometimes)
    return calls


@pytest.mark.long
@pytest.mark.parametrize(
    ("owner", "method", "error"),
    [
        (ModelStore, "save", FULL),
        (fold.Folder, "save", FULL),
        (Ledger, "open_round", AWAY),
        (Ledger, "recruit", AWAY),
        (Ledger, "close_round", AWAY),
        (Ledger, "commit_round", AWAY),
    ],
)
def test_a_round_waits_for_its_storage(tmp_path, monkeypatch, owner, method, error):
    """Every update counts once, whether the failed step was done or not."""
    monkeypatch.setattr(storage_retry, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(fold, "CHECKPOINT_EVERY", 1)
    calls = _failing_at_first(monkeypatch, owner, method, error)

    async def main():
        server = tmp_path / "server"
        server.mkdir()
        federation = Federation(server)
        await federation.start()
        agents = Agents(federation, tmp_path)
        try:
            await agents.start("eve", Broken())
            await agents.start("ann", Adder(1.0, 1))
            run = await submit(federation, ZEROS, rounds=2, cohort={"goal": 2, "quorum": 2})
            await agents.start("bob", Adder(3.0, 3))
            await until(lambda: federation.ledger.run(run).state == "finished")
            np.testing.assert_array_equal(result(federation, run)["w"], 2 * 2.5)
            assert [r.accepted for r in federation.ledger.list_rounds(run)] == [2, 2]
        finally:
            await agents.stop()
            await federation.stop()

    asyncio.run(main())
    assert len(calls) > 2
    assert not list((tmp_path / "server" / "models").glob("*.tmp"))


ON_A_FULL_DISK = """
mount -t tmpfs -o size=20m none disk || exit 77
fedloom() { "$PYTHON" -m fedloom.cli.main "$@"; }
fill() { dd if=/dev/zero of=disk/filler bs=4k 2>/dev/null; }
fill
fedloom server init --dir disk/new; echo "code $?"
rm disk/filler
fedloom server init --dir disk/s --fleet 127.0.0.1:0 --enrolment 127.0.0.1:0 >/dev/null
sed -i 's/^console = "auto"/console = ""/' disk/s/server.toml
"$PYTHON" -m fedloom.cli.main server run --dir disk/s --ready disk/ready & server=$!
while ! [ -e disk/ready ]; do sleep 0.1; done
fill
fedloom token create --dir disk/s; echo "code $?"
kill -9 $server; wait $server
fedloom server run --dir disk/s; echo "code $?"
"""


@pytest.mark.long
def test_a_full_file_system_is_said_in_plain_words(tmp_path):
    """While a server is created, at a request, and when a server starts again: exit code 5."""
    (tmp_path / "disk").mkdir()
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", ON_A_FULL_DISK],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("this user may mount nothing")
    assert done.stdout.split("code ")[1:] == ["5\n", "5\n", "5\n"], done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 3, done.stderr
    assert "error: The disk is full" in said[0]
    assert all("is full" in line and "free some space" in line for line in said)
    assert "Traceback" not in done.stderr
    assert "sqlalche.me" not in done.stderr
