"""Pruning of old models: needed models stay, and a kill leaves no unneeded file."""

import asyncio
import os

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.protocol.tensors.container import write_file
from fedloom.server.ledger.tables import models
from fedloom.server.storage import pruning
from support.door import Door

OLD = 1e9


@pytest.fixture
def door(tmp_path):
    """A server that keeps two models, and a run of six rounds, each with a state."""
    with Door(tmp_path / "state", keep_models=2) as door:
        door.run = door.submit(tmp_path)
        door.models, door.states = [door.contexts.ledger.run(door.run).model], [None]
        for number in range(1, 7):
            commit(door, tmp_path, number)
        yield door


def put(door, tmp_path, value):
    path = tmp_path / "made.safetensors"
    write_file(path, {"w": np.full(4, value, np.float32)})
    digest = door.contexts.models.add(path)
    os.utime(door.contexts.models.path(digest), (OLD, OLD))
    return digest


def commit(door, tmp_path, number):
    model, state = put(door, tmp_path, number), put(door, tmp_path, 100 + number)
    note = f'{{"step": {number}, "arrays": "{state}", "sent": null}}'
    door.commit(door.run, number, model, strategy_state=note)
    door.models.append(model)
    door.states.append(state)


def prune(door):
    work = pruning.prune(door.context.storage, door.contexts.config.keep_models)
    return asyncio.run_coroutine_threadsafe(work, door._loop).result(10)


def kept(door, digests):
    return [n for n, d in enumerate(digests) if d and door.contexts.models.path(d).exists()]


def test_initial_latest_and_promoted_models_stay(door):
    """With their states; others are removed once, and their rows are marked."""
    door.contexts.ledger.promote(door.models[2])
    assert prune(door) == 6
    assert kept(door, door.models) == [0, 2, 5, 6]
    assert kept(door, door.states) == [2, 5, 6]
    assert prune(door) == 0
    rows = door.ask("GET", "/models")[1]["models"]
    assert [m["round"] for m in rows if m["pruned"] is None] == [0, 2, 5, 6]
    assert len(rows) == 7


def test_pruned_model_cannot_be_rolled_back_to(door):
    """Kept ones can; counts of rounds include pruned rows."""
    prune(door)
    with pytest.raises(UsageError, match="not undone or pruned"):
        door.contexts.ledger.roll_back(door.run, 3)
    status, done = door.ask("POST", f"/runs/{door.run}/rollback", {"round": 5})
    assert (status, done["rounds_committed"]) == (200, 5)
    run = door.contexts.ledger.run(door.run)
    assert (run.model, f'"{door.states[5]}"' in run.strategy_state) == (door.models[5], True)
    prune(door)
    assert 5 in kept(door, door.models)  # it is the run's model now


def test_shared_file_stays_while_one_row_needs_it(door, tmp_path):
    """Another run starts from a model that this one would prune."""
    spec = {"name": "other", "cohort": {"goal": 2}, "train": {"epochs": 1, "learning_rate": 0.1}}
    status, _ = door.ask("POST", "/runs", {"spec": spec, "model": door.models[3]})
    assert status == 201
    prune(door)
    assert kept(door, door.models) == [0, 3, 5, 6]


@pytest.mark.long
def test_repeated_model_stays_with_its_later_row(door, tmp_path):
    """A converged run commits the same bytes again: one file, two rows."""
    commit(door, tmp_path, 7)
    with door.contexts.ledger._write() as connection:
        connection.execute(
            models.update().where(models.c.round == 6).values(digest=door.models[3], state="null")
        )
    prune(door)
    assert kept(door, door.models[:4]) == [0, 3]


def test_new_file_stays_until_its_row_can_exist(door):
    """A commit writes the file first; a later pass removes it if it is not needed."""
    path = door.contexts.models.path(door.models[3])
    os.utime(path)
    prune(door)
    assert path.exists()
    os.utime(path, (OLD, OLD))
    prune(door)
    assert not path.exists()
    assert prune(door) == 0


@pytest.mark.long
@pytest.mark.parametrize("step", ["marked", "pruned"])
def test_a_kill_between_two_steps_leaves_nothing_behind(door, monkeypatch, step):
    """Before or after files are removed, the next pass finishes."""

    def killed(*_):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(door.contexts.ledger, step, killed)
        with pytest.raises(RuntimeError):
            prune(door)
    prune(door)
    assert kept(door, door.models) == [0, 5, 6]
    assert kept(door, door.states) == [5, 6]
    assert door.contexts.ledger.marked() == []


def test_keep_models_0_keeps_all(tmp_path):
    with Door(tmp_path / "state", keep_models=0) as door:
        door.run = door.submit(tmp_path)
        door.models, door.states = [door.contexts.ledger.run(door.run).model], [None]
        for number in range(1, 4):
            commit(door, tmp_path, number)
        assert prune(door) == 0
        assert kept(door, door.models) == [0, 1, 2, 3]


@pytest.mark.parametrize("what", ["promote", "submit"])
def test_model_held_during_pruning_stays(door, tmp_path, what):
    """Promoted or used between the check and the removal."""
    remove = pruning._remove
    digest = door.models[3]

    def late(models, digests):
        digests = set(digests)
        assert digest in digests
        future = asyncio.run_coroutine_threadsafe(act(), door._loop)
        assert future.result(10)
        return remove(models, digests)

    async def act():
        await door.app.state.context.hold(digest)
        if what == "promote":
            return await door.contexts.in_ledger(door.contexts.ledger.promote, digest)
        spec = {"name": "new", "cohort": {"goal": 2}, "train": {"epochs": 1, "learning_rate": 0.1}}
        return await door.runs.submit(spec, digest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pruning, "_remove", late)
        prune(door)
    prune(door)
    assert 3 in kept(door, door.models)


def test_pruned_model_cannot_be_promoted(door):
    """Its lineage stays known."""
    prune(door)
    status, fault = door.ask("POST", f"/models/{door.models[3]}/promote", {})
    assert (status, fault["error"]["kind"]) == (404, "not_found")
    assert fault["error"]["message"].startswith(f"The file of the model {door.models[3][:12]} was")
    unknown = door.ask("POST", f"/models/{'0' * 64}/promote", {})[1]
    assert "There is no model" in unknown["error"]["message"]
    status, made = door.ask("GET", f"/models/{door.models[3][:12]}/lineage")
    assert (status, made["stored"], made["size_bytes"]) == (200, False, 10)
    assert [origin["round"] for origin in made["origins"]] == [3]
    assert door.ask("GET", f"/models/{door.models[6]}/lineage")[1]["stored"]


def test_models_are_read_page_by_page(door):
    """From the newest page back, of one run and of all; together they are the whole list."""
    for query in ("", f"&run={door.run}"):
        whole = door.ask("GET", f"/models?{query[1:]}")[1]
        assert whole["more"] is None
        found, more = [], ""
        while more is not None:
            page = door.ask("GET", f"/models?limit=3&before={more}{query}")[1]
            found, more = page["models"] + found, page["more"]
            assert len(page["models"]) <= 3
        assert found == whole["models"]
        assert [m["round"] for m in found] == list(range(7))
    assert door.ask("GET", "/models?before=nonsense")[0] == 422


def test_a_model_that_becomes_the_best_between_the_steps_stays(door):
    """A rollback may name one whose row is marked already, and whose file is still there."""
    ledger = door.contexts.ledger
    ledger.mark_pruned(2)
    ledger.roll_back(door.run, 6, best={"metric": "loss", "round": 3, "value": 1.0})
    assert ledger.run(door.run).best["model"] == door.models[3]
    prune(door)
    assert kept(door, door.models) == [0, 3, 5, 6]


def test_a_model_whose_file_is_kept_is_not_listed_as_pruned(door, tmp_path):
    """Its row was pruned before a rollback made it the best, or before another run has it too."""
    ledger = door.contexts.ledger
    prune(door)
    put(door, tmp_path, 3)  # as the file of another run, or of a rollback just before the removal
    ledger.roll_back(door.run, 6, best={"metric": "loss", "round": 3, "value": 1.0})
    prune(door)
    listed = {m["round"]: m for m in door.ask("GET", "/models")[1]["models"]}
    assert [n for n, m in listed.items() if m["pruned"] is None] == kept(door, door.models)
    assert (listed[3]["best"], listed[3]["pruned"], listed[2]["pruned"]) == (True, None, 2)
    assert door.ask("POST", f"/models/{door.models[3]}/promote", {})[0] == 200
