"""Specifications with values that cannot be stored, shown or resumed."""

import json

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.planning.spec import parse
from support.door import SPEC, Door, write_model

NINES = "9" * 400


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    """A server with a model."""
    path = tmp_path_factory.mktemp("plain")
    with Door(path / "state") as door:
        door.digest = door.put_model(write_model(path / "m.safetensors"))
        yield door


@pytest.mark.parametrize(
    "settings",
    [
        '"config": {"a": NaN}',
        '"config": {"a": 1e999}',
        f'"config": {{"a": {NINES}}}',
        f'"rounds": {NINES}',
        '"rounds": 0',
        f'"rounds": {2**62}',
        f'"seed": {2**64}',
        f'"train": {{"epochs": 1, "learning_rate": {NINES}}}',
        '"train": {"epochs": "1", "learning_rate": 0.1}',
        '"config": {"a": "\\ud800"}',
        '"config": {"\\ud800": 1}',
        '"\\ud800": 1',
        '"strategy": {"name": "\\ud800"}',
        f'"config": {{"a": {"[" * 500}{"]" * 500}}}',
        f'"config": {{"a": "{"x" * 200_000}"}}',
        '"cohort": {"goal": [2]}',
    ],
)
def test_values_that_cannot_be_stored_and_shown_are_refused(door, settings):
    """With the reason, before anything is stored; in the form too."""
    known = json.dumps(SPEC)[:-1]
    for path, more in (("/runs", f', "model": "{door.digest}"'), ("/runs/describe", "")):
        text = f'{{"spec": {known}, {settings}}}{more}}}'
        status, answer = door.ask(
            "POST", path, body=text.encode(), headers={"Content-Type": "application/json"}
        )
        assert (status, answer["error"]["kind"]) == (422, "usage"), answer
    assert door.ask("GET", "/runs") == (200, {"runs": []})


def test_tables_that_contain_themselves_are_refused():
    """Python objects can."""
    table = {}
    table["a"] = table
    with pytest.raises(UsageError, match="fewer levels of nested tables"):
        parse({**SPEC, "config": table})


@pytest.mark.long
def test_a_run_that_cannot_start_does_not_affect_others(tmp_path, monkeypatch):
    """It fails with a reason, and the server starts again."""
    from fedloom.protocol import task_message

    with Door(tmp_path / "state", plaintext=True) as door:
        good = door.submit(tmp_path, name="good")
        page = door.connect()
        page.request("GET", f"/runs/{good}", headers={"Accept": "text/html"})
        assert page.getresponse().status == 200
        page.close()
        monkeypatch.setattr(task_message, "_scalar_message", lambda value: 1 / value)
        spec = {**SPEC, "name": "bad", "config": {"zero": 0}}
        assert door.ask("POST", "/runs", {"spec": spec, "model": door.ask(
            "GET", "/models")[1]["models"][0]["digest"]})[0] == 500  # fmt: skip
        bad = next(r for r in door.ask("GET", "/runs")[1]["runs"] if r["name"] == "bad")
        assert (bad["state"], "division" in bad["reason"]) == ("failed", True)
        door.contexts.ledger.set_run_state(bad["id"], "running", "", ended=False)
    with Door(tmp_path / "state", plaintext=True) as door:
        door.call_async(door.runs.start)
        states = {r["name"]: r["state"] for r in door.ask("GET", "/runs")[1]["runs"]}
        assert states == {"good": "running", "bad": "failed"}
