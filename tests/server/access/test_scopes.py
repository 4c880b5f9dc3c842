"""Scopes: every route declares one, and a lower one is refused."""

import getpass

import pytest

from fedloom.server.ledger.access.accounts import Scope
from fedloom.server.ledger.access.tables import audit
from fedloom.server.routes import application
from support.contexts import rows_of
from support.door import Door
from support.routes import table

PUBLIC = {"/login", "/login/link", "/login/style.css", "/login/oidc", "/login/oidc/callback"}
"""Routes that ask nobody who they are."""


@pytest.fixture
def door(tmp_path):
    with Door(tmp_path / "state") as door:
        yield door


@pytest.mark.long
def test_every_route_declares_its_scope(door):
    rows = table(application.create_app(door.context, door.runs, door.authority))
    assert len(rows) > 10
    assert {row.path for row in rows if row.scope is None} == PUBLIC


def test_scopes_are_nested():
    table = [[scope.covers(needed) for needed in Scope] for scope in Scope]
    assert table == [[row >= column for column in range(4)] for row in range(4)]


def test_caller_of_the_socket_is_the_local_user(door):
    """The kernel reports the name, and the audit trail records it."""
    door.ask("POST", "/tokens", {"client": "ward-3"})
    head = door.contexts.ledger.trail.head()
    assert head.id == 1
    [entry] = rows_of(door.contexts.ledger, audit.select())
    assert (entry["who"], entry["how"]) == (getpass.getuser(), "socket")
    assert (entry["action"], entry["subject"]) == ("token.create", "ward-3")


def test_action_is_not_carried_out_without_its_record(door, monkeypatch):
    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(door.contexts.ledger.trail, "append_all", broken)
    assert door.ask("POST", "/tokens", {"client": "ward-3"})[0] == 500
    assert door.contexts.ledger.list_tokens() == []
