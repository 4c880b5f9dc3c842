"""`fedloom run submit --check` against a real server: what it prints, and its exit codes."""

import json
import time

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from support.door import Door, write_model

RUN = """name = "digits"
[cohort]
goal = {goal}
quorum = 1
[train]
epochs = 1
learning_rate = 0.1
"""


@pytest.fixture
def door(tmp_path, monkeypatch):
    """A server with three clients; the certificate of one has ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLOOM_DIR", str(tmp_path / "state"))
    write_model(tmp_path / "init.safetensors")
    with Door(tmp_path / "state") as door:
        for name, until in (("oak", 4e9), ("elm", 4e9), ("ash", time.time() - 60)):
            door.contexts.ledger.add_token(name, "hash", name, 4e9)
            door.contexts.ledger.enrol(name, f"serial-{name}", until)
        yield door


@pytest.fixture
def check(door, tmp_path):
    """Checks a run of a goal; returns the exit code and the output. Nothing may start."""

    def checked(goal, *more, model="init.safetensors", settings=""):
        (tmp_path / "run.toml").write_text(settings + RUN.format(goal=goal))
        words = ("run", "submit", "run.toml", "--model", model, "--check", *more)
        result = CliRunner(env={"COLUMNS": "200"}).invoke(main, words)
        assert door.ask("GET", "/runs")[1]["runs"] == []
        assert door.ask("GET", "/models")[1]["models"] == []
        return result.exit_code, result.output

    return checked


def test_a_run_that_all_clients_can_do_passes(door, check):
    """With remarks on what is not known; the model is not uploaded."""
    door.contexts.ledger.revoke("ash")
    code, text = check(2)
    assert (code, text.splitlines()) == (0, [
        "2 of 2 clients can take part.",
        "  2 have sent no update yet, so it is not known which model they train: elm, oak",
        "  2 are offline now: elm, oak",
    ])  # fmt: skip


def test_what_keeps_some_out_is_a_warning(check):
    """The clients are named; enough are left, so the code is 0."""
    code, text = check(2)
    assert code == 0
    assert text.splitlines()[0] == "2 of 3 clients can take part: 1 has an expired certificate."
    assert text.splitlines()[1].endswith(": ash")


def test_too_few_clients_exit_with_1(door, check):
    """Because of the goal, and because of what an operator holds."""
    assert check(3)[0] == 1
    door.ask("POST", "/clients/oak/quarantine", {})
    code, text = check(2)
    assert (code, text.splitlines()[0].startswith("1 of 3 clients can take part")) == (1, True)
    assert "oak" in text
    code, text = check(2, "--json")
    assert (code, json.loads(text)["is_enough"], json.loads(text)["able"]) == (1, False, 1)


def test_settings_and_models_that_are_wrong_exit_with_2(check):
    """Before anything is compared, as a submission refuses them."""
    code, text = check(2, settings='strategy.name = "nosuch"\n')
    assert (code, "nosuch" in text) == (2, True)
    code, text = check(2, model="nosuch.safetensors")
    assert (code, "nosuch.safetensors" in text) == (2, True)
    code, text = check(2, model="abcd1234")
    assert (code, "abcd1234" in text) == (2, True)
