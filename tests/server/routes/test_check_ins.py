"""What operators see of devices that check in: who is expected, due soon, or missing."""

import time

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.server.ledger.directory import CheckInCounts, Seen
from support.door import SPEC, Door, write_model

EVERY_S, HOLD_S = 7200.0, 20.0
LATE_S = 1.75 * EVERY_S + HOLD_S
DUE_S = {
    "comes": 3600.0, "soon": 30.0, "late": -2 * EVERY_S + 1800.0, "missing": -LATE_S - 60.0,
}  # fmt: skip


@pytest.fixture
def door(tmp_path):
    """Five devices: one holds a stream, the others were told when to come."""
    with Door(tmp_path / "state") as door:
        ledger, now = door.contexts.ledger, time.time()
        for name in (*DUE_S, "stream"):
            ledger.add_token(name, "hash", name, 4e9)
            ledger.enrol(name, f"serial-{name}", 4e9)
        ledger.saw({name: Seen(at=now, due_at=now + s) for name, s in DUE_S.items()})
        ledger.saw({"stream": Seen(at=now, due_at=0.0)})
        counts = door.contexts.check_in_counts
        counts.update(ledger.check_ins(now - LATE_S, now + 60.0))
        yield door


def listed(door, state):
    status, found = door.ask("GET", f"/clients?state={state}")
    assert status == 200, found
    return {each["name"] for each in found["clients"]}


def test_a_device_that_comes_when_told_is_due_and_not_offline(door):
    """Late is not missing: after an outage it waits up to the time that it was told once more."""
    assert listed(door, "due") == {"comes", "soon", "late"}
    assert listed(door, "offline") == {"missing", "stream"}
    _, found = door.ask("GET", "/clients/comes")
    assert (found["state"], found["online"]) == ("due", False)
    assert found["due_at"] == pytest.approx(time.time() + 3600.0, abs=60.0)
    for name in ("missing", "stream"):
        _, found = door.ask("GET", f"/clients/{name}")
        assert (found["state"], found["due_at"]) == ("offline", None)


def test_the_server_and_the_overview_count_them(door):
    expected = {"expected": 3, "waiting": 0, "soon": 2, "missing": 1, "every_s": EVERY_S}
    assert door.ask("GET", "/server")[1]["check_ins"] == expected
    assert door.ask("GET", "/overview")[1]["check_ins"] == expected
    door.contexts.check_in_counts.clear()
    assert door.ask("GET", "/server")[1]["check_ins"] is None


def test_revoked_devices_and_those_of_a_study_are_told_apart(door):
    ledger, now = door.contexts.ledger, time.time()
    ledger.set_study("comes", "wards")
    ledger.revoke("soon")
    found = ledger.check_ins(now - LATE_S, now + 60.0)
    assert found == {"wards": CheckInCounts(1, 0, 0), "": CheckInCounts(1, 1, 1)}


def test_a_stream_clears_what_a_check_in_has_left(door):
    """A device whose settings were changed is no longer expected."""
    ledger = door.contexts.ledger
    ledger.saw({"comes": Seen(at=time.time(), version="1", due_at=0.0)})
    assert listed(door, "offline") == {"missing", "stream", "comes"}
    ledger.saw({"soon": Seen(at=time.time())})  # a disconnect, or a check-in that has begun
    assert listed(door, "due") == {"soon", "late"}


def test_a_run_that_draws_none_of_them_says_so_before_it_begins(door, tmp_path):
    """Those that are due count as online for other runs."""
    digest = door.contexts.models.add(write_model(tmp_path / "m.safetensors"))
    found = door.ask("POST", "/runs/check", {"spec": SPEC, "model": digest})[1]
    assert (found["able"], found["online"]) == (5, 3)
    private = SPEC | {
        "privacy": {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5, "sampling": "poisson",
                    "population": 100},
    }  # fmt: skip
    status, found = door.ask("POST", "/runs/check", {"spec": private, "model": digest})
    assert status == 200, found
    texts = [each["text"] for each in found["obstacles"]]
    assert texts == ["4 check in, and this run draws none that does (docs/check-in.md)"]
    assert found["able"] == 1


def test_the_share_that_was_asked_is_shown_by_label(door):
    """Over the API and by the command; `-` for clients without the label."""
    for name in ("comes", "soon", "late"):
        door.contexts.ledger.set_labels(name, {"region": "north"})
    status, found = door.ask("GET", "/client-shares?label=region")
    assert status == 200, found
    shares = [(each["value"], each["clients"], each["asked"]) for each in found["shares"]]
    assert shares == [("north", 3, 0), (None, 2, 0)]
    assert (found["clients"], found["asked"]) == (5, 0)
    assert door.ask("GET", "/client-shares?label=region&run=none")[0] == 404
    shown = CliRunner().invoke(main, ["client", "shares", "region", "--dir", str(door.directory)])
    assert shown.exit_code == 0, shown.output
    lines = [line.split() for line in shown.output.splitlines()]
    assert ["north", "3", "60.0%", "0", "-", "-"] in lines
    assert ["-", "2", "40.0%", "0", "-", "-"] in lines
