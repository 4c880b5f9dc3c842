"""The audit trail for its readers: pages, and verification from its file."""

import json
import sqlite3
import time

import pytest
from click.testing import CliRunner

from fedloom.cli.common import output
from fedloom.cli.main import main
from fedloom.server import config
from fedloom.server.ledger import Ledger
from fedloom.server.ledger.audit_trail import HEAD_FILE
from support.visitor import Visitor


def _run(*args, code=0):
    result = CliRunner().invoke(main, args)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def state(tmp_path):
    """A stopped server's state directory, with ten entries."""
    config.write(tmp_path, config.ServerConfig())
    ledger = Ledger.in_directory(tmp_path)
    for number in range(1, 11):
        ledger.trail.append("ann", "socket", "run.pause", f"run-{number}", {})
    ledger.close()
    return tmp_path


def _tamper(state, statement):
    database = sqlite3.connect(state / "ledger.sqlite")
    with database:
        database.execute(statement)
    database.close()


def _verify(state, *args, code=0):
    text = _run("audit", "verify", "--dir", str(state), *args, "--json", code=code).stdout
    return json.loads(text)


def test_whole_trail_verifies_without_a_server(state):
    """It prints the head, which the server has also stored beside the ledger."""
    found = _verify(state)
    assert (found["intact"], found["entries"], found["broken"]) == (True, 10, None)
    kept = (state / HEAD_FILE).read_text().strip()
    assert kept == f"10:{found['head']['hash']}"
    assert "10 entries, all intact" in _run("audit", "verify", "--dir", str(state)).stdout


def test_trail_verifies_from_the_anchor_after_old_entries_were_removed(state):
    """It prints how many, and since when the others are kept."""
    ledger = Ledger.in_directory(state)
    ledger.trail.prune(time.time() + 1.0)
    ledger.trail.append("ann", "socket", "run.stop", "run-1", {})
    ledger.close()
    found = _verify(state)
    assert (found["intact"], found["entries"], found["pruned"]["entries"]) == (True, 2, 10)
    text = " ".join(_run("audit", "verify", "--dir", str(state)).stdout.split())
    assert "2 entries, all intact, since " in text
    assert f"Entries 1 to 10, until {output.moment(found['pruned']['until'])}, were removed" in text
    assert f"10:{found['pruned']['hash']}" in text
    _tamper(state, "DELETE FROM audit WHERE id = 11")
    assert _verify(state, code=4)["broken"]["id"] == 1


@pytest.mark.parametrize(
    ("statement", "entry"),
    [
        ("UPDATE audit SET who = 'eve' WHERE id = 4", 4),
        ("DELETE FROM audit WHERE id = 1", 1),
        ("DELETE FROM audit WHERE id = 6", 6),
        ("DELETE FROM audit WHERE id > 8", 9),
        ("DELETE FROM audit", 1),
        ("UPDATE audit SET detail = x'ff' WHERE id = 3", 3),
        ("UPDATE audit SET id = 20 - id WHERE id = 9 OR id = 11", 9),
    ],
)
def test_the_first_wrong_entry_is_named(state, statement, entry):
    """Edited, removed, cut or moved entries: exit code 4."""
    _tamper(state, statement)
    found = _verify(state, code=4)
    assert (found["intact"], found["broken"]["id"]) == (False, entry)
    said = _run("audit", "verify", "--dir", str(state), code=4).stderr
    assert f"breaks at entry {entry}:" in said


def test_head_kept_elsewhere_detects_a_rewritten_trail(state, tmp_path):
    """A writer of the ledger can also rewrite the head file beside it."""
    head = (state / HEAD_FILE).read_text().strip()
    (state / "heads.txt").write_text(f"{head}\n\n")
    (state / "ledger.sqlite").unlink()
    (state / HEAD_FILE).unlink()
    ledger = Ledger.in_directory(state)
    for number in range(1, 13):
        ledger.trail.append("eve", "socket", "run.pause", f"run-{number}", {})
    ledger.close()
    assert _verify(state)["intact"] is True
    for anchor in (head, f"@{state / 'heads.txt'}"):
        assert _verify(state, "--anchor", anchor, code=4)["broken"]["id"] == 10
    _run("audit", "verify", "--dir", str(state), "--anchor", "nonsense", code=2)
    _run("audit", "verify", "--dir", str(tmp_path / "nowhere"), code=2)


def test_server_does_not_overwrite_the_evidence(state):
    """The head file of a cut trail does not change with later entries."""
    before = (state / HEAD_FILE).read_text()
    _tamper(state, "DELETE FROM audit WHERE id > 5")
    ledger = Ledger.in_directory(state)
    assert ledger.trail.stop_keeping()
    for _ in range(8):
        ledger.trail.append("ann", "socket", "run.stop", "run", {})
    ledger.close()
    assert (state / HEAD_FILE).read_text() == before
    assert _verify(state, code=4)["broken"]["id"] == 10


def test_running_server_does_not_overwrite_the_evidence(state, caplog):
    """A writer of the database cannot hide missing entries behind the next entry."""
    ledger = Ledger.in_directory(state)
    assert not ledger.trail.stop_keeping()
    ledger.trail.append("ann", "socket", "run.stop", "run", {})
    before = (state / HEAD_FILE).read_text()
    _tamper(state, "DELETE FROM audit WHERE id > 6")
    for _ in range(8):
        ledger.trail.append("ann", "socket", "run.stop", "run", {})
    ledger.close()
    assert caplog.text.count("lacks entry") == 1
    assert (state / HEAD_FILE).read_text() == before
    assert _verify(state, code=4)["intact"] is False


@pytest.mark.parametrize("name", ["ledger.sqlite", HEAD_FILE])
def test_damaged_ledger_or_head_fails_verification(state, name):
    """Both are evidence when overwritten; the server starts with such a head file."""
    for left in state.glob("ledger.sqlite-*"):
        left.unlink()
    (state / name).write_bytes(b"\xffnonsense" * 1000)
    assert name in _run("audit", "verify", "--dir", str(state), code=4).stderr.replace(
        f"ledger of {state}", "ledger.sqlite"
    )
    if name == HEAD_FILE:
        ledger = Ledger.in_directory(state)
        assert ledger.trail.stop_keeping()
        ledger.close()


def test_trail_is_read_page_by_page(door, by_token):
    """Newest first, each entry once; filtered by who, what, whom and when."""
    trail = door.contexts.ledger.trail
    for number in range(25):
        trail.append("ann" if number % 2 else "bob", "token", "run.pause", f"run-{number}", {})
    trail.append("ann", "token", "runaway.x", "run-1", {})
    viewer, seen, before = by_token(), [], ""
    while True:
        page = viewer.ask("GET", f"/v1/audit?limit=10{before}").document
        seen += [entry["id"] for entry in page["entries"]]
        if page["next_before"] is None:
            break
        before = f"&before={page['next_before']}"
    assert seen == [*range(26, 0, -1)]
    assert page["head"]["id"] == 26
    for query, count in (
        ("who=bob", 13), ("action=run", 25), ("action=run.pause", 25), ("action=ru", 0),
        ("subject=run-1", 2), (f"since={time.time() + 9}", 0), (f"until={time.time() + 9}", 26),
        ("action=run&who=ann", 12), ("action=%25", 0),
    ):  # fmt: skip
        found = viewer.ask("GET", f"/v1/audit?{query}").document["entries"]
        assert len(found) == count, query


@pytest.mark.long
def test_failed_action_is_recorded(door):
    """An action that fails has two entries: its start and its failure."""
    door.ask("POST", "/users", {"name": "ann", "scope": "viewer", "password": "correct horse"})
    door.ask("POST", "/users/ann/scope", {"scope": "admin"})

    def broken(*_, **__):
        raise OSError("disk full")

    door.contexts.ledger.accounts.set_scope = broken
    assert door.ask("POST", "/users/ann/scope", {"scope": "viewer"})[0] == 500
    _, page = door.ask("GET", "/audit")
    last, begun, *_ = page["entries"]
    assert (last["action"], begun["action"]) == ("user.scope.failed", "user.scope")
    assert json.loads(last["detail"]) == {"error": "OSError"}
    assert [e["action"] for e in page["entries"]].count("user.scope.failed") == 1


def test_commands_list_entries_and_the_head(door, monkeypatch):
    """As a table, and as ID:HASH."""
    monkeypatch.setenv("FEDLOOM_DIR", str(door.directory))
    assert "No entry matches" in _run("audit", "list").stdout
    door.ask("POST", "/tokens", {"client": "ward-3"})
    listed = _run("audit", "list", "--action", "token", "--since", "2026-01-01").stdout
    assert "token.create" in listed
    assert "ward-3" in listed
    head = _run("audit", "head").stdout.strip()
    assert head == (door.directory / HEAD_FILE).read_text().strip()
    assert json.loads(_run("audit", "verify", "--json", "--anchor", head).stdout)["intact"]


@pytest.mark.long
def test_entries_hold_no_secret(door, add_user):
    ann = add_user()
    wish = {"name": "bob", "scope": "viewer", "password": "bobs own passphrase"}
    door.ask("POST", "/users", wish)
    _, made = door.ask("POST", "/api-tokens", {"name": "ci", "scope": "viewer"})
    _, token = door.ask("POST", "/tokens", {})
    Visitor(door.site).log_in("ann", "a wrong password")
    text = json.dumps(door.ask("GET", "/audit?limit=1000")[1])
    assert "login.fail" in text
    for hidden in (ann.session, "passphrase", "wrong password", made["token"], token["token"]):
        assert hidden not in text
