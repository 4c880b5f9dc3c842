"""The check of a new run against the clients, over the API: what the ledger knows of them."""

import time

import numpy as np
import pytest

from fedloom.client import save_file
from fedloom.server.client_failures import ClientRules
from fedloom.server.ledger.tables import clients, cohorts, rounds
from support.door import SPEC, Door, write_model


def enrol(door, *names, until=4e9):
    ledger = door.contexts.ledger
    for name in names:
        ledger.add_token(name, "hash", name, 4e9)
        ledger.enrol(name, f"serial-{name}", until)


@pytest.fixture
def door(tmp_path):
    """A server with a run, and clients that have sent updates for its model."""
    with Door(tmp_path / "state") as door:
        enrol(door, "one", "two", "three", "new")
        enrol(door, "ended", until=time.time() - 60)
        digest = door.contexts.models.add(write_model(tmp_path / "m.safetensors"))
        door.run = door.ask("POST", "/runs", {"spec": SPEC, "model": digest})[1]["id"]
        door.digest = digest
        yield door


def took_part(door, number, phases):
    """Store the parts of clients in a round."""
    ledger = door.contexts.ledger
    rows = [
        {"run": door.run, "round": number, "client": name, "phase": phase, "reason": reason,
         "offered_at": 1000.0 * number}
        for name, (phase, reason) in phases.items()
    ]  # fmt: skip
    opened = {"run": door.run, "number": number, "kind": "train", "state": "committed",
              "opened_at": 1.0, "deadline_at": 2.0, "model_in": door.digest}  # fmt: skip
    with ledger._write() as connection:
        connection.execute(rounds.insert(), [opened])
        connection.execute(cohorts.insert(), rows)


def check(door, spec=SPEC, **model):
    status, found = door.ask("POST", "/runs/check", {"spec": spec, **model})
    assert status == 200, found
    return found


def test_clients_are_compared_by_what_they_sent_last(door, tmp_path):
    """By a stored model, or by the shapes of one that is not stored; holds count first."""
    reported = dict.fromkeys(("one", "two", "three"), ("reported", ""))
    took_part(door, 100, reported)
    found = check(door, model=door.digest[:8])
    assert found["summary"] == "4 of 5 clients can take part: 1 has an expired certificate."
    assert (found["able"], found["online"], found["goal"]) == (4, 0, 2)
    assert [f["clients"] for f in found["remarks"] if "sent no update" in f["text"]] == [["new"]]
    save_file({"w": np.zeros(4, np.float32), "head": np.zeros(2)}, tmp_path / "h.safetensors")
    other = door.contexts.models.add(tmp_path / "h.safetensors")
    door.ask("POST", "/clients/two/quarantine", {"reason": "odd"})
    for model in ({"model": other}, {"tensors": {"w": [4], "head": [2]}}):
        found = check(door, **model)
        assert not found["is_enough"]
        assert [(f["text"], f["clients"]) for f in found["obstacles"]] == [
            ("2 lack the tensor head", ["one", "three"]),
            ("1 has an expired certificate", ["ended"]),
            ("1 is quarantined", ["two"]),
        ]


def test_the_last_part_decides(door):
    """A decline is a remark with its reason; an older part is not."""
    took_part(door, 100, {"one": ("declined", "on battery"), "two": ("declined", "at night")})
    took_part(door, 101, {"two": ("reported", ""), "three": ("declined", "on battery")})
    remarks = [f for f in check(door)["remarks"] if "declined" in f["text"]]
    assert [(f["text"], f["clients"]) for f in remarks] == [
        ("2 declined their last offer: on battery", ["one", "three"])
    ]


def test_only_runs_without_privacy_keep_failing_clients_out(tmp_path):
    """As their rounds do: a private run draws clients that cool off."""
    rules = ClientRules(failing_after=1, cool_off_s=600.0)
    with Door(tmp_path / "state", clients=rules) as door:
        enrol(door, "one", "two")
        door.call(door.contexts.cool_offs.failed, "one", {})
        private = {**SPEC, "privacy": {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-3}}
        assert [f["text"] for f in check(door)["obstacles"]] == ["1 cools off after failures"]
        assert check(door, spec=private)["obstacles"] == []


def test_wrong_requests_are_refused(door):
    """With the codes of the other routes; nothing starts."""
    runs = len(door.ask("GET", "/runs")[1]["runs"])
    for body, status in (
        ({"spec": {**SPEC, "rounds": 0}}, 422),
        ({"spec": SPEC, "model": "ffffffff"}, 404),
        ({"spec": SPEC, "model": door.digest, "tensors": {}}, 422),
        ({"spec": SPEC, "tensors": {"w": [-1]}}, 422),
        ({"spec": SPEC, "tensors": {"w": "x"}}, 422),
    ):
        assert door.ask("POST", "/runs/check", body)[0] == status, body
    assert len(door.ask("GET", "/runs")[1]["runs"]) == runs


def test_only_clients_of_the_runs_study_are_counted(door):
    """A run draws no others."""
    with door.contexts.ledger._write() as connection:
        connection.execute(clients.update().filter_by(name="two").values(study="north"))
    assert check(door)["total"] == 4
    found = check(door, {**SPEC, "study": "north"})
    assert (found["total"], found["able"], found["is_enough"]) == (1, 1, False)
