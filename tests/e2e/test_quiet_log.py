"""What strangers and silent clients do is counted, and does not fill the log."""

import asyncio
import logging
import socket

import numpy as np
import pytest

from fedloom.protocol.tensors.container import write_file
from fedloom.protocol.transport import methods
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.fleet import download
from support.agents import until

NUM_TRIES = 40
GARBAGE = {
    "clear text": b"GET / HTTP/1.1\r\n\r\n",
    "no certificate": b"\x16\x03\x01\x02\x00\x01" + bytes(100),
    "random bytes": b"\xfe" * 100,
}


def opened(federation, port):
    registry = federation.contexts.meters.registry
    return registry.get_sample_value("fedloom_connections_opened_total", {"port": port})


@pytest.mark.parametrize("sent", GARBAGE.values(), ids=GARBAGE)
def test_failed_handshakes_are_counted_and_not_logged(runner, federation, capfd, caplog, sent):
    """On both ports; gRPC's core wrote a line for each to standard error."""

    async def scene():
        ports = {
            "fleet": federation.server.fleet_port,
            "enrolment": federation.server.enrolment_port,
        }
        before = {name: opened(federation, name) for name in ports}
        for port in ports.values():
            for _ in range(NUM_TRIES):
                with socket.create_connection(("127.0.0.1", port)) as stranger:
                    stranger.sendall(sent)
        for name, count in before.items():
            await until(
                lambda name=name, count=count: opened(federation, name) >= count + NUM_TRIES
            )
        await asyncio.sleep(0.2)

    runner.run(scene())
    assert "andshake" not in capfd.readouterr().err
    assert not caplog.records


@pytest.mark.long
def test_download_that_timed_out_leaves_no_traceback(
    runner, federation, tmp_path, monkeypatch, caplog
):
    """Of a client that has gone: its refusal cannot be sent, and is counted all the same."""
    monkeypatch.setattr(download, "READ_TIMEOUT_S", 0.5)
    caplog.set_level(logging.WARNING)
    write_file(tmp_path / "model", {"w": np.zeros(8_000_000, np.float32)})

    async def offers(_digest):
        return True

    async def scene():
        digest = federation.contexts.models.add(tmp_path / "model")
        monkeypatch.setattr(federation.server.runs, "offers", offers)
        request = fleet_pb2.DownloadRequest(digest=digest).SerializeToString()
        channel = federation.channel(federation.enrol("sleeper"))
        calls = [channel.unary_stream(methods.DOWNLOAD)(request) for _ in range(4)]

        def refused():
            return sum(r.times for r in federation.refusals() if r.client == "sleeper")

        await until(lambda: refused() == 4)
        for call in calls:
            call.cancel()
        await until(lambda: not federation.contexts.fleet.calls())
        await asyncio.sleep(0.5)

    runner.run(scene())
    assert not [record for record in caplog.records if record.exc_info]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
