"""The port that a balancer asks, over real sockets."""

import asyncio
import socket
import urllib.error
import urllib.request

import pytest

from fedloom.protocol.errors import UnavailableError
from fedloom.server.http.health import Readiness, listening, serve


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
    assert "Expected GET of /live or /ready" in text


def test_a_taken_port_is_reported():
    """With its name in server.toml."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(UnavailableError, match="for `health`"), listening(address):
            pass
