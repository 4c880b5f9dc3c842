"""Actions ask before they act, where somebody can answer; else they need --yes."""

import json
import sys

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.cli.operator import confirm
from support.door import Door


class _Terminal:
    """Says that it is one."""

    def __init__(self, inner):
        self._inner = inner

    def isatty(self):
        return True

    def __getattr__(self, name):
        return getattr(self._inner, name)


class _Sys:
    """`sys` with streams that are terminals."""

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
    """Exit 2 with a sentence that has the consequence, and nothing is done."""
    said = _run("run", "stop", run, code=2).stderr
    assert "this needs --yes" in said
    assert "ends for good" in said
    assert _state(door, run) == "running"
    error = json.loads(_run("run", "stop", run, "--json", code=2).stdout)["error"]
    assert error["exit_code"] == 2


def test_on_a_terminal_the_consequence_is_asked_about(door, run, monkeypatch):
    """No is exit 1 and nothing done; yes does it."""
    monkeypatch.setattr(confirm, "sys", _Sys())
    asked = _run("run", "stop", run, code=1, answer="n\n").stderr
    assert asked.index("ends for good") < asked.index("Continue?")
    assert "Nothing was done." in asked
    assert _state(door, run) == "running"
    assert _run("run", "stop", run, answer="y\n").stdout.startswith(f"Run {run} is stopped")
    assert _state(door, run) == "stopped"


def test_json_on_a_terminal_asks_beside_the_document(door, run, monkeypatch):
    """Standard output holds the document alone."""
    monkeypatch.setattr(confirm, "sys", _Sys())
    done = json.loads(_run("run", "pause", run, "--json", answer="y\n").stdout)
    assert (done["state"], done["changed"]) == ("paused", True)


def test_what_is_so_already_is_not_asked_about(door, run):
    """A script may say it again."""
    _run("run", "pause", run, "--yes")
    assert json.loads(_run("run", "pause", run, "--json").stdout)["changed"] is False


def test_preview_does_nothing_even_with_yes(door, run):
    """Whoever gives both wants to be careful."""
    said = _run("run", "stop", run, "--preview", "--yes").stdout
    assert "ends for good" in said
    assert "is stopped" not in said
    assert _state(door, run) == "running"


def test_round_that_is_over_is_left_alone(door, run):
    """What was agreed to about round 7 does not happen to another."""
    said = _run("round", "abort", run, "--round", "7", "--yes").stdout
    assert "Round 7 is over" in said
    assert "nothing changes" in said


def test_same_request_is_done_once(door, run):
    """However often it is repeated."""
    name = ("--request", "maintenance-1", "--yes", "--json")
    assert json.loads(_run("run", "pause", run, *name).stdout)["changed"] is True
    door.ask("POST", f"/runs/{run}/resume")
    _run("run", "pause", run, *name)
    assert _state(door, run) == "running"


def test_removing_asks_too(door, monkeypatch):
    """Users, API tokens and invitations have no preview, but words."""
    monkeypatch.setenv("FEDLOOM_DIR", str(door.directory))
    for words in (
        ("user", "remove", "ann"),
        ("api-token", "revoke", "x"),
        ("token", "cancel", "x"),
    ):
        assert "this needs --yes" in _run(*words, code=2).stderr


@pytest.mark.parametrize("label", ["site", "=north", "-"])
def test_label_that_is_none_is_refused(door, monkeypatch, label):
    """With how one is written."""
    monkeypatch.setenv("FEDLOOM_DIR", str(door.directory))
    assert "LABEL=VALUE" in _run("client", "label", "ward-1", "--", label, code=2).stderr


def test_labels_are_set_and_taken_away(door, monkeypatch):
    """Any name without `=`: with digits, capitals, an x."""
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
