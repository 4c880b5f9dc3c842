"""Offers that exceed memory or disk are declined before a download."""

import os

import pytest

from fedloom.client.budgets import BudgetGate, Budgets, room_beside
from fedloom.client.state.store import ClientStore
from fedloom.protocol.v1 import fleet_pb2

MB = 1_000_000


def offer(size_bytes, digest="a" * 64, **more):
    return fleet_pb2.Task(
        key=fleet_pb2.TaskKey(run="r", round=3),
        model=fleet_pb2.ModelRef(digest=digest, size_bytes=size_bytes),
        **more,
    )


@pytest.fixture
def store(tmp_path):
    return ClientStore(tmp_path / "state")


def objection(store, budgets, asked, *, available=1e12, resident=0.0, free=1e12):
    gate = BudgetGate(
        budgets, store, available=lambda: available, resident=lambda: resident, free=lambda _: free
    )
    return gate.objection(asked)


@pytest.mark.parametrize(
    ("budgets", "machine", "fits"),
    [
        ({}, {"available": 400 * MB}, True),
        ({}, {"available": 399 * MB}, False),
        ({"memory_factor": 10}, {"available": 999 * MB}, False),
        ({"memory_factor": 0}, {"available": 1}, True),
        ({"memory_mb": 500}, {"resident": 100 * MB}, True),
        ({"memory_mb": 500}, {"resident": 101 * MB}, False),
    ],
)
def test_a_model_must_fit_into_memory_memory_factor_times(store, budgets, machine, fits):
    """Into free memory, and into the owner's limit."""
    said = objection(store, Budgets(**budgets), offer(100 * MB), **machine)
    assert (said is None) == fits
    assert fits or "times the model of 100.0 MB" in said


def test_received_tensors_count_as_memory_too(store):
    """Such as control variates."""
    beside = fleet_pb2.ModelRef(digest="b" * 64, size_bytes=100 * MB)
    asked = offer(100 * MB, received=beside)
    assert objection(store, Budgets(), asked, available=799 * MB) is not None
    assert objection(store, Budgets(), asked, available=800 * MB) is None


def test_the_disk_must_have_room_for_model_and_update(store):
    """For the model only if it is not stored yet."""
    asked = offer(100)
    assert "free on the disk" in objection(store, Budgets(), asked, free=199)
    store.model_path("a" * 64).write_bytes(b"x")
    assert objection(store, Budgets(), asked, free=199) is None


def put(store, name, size_bytes, age):
    path = store.directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(size_bytes))
    os.utime(path, (1e9 - age, 1e9 - age))
    return path


def test_the_oldest_files_are_deleted_to_meet_the_quota(store):
    """Never the identity, nor files that the task needs."""
    identity = put(store, "identity.pem", 10_000, 99)
    needed = put(store, f"models/{'a' * 64}.safetensors", 300_000, 98)
    memory = put(store, "memory/r.2.safetensors", 50_000, 97)
    kept = put(store, "checkpoints/r.3.abc.checkpoint", 50_000, 96)
    oldest = put(store, f"models/{'b' * 64}.safetensors", 300_000, 50)
    stale = put(store, "outbox/q.1.body", 200_000, 40)
    newest = put(store, "memory/q.1.safetensors", 100_000, 1)
    assert objection(store, Budgets(disk_mb=1.1), offer(300_000)) is None
    assert not oldest.exists()
    for path in (identity, needed, memory, kept, stale, newest):
        assert path.exists(), path
    assert objection(store, Budgets(disk_mb=0.72), offer(300_000)) is None
    assert not stale.exists()
    assert not newest.exists()
    said = objection(store, Budgets(disk_mb=0.7), offer(300_000))
    assert said.endswith("disk_mb is 0.7.")
    for path in (identity, needed, memory, kept):
        assert path.exists(), path


def test_without_a_quota_nothing_is_deleted(store):
    old = put(store, f"models/{'b' * 64}.safetensors", 300_000, 50)
    assert objection(store, Budgets(), offer(300_000)) is None
    assert old.exists()


def test_a_quota_limits_checkpoints_too(store):
    """Space for the update is reserved; without a quota there is no limit."""
    asked = offer(300_000)
    store.model_path("a" * 64).write_bytes(bytes(300_000))
    assert room_beside(Budgets(), store, asked) == float("inf")
    assert room_beside(Budgets(disk_mb=1.0), store, asked) == 1_000_000 - 600_000
    old = store.model_path("b" * 64)
    old.write_bytes(bytes(300_000))
    assert room_beside(Budgets(disk_mb=1.0), store, asked) == 1_000_000 - 600_000
    assert not old.exists()


def test_memories_of_a_task_take_disk_too(store):
    """Of scaffold, and of compression with error feedback."""
    plain, quota = offer(300_000), Budgets(disk_mb=0.7)
    assert objection(store, quota, plain) is None
    feedback = {"codec": "int8", "error_feedback": True}
    for more in ({"rule": {"name": "scaffold"}}, {"compression": feedback}):
        assert "disk_mb is 0.7" in objection(store, quota, offer(300_000, **more))


@pytest.mark.parametrize(
    ("more", "models"),
    [
        ({}, 1),
        ({"rule": {"name": "fedprox", "settings": {"mu": 0.1}}}, 1),
        ({"rule": {"name": "ifca", "settings": {"clusters": 3}}}, 1),
        ({"rule": {"name": "scaffold"}}, 6),
        ({"compression": {"codec": "int8"}}, 1),
        ({"compression": {"codec": "int8", "error_feedback": True}}, 3),
        ({"personal": {"name": "ditto"}}, 2),
    ],
)
def test_scratch_space_takes_disk_too(store, more, models):
    """A task that would fill the disk is declined, and a checkpoint leaves room for its update."""
    asked = offer(100_000, **more)
    store.model_path("a" * 64).write_bytes(bytes(100_000))
    assert objection(store, Budgets(), asked, free=models * 100_000) is None
    assert "free on the disk" in objection(store, Budgets(), asked, free=models * 100_000 - 1)
    assert room_beside(Budgets(disk_mb=2), store, asked) == 2_000_000 - (1 + models) * 100_000
