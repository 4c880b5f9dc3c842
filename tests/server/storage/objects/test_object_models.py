"""Models in an object store: durable before their row, cached by digest, found by rows alone."""

import os
import time

import numpy as np
import pytest

from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.tensors.container import write_file
from fedloom.server.storage.objects.interface import DamagedObjectError, MissingObjectError
from fedloom.server.storage.objects.upkeep import sweep

NONE = "f" * 64


def model(seed, size=5000):
    return {"w": np.random.default_rng(seed).normal(size=size).astype(np.float32)}


@pytest.fixture
def machine(machines, part_bytes):
    return machines.new()


def test_another_machine_has_the_same_bytes(machines, machine):
    """Saved, or added from a file; in parts."""
    saved = machine.models.save(model(1), {})
    source = machines.directory / "source.safetensors"
    digest = write_file(source, model(2))
    assert machine.models.add(source) == digest
    before = machine.models.path(saved).read_bytes()
    other = machines.new()
    assert other.models.size(saved) == len(before)
    np.testing.assert_array_equal(other.models.params(saved)["w"], model(1)["w"])
    assert other.models.local(saved).read_bytes() == before
    assert other.models.manifest(digest).specs["w"].shape == (5000,)
    assert len(machines.names()) == 2 * -(-len(before) // 1000)


def test_a_model_is_put_once(machines, machine):
    """Its digest is its content."""
    machine.models.save(model(1), {})
    before = machines.names()
    machine.models.save(model(1), {})
    assert machines.names() == before
    machines.new().models.save(model(1), {})
    assert machines.names() == before


def test_only_a_row_makes_a_model_exist(machines, machine, monkeypatch):
    """An object without one, as after a kill, does not count, and is swept when it is old."""
    add = machine.ledger.add_model_object
    with monkeypatch.context() as patch:
        patch.setattr(machine.ledger, "add_model_object", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            machine.models.save(model(1), {})
    orphans = machines.names()
    assert orphans
    digest = orphans[0].split("/")[1].split("-")[0]
    assert machine.models.find(digest) == []
    with pytest.raises(IntegrityError, match="is missing in"):
        machines.new().models.local(digest)
    machine = machines.last
    assert add.__name__ == "add_model_object"
    machine.models.save(model(1), {})
    assert sweep(machine.remote) == 0
    assert sweep(machine.remote, -60.0) == len(orphans)
    machine.deleted()
    assert machines.names() == sorted(set(machines.names()) - set(orphans))
    np.testing.assert_array_equal(machines.new().models.params(digest)["w"], model(1)["w"])


def test_a_sweep_leaves_a_model_that_is_being_put(machines, machine, monkeypatch):
    """However long that takes: its row is written at the end."""
    swept, put = [], machines.objects.put

    def put_and_sweep(name, data):
        put(name, data)
        swept.append(sweep(machine.remote, -60.0))

    monkeypatch.setattr(machines.objects, "put", put_and_sweep)
    digest = machine.models.save(model(1), {})
    machine.deleted()
    assert set(swept) == {0}
    np.testing.assert_array_equal(machines.new().models.params(digest)["w"], model(1)["w"])


def test_models_are_found_by_their_rows(machines, machine):
    a, b = machine.models.save(model(1), {}), machine.models.save(model(2), {})
    models = machines.new().models
    assert models.find(a[:8]) == [a]
    assert models.kept([a, b, NONE]) == {a, b}
    models.require([a, b])
    with pytest.raises(IntegrityError, match=NONE[:12]):
        models.require([a, NONE])
    assert models.size(NONE) is None
    assert models.hold(a)
    assert not models.hold(NONE)


def test_a_discarded_model_is_gone_and_a_young_or_held_one_stays(machines, machine):
    digest = machine.models.save(model(1), {})
    assert not machine.models.discard(digest, 600.0)
    assert machine.models.hold(digest)
    assert not machine.models.discard(digest, 600.0)
    machine.models.local(digest)
    assert machine.models.discard(digest, 0.0)
    machine.deleted()
    assert machines.names() == []
    assert not machine.models.path(digest).exists()
    assert machine.models.discard(digest, 600.0)  # again
    machine.models.save(model(1), {})  # and anew
    machines.new().models.local(digest)


@pytest.mark.parametrize("damage", [lambda d: d[:-1] + b"x", lambda d: d[:-1], lambda d: d + b"x"])
def test_a_damaged_model_is_detected(machines, machine, damage):
    """By its digest; nothing of it stays in the cache."""
    digest = machine.models.save(model(1), {})
    name = machines.names()[3]
    machines.objects.put(name, damage(machines.objects.get(name)))
    other = machines.new().models
    with pytest.raises(DamagedObjectError):
        other.local(digest)
    assert [*other.path(digest).parent.iterdir()] == []


def test_a_lost_object_is_named(machines, machine):
    digest = machine.models.save(model(1), {})
    machines.objects.delete(machines.names()[:1])
    with pytest.raises(MissingObjectError, match=digest):
        machines.new().models.local(digest)


def test_the_cache_is_bounded_and_what_it_dropped_is_fetched(machine):
    """The least recently used first; what may be about to be read stays."""
    digests = [machine.models.save(model(seed), {}) for seed in range(4)]
    files = [machine.models.path(digest) for digest in digests]
    size = files[0].stat().st_size
    for age, file in enumerate(reversed(files)):
        os.utime(file, (1e9, time.time() - 1000 * (age + 1)))
    machine.models.local(digests[0])  # used now
    machine.models.trim(2 * size)
    assert [file.exists() for file in files] == [True, False, False, True]
    machine.models.trim(0)
    assert [file.exists() for file in files] == [True, False, False, False]
    for digest in digests:
        assert machine.models.local(digest).exists()
