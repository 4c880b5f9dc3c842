"""A site is registered for another number of devices, and a device for none."""

import time

import pytest

from support.door import Door


@pytest.fixture
def door(tmp_path):
    """A server with a site of 50 devices, and a device."""
    with Door(tmp_path / "state") as door:
        for name, devices in (("north", 50), ("ward", 0)):
            ledger = door.contexts.ledger
            ledger.add_token(name, f"secret of {name}", name, time.time() + 600, devices=devices)
            ledger.enrol(name, f"serial of {name}", time.time() + 600)
            door.contexts.fleet.register_site(name, devices)
        yield door


def test_a_new_number_holds_at_once_and_after_a_restart(door):
    """In the ledger, in what the server offers, in the audit trail, and in the view."""
    assert door.ask("GET", "/clients/north")[1]["devices"] == 50
    status, done = door.ask("POST", "/clients/north/devices", {"devices": 20})
    assert (status, done["devices"], done["changed"]) == (200, 20, True)
    assert done["consequence"] == "north is registered for 20 devices."
    assert door.contexts.fleet.devices_of("north") == 20
    assert door.contexts.ledger.sites() == {"north": 20}
    entry = door.ask("GET", "/audit")[1]["entries"][0]
    assert (entry["action"], entry["detail"]) == ("client.devices", '{"devices":20}')
    assert not door.ask("POST", "/clients/north/devices", {"devices": 20})[1]["changed"]


@pytest.mark.parametrize(("name", "devices"), [("ward", 3), ("north", 0), ("nobody", 3)])
def test_a_device_does_not_become_a_site_nor_a_site_a_device(door, name, devices):
    """They are enrolled anew; the message says how."""
    status, said = door.ask("POST", f"/clients/{name}/devices", {"devices": devices})
    assert status in (400, 404, 409, 422), said
    assert name != "ward" or "token with --devices" in str(said)
    assert door.contexts.ledger.sites() == {"north": 50}
