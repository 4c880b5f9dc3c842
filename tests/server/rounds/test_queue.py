"""The queue of runs: who gets a place that is free, and what an operator may ask meanwhile."""

import threading
from functools import partial

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.rounds.manager import Runs
from support.agents import played, submit
from support.door import SPEC, Door, write_model
from support.scene import wait_for


@pytest.fixture
def door(tmp_path):
    with Door(tmp_path / "state", max_running=1) as door:
        yield door


def states(door):
    return {run["name"]: run["state"] for run in door.ask("GET", "/runs")[1]["runs"]}


def test_a_run_that_cannot_start_leaves_its_place_to_the_next(door, tmp_path):
    """Nothing else would start the next one."""
    first = door.submit(tmp_path, name="first")
    digest = door.put_model(write_model(tmp_path / "own.safetensors", value=7.0))
    status, _ = door.ask("POST", "/runs", {"spec": SPEC | {"name": "broken"}, "model": digest})
    assert status == 201
    door.submit(tmp_path, name="last")
    (door.directory / "models" / f"{digest}.safetensors").unlink()
    assert door.ask("POST", f"/runs/{first}/stop", {})[0] == 200
    wait_for(lambda: states(door)["last"] != "queued", "the last run starts")
    assert states(door) == {"first": "stopped", "broken": "failed", "last": "running"}


@pytest.mark.parametrize("action", ["pause", "resume", "close", "retry", "goal"])
def test_an_action_on_a_queued_run_is_not_refused_as_on_one_that_ended(door, tmp_path, action):
    door.submit(tmp_path, name="first")
    queued = door.submit(tmp_path, name="second")
    status, fault = door.ask("POST", f"/runs/{queued}/{action}", {"goal": 3})
    assert status == 409
    assert f"{queued}, which is queued: it can be stopped" in fault["error"]["message"]
    assert "ended" not in fault["error"]["message"]


def test_a_run_that_leaves_the_queue_has_a_priority_that_changes_just_then(door, tmp_path):
    """Its row was read before, so the change would hold only after the next restart."""
    first, second = (door.submit(tmp_path, name=name) for name in ("first", "second"))
    models, reading, go_on = door.contexts.models, threading.Event(), threading.Event()
    manifest = models.manifest

    def slow(digest):
        reading.set()
        assert go_on.wait(60)
        return manifest(digest)

    models.manifest = slow
    door.ask("POST", f"/runs/{first}/stop", {})
    assert reading.wait(60)
    asked = threading.Thread(
        target=door.ask, args=("POST", f"/runs/{second}/priority", {"priority": 7})
    )
    asked.start()
    asked.join(1.0)
    go_on.set()
    asked.join(60)
    models.manifest = manifest
    turns = door.runs._context.turns
    wait_for(lambda: second in turns._runs, "the second run starts")
    assert turns._fair._runs[second].priority == 7


def test_a_queued_run_that_gates_cannot_serve_keeps_a_server_with_gates_from_starting(tmp_path):
    """As an active one does; else it would fail when its turn comes."""

    async def scenario(federation, _):
        ask = partial(submit, federation, {"w": np.zeros(3, np.float32)}, cohort={"goal": 1})
        await ask(name="first")
        await ask(name="second")
        sites = await ask(sites=True)
        assert federation.ledger.run(sites).state == "queued"
        federation.contexts.gates = True
        with pytest.raises(UsageError, match=f"{sites} is queued. .* got one with sites = true"):
            await Runs(federation.server.runs._context).start()

    played(tmp_path, scenario, max_running=1)
