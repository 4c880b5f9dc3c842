"""An interrupted training resumes from its checkpoint and ends with the same bits."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedloom.client.torch import TorchClient, parameters
from fedloom.client.training.checkpoints import Checkpoints, name_of
from fedloom.protocol.v1 import fleet_pb2
from support.logs import ours
from support.tasks import task

SCRIPT = Path(__file__).parents[2] / "support" / "checkpointed.py"


@pytest.mark.long
def test_killed_between_epochs_a_training_ends_with_the_same_bits(tmp_path):
    """By SIGKILL, with every client rule, with personal tensors and models."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert len(found) == 40
    assert [f for f in found if not (f["killed"] and f["same"])] == []
    assert [f for f in found if not f["saved_steps"] > 0] == []


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def write(file):
    file.write(b"state")


def test_a_checkpoint_is_due_after_every_s(tmp_path):
    clock = Clock()
    kept = Checkpoints(tmp_path / "c" / "x", every_s=30, clock=clock)
    clock.now = 29
    assert not kept.due()
    clock.now = 30
    assert kept.due()
    kept.save(write)
    assert kept.saved().read_bytes() == b"state"
    assert not kept.due()


def test_a_failed_checkpoint_keeps_the_previous_one(tmp_path):
    """As if the disk becomes full during the write."""
    kept = Checkpoints(tmp_path / "x")
    kept.save(write)

    def fail(file):
        file.write(b"ha")
        raise OSError(28, "No space left on device")

    assert not kept.save(fail)
    assert kept.saved().read_bytes() == b"state"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_checkpoint_is_synced_before_it_is_renamed(tmp_path, monkeypatch):
    """After a reboot it is complete, or the previous one remains."""
    kept, synced = Checkpoints(tmp_path / "x"), []

    def fsync(handle):
        synced.append((os.fstat(handle).st_size, kept.saved()))

    monkeypatch.setattr(os, "fsync", fsync)
    assert kept.save(write)
    assert synced == [(len(b"state"), None)]


@pytest.mark.parametrize(
    "save",
    [
        lambda file: file.write(bytes(10_000)),
        lambda file: np.savez(file, w=np.zeros(10_000)),
        lambda file: torch.save({"w": torch.zeros(10_000)}, file),
    ],
    ids=["bytes", "numpy", "torch"],
)
def test_a_checkpoint_without_room_does_not_fail_the_training(tmp_path, caplog, save):
    """For any library's error; one warning is logged, and errors in `write` are raised."""
    room = [1e9]
    kept = Checkpoints(tmp_path / "x", room=lambda: room[0])
    assert kept.save(write)
    room[0] = 5_000
    assert not kept.save(save)
    assert not kept.save(save)
    assert kept.saved().read_bytes() == b"state"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    (record,) = [r for r in ours(caplog) if r.levelname == "WARNING"]
    assert "budgets.disk_mb" in record.message
    with pytest.raises(ZeroDivisionError):
        kept.save(lambda file: file.write(1 / 0))


def test_threads_of_a_training_save_one_after_another(tmp_path, caplog):
    """They share one temporary file."""
    kept = Checkpoints(tmp_path / "x")

    def save(number):
        return kept.save(lambda file: file.write(bytes([number]) * 100_000))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(save, range(64)))
    assert len(set(kept.saved().read_bytes())) == 1
    assert not ours(caplog)


def test_without_a_path_nothing_is_written():
    """In simulations, and if the device disables checkpoints."""
    kept = Checkpoints()
    kept.save(write)
    assert kept.saved() is None
    assert not kept.due()


def test_a_checkpoint_belongs_to_one_task():
    """Only the deadline and the differences may vary between offers of one task."""
    offer = fleet_pb2.Task(
        key=fleet_pb2.TaskKey(run="r", round=3),
        model=fleet_pb2.ModelRef(digest="a" * 64),
        seed=1,
        deadline_s=60.0,
    )
    again, other, model = fleet_pb2.Task(), fleet_pb2.Task(), fleet_pb2.Task()
    for copy in (again, other, model):
        copy.CopyFrom(offer)
    again.deadline_s = 5.0
    again.differences.add(base="b" * 64)
    other.train.learning_rate = 0.5
    model.model.digest = "c" * 64
    assert name_of(offer).startswith("r.3.")
    assert name_of(again) == name_of(offer)
    assert len({name_of(o) for o in (offer, other, model)}) == 3


def make_task(path):
    return replace(task(epochs=4, batch_size=4), checkpoints=Checkpoints(path))


def client(num_examples=10, stop=None):
    torch.manual_seed(0)
    x, y = torch.randn(num_examples, 3), torch.arange(num_examples) % 2

    def loss(output, target):
        if stop is not None:
            stop()
        return cross_entropy(output, target)

    return TorchClient(nn.Linear(3, 2), (x, y), loss)


def train(trainer, asked):
    params = {n: v.copy() for n, v in parameters(client().model).items()}
    sent, _, metrics = trainer.train(params, asked)
    return {n: v.copy() for n, v in sent.items()}, metrics


def test_a_training_writes_a_checkpoint_when_asked_to_stop(tmp_path):
    """Also within an epoch, and shortly after the last checkpoint."""
    path = tmp_path / "x"
    steps = []
    stopped = make_task(path)

    def stop():
        steps.append(1)
        if len(steps) == 5:
            stopped.stop()

    train(client(stop=stop), stopped)
    assert path.exists()
    rest = []
    resumed = train(client(stop=lambda: rest.append(1)), make_task(path))
    whole = train(client(), make_task(None))
    assert (len(steps), len(rest)) == (5, 7)
    assert resumed[1] == whole[1]
    assert all(np.array_equal(resumed[0][n], whole[0][n]) for n in whole[0])


@pytest.mark.parametrize("damage", ["examples", "garbage", "half"])
def test_a_checkpoint_that_does_not_fit_is_dropped_and_training_restarts(tmp_path, damage):
    """A checkpoint of other data, or a damaged file."""
    path = tmp_path / "x"
    stopped = make_task(path)
    stopped.stop()
    train(client(num_examples=12 if damage == "examples" else 10), stopped)
    if damage == "garbage":
        path.write_bytes(b"\x80\x04 not a checkpoint")
    if damage == "half":
        path.write_bytes(path.read_bytes()[:-100])
    resumed, whole = train(client(), make_task(path)), train(client(), make_task(None))
    assert all(np.array_equal(resumed[0][n], whole[0][n]) for n in whole[0])
    assert not path.exists()


def test_a_custom_training_writes_its_own_checkpoints(tmp_path):
    """`checkpoint` writes if it is due, if the training must stop, or with `always`."""
    asked = make_task(tmp_path / "x")
    assert asked.resume() is None
    assert not asked.checkpoint(write)
    assert asked.checkpoint(write, always=True)
    assert asked.resume().read_bytes() == b"state"
    asked.checkpoints.close()
    assert asked.resume() is None
    stopped = make_task(tmp_path / "y")
    stopped.stop()
    assert stopped.checkpoint(write)
