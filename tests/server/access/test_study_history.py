"""What came from another study: a client that moved, and a model that a namesake uploaded."""

import time

import pytest

from fedloom.server.ledger import tables
from support.door import SPEC, Door, write_model
from support.visitor import Visitor

CLIENT = "nomad"


@pytest.fixture
def door(tmp_path):
    with Door(tmp_path / "state", console="127.0.0.1:0") as door:
        yield door


def program(door, study):
    """A program that is limited to a study; all have one name."""
    wish = {"name": "ci", "scope": "operator", "studies": [study]}
    return Visitor(door.site, token=door.ask("POST", "/api-tokens", wish)[1]["token"])


def take_part(door, folder, study, phases):
    """Let the client take part in rounds of a run of a study, which end in these phases."""
    run, ledger = door.submit(folder, name=study, study=study), door.contexts.ledger
    plan = door.runs.get(run).round.plan
    for number, phase in enumerate(phases, 1):
        row = {**plan.row(time.time(), time.time() + 60), "number": number}
        ledger.open_round(row, [CLIENT])
        ledger.set_phase(run, number, CLIENT, phase, "secret of the run")
    return run


def test_a_client_that_moved_shows_nothing_of_its_former_study(door, tmp_path):
    """No counts, rates or tasks; and its own are not hidden behind those."""
    ledger = door.contexts.ledger
    ledger.add_token("t", "hash", CLIENT, 4e9, "onco")
    ledger.enrol("t", "serial", 4e9)
    door.ask("POST", f"/clients/{CLIENT}/study", {"study": "cardio"})
    own = take_part(door, tmp_path, "cardio", ["reported"])
    take_part(door, tmp_path, "onco", ["failed", "declined", "refused", "reported"])

    visitor = program(door, "cardio")
    seen = visitor.ask("GET", f"/v1/clients/{CLIENT}").document
    counts = ("asked", "counted", "failed", "declined", "refused", "success_rate")
    assert [seen[name] for name in counts] == [1, 1, 0, 0, 0, 1.0]
    parts = visitor.ask("GET", f"/v1/clients/{CLIENT}/parts?limit=1").document
    assert [part["run"] for part in parts["parts"]] == [own]

    whole = door.ask("GET", f"/clients/{CLIENT}")[1]
    assert [whole[name] for name in counts] == [5, 2, 1, 1, 1, 0.5]


def test_failures_of_a_former_study_do_not_count(door, tmp_path):
    """A client that fails there is not shown as failing by its new study, and gets its offers."""
    ledger = door.contexts.ledger
    ledger.add_token("t", "hash", CLIENT, 4e9, "onco")
    ledger.enrol("t", "serial", 4e9)
    run = take_part(door, tmp_path, "onco", ["failed"])
    failed = {"failures": 9, "failed_at": time.time(), "failed_run": run, "failed_round": 1}
    with ledger._engine.begin() as connection:
        row = tables.clients.update().where(tables.clients.c.name == CLIENT)
        connection.execute(row.values({**failed, "failed_why": "secret"}))
    door.ask("POST", f"/clients/{CLIENT}/study", {"study": "onco"})  # no change
    assert door.ask("GET", f"/clients/{CLIENT}")[1]["failures"] == 9
    door.ask("POST", f"/clients/{CLIENT}/study", {"study": "cardio"})
    seen = program(door, "cardio").ask("GET", f"/v1/clients/{CLIENT}").document
    assert (seen["failures"], seen["state"], seen["cools_until"]) == (0, "offline", None)
    assert seen["last_error"] is None
    assert door.ask("GET", f"/clients/{CLIENT}")[1]["last_error"]["text"] == "secret"


def test_a_model_is_not_found_that_a_namesake_of_another_study_uploaded(door, tmp_path):
    """Names of API tokens are free: two teams may both have a `ci`."""
    body = write_model(tmp_path / "model.safetensors", 4, 3.0).read_bytes()
    digest = program(door, "onco").ask("PUT", "/v1/models", body=body).document["digest"]

    def submitted(visitor):
        document = {"spec": {**SPEC, "study": "cardio"}, "model": digest}
        return visitor.ask("POST", "/v1/runs", document=document).status

    cardio = program(door, "cardio")
    assert submitted(cardio) == 404
    assert cardio.ask("PUT", "/v1/models", body=body).status == 201
    assert submitted(cardio) == 201
