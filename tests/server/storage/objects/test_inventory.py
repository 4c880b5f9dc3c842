"""Which objects that the ledger names are in the store, also while a server changes both."""

import secrets

import pytest

from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.storage.objects import inventory
from fedloom.server.storage.objects.inventory import take_inventory
from fedloom.server.storage.objects.upkeep import MOST_TOLD, tell_lost

BODY = secrets.token_bytes(2500)


@pytest.fixture
def machine(machines, part_bytes, monkeypatch, tmp_path):
    """With a model of one part, and a body of three."""
    made = machines.new()
    monkeypatch.setattr(inventory, "part_names", lambda name, _: [f"{name}.0"])
    path = made.models.temporary()
    path.write_bytes(b"model")
    made.models.adopt(path, "ab" * 32)
    header = fleet_pb2.UpdateHeader(client="alice", size_bytes=len(BODY))
    file = made.spool.open("run-abc", 1, header)
    file.begin()
    file.append(BODY)
    file.sync()
    file.close()
    return made


def test_nothing_is_lost(machine):
    assert take_inventory(machine.ledger, machine.remote.objects) == inventory.Inventory(4, {})


def test_lost_objects_are_told_by_name(machine, caplog):
    """A model, and a part of a body."""
    [model] = machine.ledger.model_object_names()
    [(file, body)] = machine.ledger.body_objects()
    lost = {f"{model}.0": f"the model {'ab' * 6}", body.names[1]: f"the update {file}"}
    machine.remote.objects.delete([*lost])
    assert take_inventory(machine.ledger, machine.remote.objects) == inventory.Inventory(4, lost)
    tell_lost(machine.remote)
    for name, what in lost.items():
        assert f"the object {name} of {what} is missing in" in caplog.text


def test_a_body_that_is_deleted_meanwhile_is_not_lost(machine):
    """Its row was deleted before it."""
    [(_, body)] = machine.ledger.body_objects()
    objects = machine.remote.objects

    class Deleting:
        """Its round ends while it is listed."""

        def list(self, folder):
            if machine.ledger.body_objects():
                machine.ledger.forget_bodies([body.object])
                objects.delete(body.names)
            return objects.list(folder)

        get = objects.get

    assert take_inventory(machine.ledger, Deleting()).lost == {}


def test_an_object_that_a_listing_lacks_is_asked_for(machine):
    """A listing may lag."""

    class Lagging:
        def list(self, folder):
            return iter(())

        get = machine.remote.objects.get

    assert take_inventory(machine.ledger, Lagging()).lost == {}


def test_many_lost_objects_are_counted(machine, monkeypatch, caplog):
    many = {f"updates/{number:03d}": "the update x" for number in range(MOST_TOLD + 5)}
    lost = inventory.Inventory(99, many)
    monkeypatch.setattr("fedloom.server.storage.objects.upkeep.take_inventory", lambda *_: lost)
    tell_lost(machine.remote)
    assert caplog.text.count("is missing in") == MOST_TOLD
    assert f"{MOST_TOLD + 5} objects are missing: `fedloom store check --objects`" in caplog.text
