"""Actions ask for confirmation on a terminal, and need --yes elsewhere."""

import json
import sys

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.cli.operator import confirm
from support.door import Door


class _Terminal:
    """A stream that claims to be a terminal."""

    def __init__(self, inner):
        self._inner = inner

    def isatty(self):
        return True

    def __getattr__(self, name):
        return getattr(self._inner, name)


class _Sys:
    """`sys` with terminals as streams."""

    @property
    def stdin(self):
        return _Terminal(sys.stdin)

    @property
    def stderr(self):
        return _Terminal(sys.stderr)


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    """A server without clients."""
    with Door(tmp_path_factory.mktemp("door") / "state") as door:
        yield door


@pytest.fixture
def run(door, tmp_path, monkeypatch):
    """A run that waits for clients."""
    monkeypatch.setenv("FEDLOOM_DIR", str(door.directory))
    return door.submit(tmp_path)


def _state(door, run):
    return door.ask("GET", f"/runs/{run}")[1]["state"]


def _run(*args, code=0, answer=None):
    result = CliRunner().invoke(main, args, input=answer)
    assert result.exit_code == code, result.output
    return result


def test_without_a_terminal_yes_is_needed(door, run):
    """Exit 2 with the consequence, and nothing is done."""
    said = _run("run", "stop", run, code=2).stderr
    assert "this needs --yes" in said
    assert "ends permanently" in said
    assert _state(door, run) == "running"
    error = json.loads(_run("run", "stop", run, "--json", code=2).stdout)["error"]
    assert error["exit_code"] == 2


def test_on_a_terminal_the_action_needs_confirmation(door, run, monkeypatch):
    """No is exit 1 and does nothing; yes acts."""
    monkeypatch.setattr(confirm, "sys", _Sys())
    asked = _run("run", "stop", run, code=1, answer="n\n").stderr
    assert asked.index("ends permanently") < asked.index("Continue?")
    assert "Nothing was done." in asked
    assert _state(door, run) == "running"
    assert _run("run", "stop", run, answer="y\n").stdout.startswith(f"Run {run} is stopped")
    assert _state(door, run) == "stopped"


def test_json_on_a_terminal_asks_on_stderr(door, run, monkeypatch):
    """Standard output holds only the document."""
    monkeypatch.setattr(confirm, "sys", _Sys())
    done = json.loads(_run("run", "pause", run, "--json", answer="y\n").stdout)
    assert (done["state"], done["changed"]) == ("paused", True)


def test_action_without_effect_needs_no_confirmation(door, run):
    """A script can repeat it."""
    _run("run", "pause", run, "--yes")
    assert json.loads(_run("run", "pause", run, "--json").stdout)["changed"] is False


def test_preview_does_nothing_even_with_yes(door, run):
    """--preview takes precedence over --yes."""
    said = _run("run", "stop", run, "--preview", "--yes").stdout
    assert "ends permanently" in said
    assert "is stopped" not in said
    assert _state(door, run) == "running"


def test_action_on_an_ended_round_does_nothing(door, run):
    """An action on round 7 is not applied to another round."""
    said = _run("round", "abort", run, "--round", "7", "--yes").stdout
    assert "Round 7 is over" in said
    assert "nothing changes" in said


def test_same_request_is_done_once(door, run):
    """Repeating an idempotency key does nothing."""
    name = ("--request", "maintenance-1", "--yes", "--json")
    assert json.loads(_run("run", "pause", run, *name).stdout)["changed"] is True
    door.ask("POST", f"/runs/{run}/resume")
    _run("run", "pause", run, *name)
    assert _state(door, run) == "running"


def test_removals_need_confirmation(door, monkeypatch):
    """Users, API tokens and enrolment tokens."""
    monkeypatch.setenv("FEDLOOM_DIR", str(door.directory))
    for words in (
        ("user", "remove", "ann"),
        ("api-token", "revoke", "x"),
        ("token", "cancel", "x"),
    ):
        assert "this needs --yes" in _run(*words, code=2).stderr


@pytest.mark.parametrize("label", ["site", "=north", "-"])
def test_invalid_labels_are_refused(door, monkeypatch, label):
    """The error shows the format."""
    monkeypatch.setenv("FEDLOOM_DIR", str(door.directory))
    assert "LABEL=VALUE" in _run("client", "label", "ward-1", "--", label, code=2).stderr


def test_labels_are_set_and_removed(door, monkeypatch):
    """Names may have digits and capitals."""
    monkeypatch.setenv("FEDLOOM_DIR", str(door.directory))
    ledger = door.contexts.ledger
    ledger.add_token("t1", b"hash", "ward-1", 2e9)
    ledger.enrol("t1", "serial", 2e9)
    words = ("client", "label", "ward-1")
    assert _run(*words, "Floor=2", "x0=1").stdout == "ward-1: Floor=2  x0=1\n"
    assert _run(*words, "x0-").stdout == "ward-1: Floor=2\n"
    assert "labels.A\tB" in _run(*words, "A\tB=1", code=2).stderr
    _run("client", "note", "ward-1", "camera")
    assert "camera" in _run("client", "show", "ward-1").stdout
