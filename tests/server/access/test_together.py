"""Concurrent operators: no action is done twice, no error, one trail."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from fedloom.server.ledger.access.tables import audit
from fedloom.server.ledger.audit_trail import first_break
from fedloom.server.ledger.tables import promotions
from support.contexts import rows_of
from support.door import write_model


def _at_once(door, asked):
    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(lambda each: door.ask("POST", *each), asked))


@pytest.mark.long
def test_concurrent_requests_are_all_answered(door, tmp_path):
    """Equal and conflicting ones."""
    run = door.submit(tmp_path)
    digest = door.put_model(write_model(tmp_path / "submitted.safetensors"))
    for enrolled in ("oak", "elm"):
        door.contexts.ledger.add_token(enrolled, "0" * 64, enrolled, 2e9)
        door.contexts.ledger.enrol(enrolled, f"serial-{enrolled}", 2e9)
    many = [
        *[(f"/models/{digest}/promote", {})] * 6, *[(f"/runs/{run}/pause", {})] * 4,
        *[(f"/runs/{run}/resume", {})] * 4, *[(f"/runs/{run}/rollback", {"round": 0})] * 4,
        *[("/clients/oak/revoke", {})] * 4, *[("/clients/elm/quarantine", {})] * 3,
        *[("/clients/elm/release", {})] * 3, *[(f"/runs/{run}/stop", {})] * 3,
    ]  # fmt: skip
    answers = _at_once(door, many)
    assert {status for status, _ in answers} <= {200, 409}, answers
    assert [row["digest"] for row in rows_of(door.contexts.ledger, sa.select(promotions))] == [
        digest
    ]
    assert sum(answer["changed"] for status, answer in answers[:6] if status == 200) == 1
    entries = rows_of(door.contexts.ledger, sa.select(audit).order_by(audit.c.id))
    assert first_break(entries) is None
    assert all(json.loads(entry["detail"]) is not None for entry in entries)


@pytest.mark.long
def test_same_request_of_several_operators_is_done_once(door, tmp_path):
    """With or without an id: one acts, the others get its answer or the current state."""
    run = door.submit(tmp_path)
    for action, body in (
        ("pause", {}),
        ("resume", {}),
        ("abort", {"round": 1}),
        ("goal", {"goal": 1}),
    ):
        answers = _at_once(door, [(f"/runs/{run}/{action}", body)] * 8)
        assert {status for status, _ in answers} == {200}, (action, answers)
        assert sum(answer["changed"] for _, answer in answers) == 1, action
    named = {"request": "pressed-by-all-at-once"}
    answers = _at_once(door, [(f"/runs/{run}/abort", named)] * 8)
    assert [status for status, _ in answers] == [200] * 8
    assert len({json.dumps(answer) for _, answer in answers}) == 1
    door.ask("POST", f"/runs/{run}/stop", {})
    answers = _at_once(door, [(f"/runs/{run}/abort", {"request": "too-late-for-all"})] * 8)
    assert {status for status, _ in answers} == {409}


def test_concurrent_changes_of_users(door):
    """A user is added once; two who remove each other leave the socket."""
    wish = {"name": "ann", "scope": "admin", "password": "correct horse battery"}
    made = _at_once(door, [("/users", wish)] * 4)
    assert sorted(status for status, _ in made) == [201, 409, 409, 409]
    gone = _at_once(door, [("/users/ann/remove", {})] * 4)
    assert {status for status, _ in gone} <= {200, 404}
    assert door.ask("GET", "/users") == (200, {"users": []})
