"""The audit trail records every change, and failures."""

import asyncio
import json
import logging
import socket
import time

import pytest
import sqlalchemy as sa

from fedloom.protocol.errors import Code, Refusal, UnavailableError
from fedloom.server.access import audit_log
from fedloom.server.ledger.access.tables import audit
from fedloom.server.ledger.audit_trail import Trail, first_break
from support.contexts import rows_of
from support.door import SPEC, write_model
from support.modules import like
from support.visitor import Visitor


def _entries(door):
    return rows_of(door.contexts.ledger, sa.select(audit).order_by(audit.c.id))


def _run(door, coroutine):
    return asyncio.run_coroutine_threadsafe(coroutine, door._loop).result(10)


@pytest.mark.long
def test_submitted_run_is_named_by_its_id(door, tmp_path):
    """Several runs may have its name."""
    run = door.submit(tmp_path)
    entry = _entries(door)[-1]
    assert (entry["action"], entry["subject"]) == ("run.submit", run)


def test_model_is_recorded_before_it_is_stored(door, tmp_path, monkeypatch):
    """A kill between the two leaves one entry too many, never one too few."""
    model = write_model(tmp_path / "m.safetensors").read_bytes()

    def refuse(*_):
        raise OSError("no more room")

    monkeypatch.setattr(door.contexts.models, "adopt", refuse)
    assert door.ask("PUT", "/models", body=model)[0] == 503
    assert [e["action"] for e in _entries(door)] == ["model.add", "model.add.failed"]
    monkeypatch.undo()
    monkeypatch.setattr(door.contexts.ledger.trail, "append_all", refuse)
    assert door.ask("PUT", "/models", body=model)[0] == 503
    assert not list((door.directory / "models").iterdir())


def test_failure_after_the_record_is_recorded(door):
    """Such as a client that is revoked while its certificate is issued."""

    async def renew():
        async with door.contexts.audit_log.around(
            "oak", "certificate", "client.renew", "oak", {"serial": "1"}
        ):
            raise Refusal(Code.REVOKED, "The client was revoked.")

    with pytest.raises(Refusal):
        _run(door, renew())
    assert [e["action"] for e in _entries(door)] == ["client.renew", "client.renew.failed"]
    assert json.loads(_entries(door)[-1]["detail"]) == {"error": "The client was revoked."}


def test_unauthenticated_peers_do_not_fill_the_trail(door, monkeypatch):
    """Their entries are limited per hour and action."""
    monkeypatch.setattr(audit_log, "LIMIT_PER_HOUR", 3)
    monkeypatch.setattr(audit_log, "time", like(time, time=lambda: 1_000_000.0))

    async def knock():
        trail = door.contexts.audit_log
        for _ in range(9):
            trail.note("", "enrolment", "client.enrol.refused", "", {})
            await trail.store()
        trail.note("ann", "password", "login.fail", "ann", {})
        await trail.store()

    _run(door, knock())
    refused = [e for e in _entries(door) if e["action"] == "client.enrol.refused"]
    assert [json.loads(e["detail"]) for e in refused] == [{}, {}, {"last_of_this_hour": True}]
    assert _entries(door)[-1]["action"] == "login.fail"


def test_no_attempt_is_left_uncounted_while_the_ledger_refuses(door, monkeypatch):
    """Entries that could not be written hold their numbers until they are."""
    trail = door.contexts.ledger.trail
    write = trail.append_all

    def refuse(entries):
        raise UnavailableError("The audit trail is busy.")

    async def knock():
        noted = door.contexts.audit_log
        for append_all in (refuse, refuse, write):
            monkeypatch.setattr(trail, "append_all", append_all)
            for _ in range(25):
                noted.note("", "enrolment", "client.enrol.refused", "", {})
            await noted.store()

    _run(door, knock())
    found = [json.loads(entry["detail"]) for entry in _entries(door)]
    assert len(found) + sum(each.get("more", 0) for each in found) == 75


@pytest.fixture
def full(door):
    """The ledger's disk is full: it stores no further page."""
    engine = door.contexts.ledger._engine

    def limit(connection, _record):
        connection.execute("PRAGMA max_page_count=1")  # SQLite raises it to the present size

    sa.event.listen(engine, "connect", limit)
    engine.dispose()


def test_action_is_not_carried_out_while_the_disk_is_full(door, tmp_path, full):
    """The answer has the reason; reads still work."""
    digest = door.put_model(write_model(tmp_path / "m.safetensors"))
    done = 0
    for number in range(200):  # free space in the existing pages is used first
        spec = {**SPEC, "name": f"r{number}", "config": {"long": "x" * 3000}}
        status, answer = door.ask("POST", "/runs", {"spec": spec, "model": digest})
        if status != 201:
            break
        done += 1
    assert (status, answer["error"]["kind"]) == (503, "unavailable")
    assert "full" in answer["error"]["message"]
    status, found = door.ask("GET", "/runs")
    assert status == 200
    assert len(found["runs"]) == done
    assert first_break(_entries(door)) is None


def test_entry_counts_if_its_head_cannot_be_stored(tmp_path, caplog):
    """The older head file stays valid."""
    from fedloom.server.ledger import Ledger

    ledger = Ledger.in_directory(tmp_path)
    trail = Trail(ledger._engine, tmp_path / "gone" / "audit.head")
    with caplog.at_level(logging.WARNING):
        assert trail.append("ann", "session", "run.stop", "r", {}).id == 1
    assert "cannot write the head" in caplog.text
    assert ledger.trail.head().id == 1
    ledger.close()


def test_line_breaks_in_a_path_are_escaped_in_the_log(door, by_token, caplog):
    with caplog.at_level(logging.INFO):
        by_token().ask("GET", "/v1/runs/x%0a2026-01-01 ERROR all is lost".replace(" ", "%20"))
    assert "all is lost" in caplog.text
    assert not any("\n" in record.getMessage() for record in caplog.records)


def test_unauthenticated_peers_do_not_fill_the_log(door, by_token, caplog):
    with caplog.at_level(logging.INFO):
        stranger = Visitor(door.site, token="none")
        assert stranger.ask("GET", "/v1/runs").status == 401
        assert stranger.ask("POST", "/login", origin="https://evil.example").status == 403
        with socket.create_connection(("127.0.0.1", door.port)) as connection:
            connection.sendall(b"nonsense\r\n\r\n")
            assert b" 400 " in connection.recv(1000)
        assert by_token().ask("GET", "/v1/runs/none").status == 404
    told = [record.getMessage() for record in caplog.records]
    skipped = ("audit", "Started server")
    assert [line for line in told if not line.startswith(skipped)] == [
        "GET /v1/runs/none: There is no run 'none' on this server: see `fedloom run list`."
    ]
