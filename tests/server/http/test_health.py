"""The port that a balancer asks, over real sockets."""

import asyncio
import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedloom.protocol.errors import UnavailableError
from fedloom.server.http.health import Readiness, listening, serve
from fedloom.server.metrics.meters import Meters
from fedloom.server.metrics.replica import ReplicaState, Serving


def ask(port, path, method="GET"):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def asked(health, *questions):
    """The answers to questions, each after what it sets."""
    with listening("127.0.0.1:0") as listener:
        port = listener.getsockname()[1]
        serving = asyncio.ensure_future(serve(health, listener))
        answers = []
        for is_ready, path, *method in questions:
            health.is_ready = is_ready
            answers.append(await asyncio.to_thread(ask, port, path, *method))
        serving.cancel()
        await asyncio.wait([serving])
    return answers


def test_a_balancer_learns_whether_the_server_serves():
    """Ready only while it does; alive all the time."""
    health = Readiness()
    answers = asyncio.run(
        asked(
            health, (False, "/ready"), (True, "/ready"), (False, "/live"), (True, "/ready", "HEAD")
        )
    )
    assert [status for status, _ in answers] == [503, 200, 200, 200]
    assert answers[0][1] == "not ready\n"


@pytest.mark.parametrize("asked_for", [("/", "GET"), ("/v1/runs", "GET"), ("/ready", "POST")])
def test_it_answers_nothing_else(asked_for):
    """The port is plain HTTP."""
    [(status, text)] = asyncio.run(asked(Readiness(), (True, *asked_for)))
    assert status == 404
    assert "Expected GET of /live, /ready, /fleet, /metrics" in text


def test_replicas_tell_who_drives():
    """Also on standby, where there is no console; no other metric is on this port."""
    health = Readiness()
    scraped = [asyncio.run(asked(health, (True, "/metrics")))]
    health.replica = ReplicaState()
    for epoch, drives in ((0, False), (3, False), (4, True)):
        health.replica.epoch, health.replica.drives = epoch, drives
        scraped.append(asyncio.run(asked(health, (drives, "/metrics"))))
    samples = []
    for ((status, text),) in scraped:
        assert status == 200
        families = text_string_to_metric_families(text)
        samples.append({s.name: s.value for family in families for s in family.samples})
    epoch, drives = "fedloom_driver_epoch", "fedloom_replica_drives"
    driving = {epoch: 4, drives: 1, "fedloom_gates": 0}
    assert samples == [{}, {drives: 0}, {epoch: 3, drives: 0}, driving]


def test_a_gate_tells_what_it_measures():
    """Counters, gauges and the process, while it is one; nothing of another name or label."""
    health, meters = Readiness(), Meters()
    health.replica = ReplicaState(epoch=3)
    health.replica.serving = Serving(meters, lambda: {"fedloom_uploads": [((), 2)]})
    meters.received.inc(5)
    meters.asked_store("put", 0.3, failed=True)
    [(status, text)] = asyncio.run(asked(health, (False, "/metrics")))
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert status == 200
    assert found["fedloom_received_bytes_total",] == 5
    assert found["fedloom_uploads",] == 2
    assert found["fedloom_driver_epoch",] == 3
    assert found["fedloom_store_faults_total", "put"] == 1
    assert found["fedloom_store_request_seconds_sum", "put"] == 0.3
    assert found["process_resident_memory_bytes",] > 0
    health.replica.serving = None
    [(_, text)] = asyncio.run(asked(health, (False, "/metrics")))
    assert "received" not in text


def test_a_taken_port_is_reported():
    """With its name in server.toml."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(UnavailableError, match="for `health`"), listening(address):
            pass
