"""A client whose handshake fails gets the reason, which gRPC does not report."""

import asyncio
import contextlib
import logging
import socket
from datetime import UTC, datetime, timedelta

import pytest

from fedloom.client import Agent, Client
from fedloom.client.agent import agent as agent_module
from fedloom.client.config import ClientConfig
from fedloom.client.network.diagnosis import diagnose
from fedloom.client.state.store import ClientStore
from fedloom.protocol.errors import Code
from fedloom.server.pki.authority import Authority
from support.patience import PATIENCE_S


def good(federation, theirs):
    return federation.enrol("good"), federation.authority.root_pem


def foreign(federation, theirs):
    return federation.forge("foreign", authority=theirs)[0], federation.authority.root_pem


def lapsed(federation, theirs):
    past = datetime.now(UTC) - timedelta(days=3)
    return federation.enrol("lapsed", now=past, ttl_s=3600.0), federation.authority.root_pem


def misled(federation, theirs):
    return federation.forge("misled", authority=theirs)[0], theirs.root_pem


CASES = [
    (good, None),
    (foreign, Code.NO_CERTIFICATE),
    (lapsed, Code.NO_CERTIFICATE),
    (misled, Code.WRONG_IDENTITY),
]


@pytest.fixture
def theirs(tmp_path):
    """The authority of another federation."""
    return Authority.create(tmp_path / "theirs", "theirs", datetime.now(UTC))


@pytest.mark.parametrize("case", CASES)
def test_diagnosis_names_the_wrong_certificate(runner, federation, theirs, tmp_path, case):
    """The client's, the server's, or neither."""
    who, code = case
    identity, root = who(federation, theirs)
    store = ClientStore(tmp_path / "state")
    store.save_identity(identity.key_pem, identity.chain_pem, root)
    server = f"127.0.0.1:{federation.server.fleet_port}"

    async def scene():
        return await asyncio.to_thread(diagnose, server, store.identity_path, root)

    refusal = runner.run(scene())
    assert (refusal and refusal.code) == code


def test_unreachable_server_has_no_certificate_diagnosis(federation, theirs, tmp_path):
    """No process listens; gRPC's own error is sufficient."""
    identity, root = good(federation, theirs)
    store = ClientStore(tmp_path / "state")
    store.save_identity(identity.key_pem, identity.chain_pem, root)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{closed.getsockname()[1]}"
        assert diagnose(server, store.identity_path, root) is None


def test_agent_logs_why_its_handshake_fails(
    runner, federation, theirs, tmp_path, *, caplog, monkeypatch
):
    """After the second failure in a row."""
    monkeypatch.setattr(agent_module, "FIRST_BACKOFF_S", 0.001)
    identity, root = foreign(federation, theirs)
    ClientStore(tmp_path / "state").save_identity(identity.key_pem, identity.chain_pem, root)
    config = ClientConfig(
        server=f"127.0.0.1:{federation.server.fleet_port}", state_dir=tmp_path / "state"
    )

    async def scene():
        running = asyncio.ensure_future(Agent(Client(), config).run())
        async with asyncio.timeout(PATIENCE_S):
            while "no_certificate" not in caplog.text:
                await asyncio.sleep(0.01)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    runner.run(scene())
    (record,) = [r for r in caplog.records if "no_certificate" in r.getMessage()]
    assert record.levelno == logging.WARNING
    assert "enrol again" in record.getMessage()
