"""Settings for all tests of the server."""

import pytest


@pytest.fixture(autouse=True)
def unpaced(monkeypatch):
    """Tests make more requests over TCP, and more that are refused, than people do."""
    from fedloom.server.access import request_pace

    for name in ("USERS", "STRANGERS", "ALL_STRANGERS"):
        monkeypatch.setattr(request_pace, name, (100_000, 10_000.0))
