"""The clock by which a client judges its certificate."""

import asyncio
import logging
import time
from datetime import timedelta

import pytest

from fedloom.client.config import ClientConfig
from fedloom.client.network import connection as connection_module
from fedloom.client.network.connection import Connection
from fedloom.client.state.store import ClientStore
from support.logs import ours
from support.modules import like

NOON = 1_800_000_000.0


@pytest.fixture
def here(tmp_path):
    """A connection without any message of the server."""

    async def made():
        config = ClientConfig(server="localhost:1", state_dir=tmp_path, plaintext="ann")
        return Connection(config, ClientStore(tmp_path))

    return asyncio.run(made())


@pytest.mark.parametrize("ahead_s", [-3600.0, 0.0, 3600.0])
def test_the_servers_clock_is_used(here, monkeypatch, caplog, ahead_s):
    """Even if the device's clock is wrong or set later; a wrong one is logged once."""
    caplog.set_level(logging.WARNING)
    elapsed_s = 0.0
    monkeypatch.setattr(connection_module, "time", like(time, time=lambda: NOON + ahead_s))
    monkeypatch.setattr(connection_module, "since_boot_s", lambda: 50.0 + elapsed_s)
    here.set_server_time(NOON)
    begun = here.now()
    assert begun.timestamp() == NOON
    monkeypatch.setattr(connection_module, "time", like(time, time=lambda: NOON - 1e6))
    elapsed_s = 7200.0
    assert here.now() - begun == timedelta(hours=2)
    assert len(ours(caplog)) == (ahead_s != 0)


def test_with_an_older_server_the_devices_clock_is_used(here):
    before = here.now()
    here.set_server_time(0.0)
    assert abs(here.now() - before) < timedelta(minutes=1)
