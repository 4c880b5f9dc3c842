"""Files that a site passes on stay as long as a run or a row of the ledger needs them."""

import asyncio
from hashlib import sha256

import numpy as np
import pytest

from fedloom.protocol.task_description import FileRef, TaskDescription
from fedloom.protocol.tensors.container import write_file
from fedloom.server.rounds.upstream.passed_files import PassedFiles
from fedloom.strategies import Plain, RoundSettings
from support.door import Door

FEW = RoundSettings(epochs=1, steps=None, batch_size=1, learning_rate=0.1)


@pytest.fixture
def door(tmp_path):
    with Door(tmp_path / "state") as door:
        yield door


@pytest.fixture
def agent(tmp_path):
    """Makes a file of the agent; its digest. And finds it."""
    folder = tmp_path / "agent"
    folder.mkdir()

    def make(value):
        path = folder / "new"
        write_file(path, {"w": np.full(3, value, np.float32)})
        digest = sha256(path.read_bytes()).hexdigest()
        path.rename(folder / digest)
        return digest

    return make, lambda digest: folder / digest


def task(run, model, received):
    return TaskDescription(
        run=run, round=1, model=FileRef(digest=model), received=FileRef(digest=received),
        settings=FEW, rule=Plain(), config={"rate": 0.5},
    )  # fmt: skip


def test_a_file_that_another_run_passes_on_stays(door, agent, tmp_path):
    """Until that run goes on as well; what a row of the ledger names stays in any case."""
    make, find = agent
    passed, storage = PassedFiles(), door.context.storage
    models = storage.models
    first, second, shared = make(1.0), make(2.0), make(3.0)
    note = passed.take(task("a", first, shared), find, models)
    assert (note.sent, note.config) == (FileRef(digest=shared), {"rate": 0.5})
    passed.take(task("b", second, shared), find, models)

    def drop(run, keep=()):
        work = passed.drop(run, keep, storage)
        asyncio.run_coroutine_threadsafe(work, door._loop).result(10)
        return [digest for digest in (first, second, shared) if models.size(digest) is not None]

    assert drop("a", {first}) == [first, second, shared]
    assert drop("a") == [second, shared]
    passed.restore("a", {second})  # after a restart
    begun = door.contexts.ledger.run(door.submit(tmp_path)).model
    passed.take(task("c", begun, shared), find, models)
    assert drop("b") == [second, shared]
    assert drop("c") == [second]
    assert drop("a") == []
    assert models.size(begun) is not None, "the model of a run of the ledger"


def test_a_copy_of_one_run_keeps_no_other_waiting(door, agent):
    """Nor is a file removed that is being copied."""
    make, find = agent
    passed, storage = PassedFiles(), door.context.storage
    shared, other = make(1.0), make(2.0)
    passed.take(task("a", shared, shared), find, storage.models)
    asked = []

    def finding(digest):
        if not asked:
            asked.append(digest)
            work = asyncio.run_coroutine_threadsafe(passed.drop("a", (), storage), door._loop)
            work.result(10)
        return find(digest)

    passed.take(task("b", other, shared), finding, storage.models)
    assert asked
    assert storage.models.size(shared) is not None
