"""A server with a console, and a cheap password hash."""

import time

import pytest

from fedloom.server.access import passwords, secrets
from fedloom.server.ledger.access.accounts import Scope
from support.door import Door
from support.visitor import Visitor

PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def cheap(monkeypatch):
    """Hash at a low cost, as its duration is not tested here."""
    monkeypatch.setattr(passwords, "COST", passwords.Cost(n=16, r=1, p=1))


@pytest.fixture
def door(tmp_path):
    """A server with its authority and a console on loopback."""
    with Door(tmp_path / "state", console="127.0.0.1:0") as door:
        yield door


@pytest.fixture
def add_user(door):
    """Make a user and return a visitor who has logged in."""

    def add(name="ann", scope=Scope.ADMIN):
        hashed = passwords.hashed(PASSWORD)
        assert door.contexts.ledger.accounts.add_user(name, scope, hashed, time.time())
        visitor = Visitor(door.site)
        assert visitor.log_in(name, PASSWORD).status == 303
        return visitor

    return add


@pytest.fixture
def by_token(door):
    """Make an API token and return a visitor who sends it."""

    def make(scope=Scope.ADMIN, expires_at=None):
        token = secrets.make_api_token()
        row = {
            "id": token.id, "secret_hash": secrets.kept(token.secret), "name": "grafana",
            "scope": scope.value, "made_by": "ann", "created_at": 0.0, "expires_at": expires_at,
        }  # fmt: skip
        assert door.contexts.ledger.accounts.add_api_token(row)
        return Visitor(door.site, token=token.text())

    return make
