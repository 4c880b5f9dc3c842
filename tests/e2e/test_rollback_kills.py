"""A server killed during a rollback: the rollback is complete, or not begun."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from fedloom.cli.connection.api_client import Control
from fedloom.protocol.errors import UnavailableError
from fedloom.protocol.tensors.container import write_file
from fedloom.server import config
from fedloom.server.ledger import Ledger
from fedloom.server.planning.spec import parse
from fedloom.server.storage.model_store import ModelStore
from support.door import SPEC
from support.patience import PATIENCE_S

pytestmark = [pytest.mark.e2e, pytest.mark.long]

BEST = {"metric": "loss", "mode": "min", "stale": 0, "patience": 0}


def fill(directory, tmp_path):
    """A run of two committed rounds; returns the digests of its three models."""
    config.write(directory, config.ServerConfig(fleet="127.0.0.1:0", console=""))
    models, ledger = ModelStore(directory / "models"), Ledger.in_directory(directory)
    digests = []
    for value in range(3):
        write_file(tmp_path / "model.safetensors", {"w": np.full(4, value, np.float32)})
        digests.append(models.add(tmp_path / "model.safetensors"))
    run = {
        "id": "run", "name": "run", "spec": parse(SPEC).as_dict(), "state": "running",
        "reason": "", "model": digests[0], "strategy_state": None,
    }  # fmt: skip
    ledger.add_run(run, 10)
    for number in (1, 2):
        row = {
            "run": "run", "number": number, "kind": "train", "opened_at": 0.0, "deadline_at": 1.0,
            "model_in": digests[number - 1],
        }  # fmt: skip
        ledger.open_round(row, [])
        ledger.close_round("run", number)
        result = {
            "model_out": digests[number], "strategy_state": None, "training": {},
            "evaluation": {"num_examples": 1, "values": {"loss": 4.0 - number}}, "counts": True,
            "best": {**BEST, "round": number - 1, "value": 4.0 - number, "measured_in": number},
        }  # fmt: skip
        ledger.commit_round("run", number, result, 10)
    ledger.close()
    return digests


def serve(directory, log, kill=""):
    """A server process that accepts requests."""
    environment = {**os.environ, "FEDLOOM_KILL": kill}
    command = [sys.executable, "-m", "fedloom.cli.main", "server", "run", "--plaintext-loopback"]
    process = subprocess.Popen(
        [*command, "--dir", str(directory)], env=environment, stdout=log, stderr=log
    )
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and process.poll() is None:
        try:
            Control(directory).get("server")
        except UnavailableError:
            time.sleep(0.05)
        else:
            return process
    raise AssertionError("the server does not answer: see its log")


@pytest.mark.parametrize(("place", "done"), [("rollback.before", False), ("rollback.after", True)])
def test_a_killed_rollback_is_complete_or_not_begun(tmp_path, place, done):
    """The run continues from the ledger's state; a repeated request is done once."""
    directory = tmp_path / "state"
    directory.mkdir()
    digests = fill(directory, tmp_path)
    with (tmp_path / "server.log").open("wb") as log:
        process = serve(directory, log, f"{place}:1")
        with pytest.raises(UnavailableError):
            Control(directory).post("runs", "run", "rollback", body={"round": 1})
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
        process = serve(directory, log)
        try:
            control = Control(directory)
            found = control.get("runs", "run")
            assert found["model"] == digests[1 if done else 2]
            assert found["best"]["round"] == (0 if done else 1)
            assert found["best"]["model"] == digests[0 if done else 1]
            again = control.post("runs", "run", "rollback", body={"round": 1})
            assert again["changed"] is not done
            found = control.get("runs", "run")
            assert (found["model"], found["rounds_committed"]) == (digests[1], 1)
            assert [r["undone_at"] is not None for r in found["rounds"][:2]] == [False, True]
            assert (found["best"]["round"], found["best"]["value"]) == (0, 3.0)
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
