"""Peers that connect and do nothing, or send or request too much."""

import asyncio
import http.client
import socket
import ssl
import threading
from contextlib import ExitStack

import pytest

from fedloom.server import event_hub
from fedloom.server.access import shield
from fedloom.server.http import handshake_limits, shared_answers, slow_connections
from fedloom.server.ledger.access.accounts import Scope
from support.door import Door
from support.visitor import PATIENCE_S, Visitor

HEAD = (
    b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\n"
)


def _connect(door):
    connection = socket.create_connection(("127.0.0.1", door.port))
    connection.settimeout(PATIENCE_S)
    return connection


def _is_cut(connection):
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


@pytest.fixture
def hasty(monkeypatch):
    """Short time limits."""
    for name, value in (("HEAD_S", 0.2), ("STALL_S", 0.2), ("LOOK_S", 0.05)):
        monkeypatch.setattr(slow_connections, name, value)


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nX-a: b", HEAD, HEAD + b"a"], ids=["", "head", "body", "part"]
)
def test_stalled_connection_is_closed(hasty, door, sent):
    """Nothing sent, half a head, no body, half a body."""
    with _connect(door) as connection:
        connection.sendall(sent)
        assert _is_cut(connection)  # else the read times out


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_handshake_below_tls_1_3_is_refused(tmp_path, version):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = version
    with Door(tmp_path / "tls", console="0.0.0.0:0") as door, _connect(door) as connection:
        if version is ssl.TLSVersion.TLSv1_3:
            with context.wrap_socket(connection) as tls:
                assert tls.version() == "TLSv1.3"
            return
        with pytest.raises(ssl.SSLError):
            context.wrap_socket(connection)


def test_stalled_handshake_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(handshake_limits, "HANDSHAKE_S", 0.2)
    with Door(tmp_path / "tls", console="0.0.0.0:0") as door, _connect(door) as connection:
        assert _is_cut(connection)
        monkeypatch.setattr(handshake_limits, "HANDSHAKE_S", PATIENCE_S)
        ca = door.directory / "pki" / "root.pem"
        assert Visitor(door.site, ca=ca).ask("GET", "/login").status == 200


@pytest.mark.parametrize("limit", ["MAX_PENDING", "MAX_PENDING_OF_NETWORK"])
def test_handshake_beyond_a_limit_is_closed_before_it_begins(tmp_path, monkeypatch, limit):
    """In total or of one address; the earlier ones continue."""
    monkeypatch.setattr(handshake_limits, limit, 2)
    monkeypatch.setattr(handshake_limits, "LOCAL", ())
    with Door(tmp_path / "tls", console="0.0.0.0:0") as door, ExitStack() as stack:
        first = stack.enter_context(_connect(door))
        second = stack.enter_context(_connect(door))
        assert _is_cut(stack.enter_context(_connect(door)))
        context = ssl.create_default_context(cafile=door.directory / "pki" / "root.pem")
        with context.wrap_socket(first, server_hostname="localhost") as secured:
            secured.sendall(b"GET /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert secured.recv(12) == b"HTTP/1.1 200"
        second.setblocking(False)
        with pytest.raises(BlockingIOError):
            second.recv(1)


@pytest.mark.long
@pytest.mark.parametrize("limit", ["MAX_PENDING", "MAX_PENDING_OF_NETWORK"])
def test_handshakes_are_accepted_again_after_others_end(tmp_path, monkeypatch, limit):
    """For each kind of end: completed, interrupted, or not TLS."""
    monkeypatch.setattr(handshake_limits, limit, 1)
    monkeypatch.setattr(handshake_limits, "LOCAL", ())
    with Door(tmp_path / "tls", console="0.0.0.0:0") as door:
        ca = door.directory / "pki" / "root.pem"
        for sent in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"):
            with _connect(door) as connection:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                assert _is_cut(connection)
            assert Visitor(door.site, ca=ca).ask("GET", "/login").status == 200


@pytest.mark.long
def test_answer_that_is_not_read_is_closed(hasty, door, by_token, tmp_path, monkeypatch):
    """Otherwise the rest of it would stay in memory."""
    ended, lost = threading.Event(), slow_connections.PatientProtocol.connection_lost
    monkeypatch.setattr(
        slow_connections.PatientProtocol,
        "connection_lost",
        lambda self, error: (lost(self, error), ended.set()),
    )
    from support.door import write_model

    digest = door.put_model(write_model(tmp_path / "m.safetensors", size=16 << 20))
    token = by_token().token
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE_S)
        connection.connect(("127.0.0.1", door.port))
        request = f"GET /v1/models/{digest} HTTP/1.1\r\nHost: localhost\r\n"
        connection.sendall(f"{request}Authorization: Bearer {token}\r\n\r\n".encode())
        assert ended.wait(PATIENCE_S)


@pytest.mark.long
def test_stream_of_events_is_not_closed(hasty, door, by_token):
    """Its reader sends nothing; an event arrives long after the time limit."""
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=PATIENCE_S)
    connection.request("GET", "/v1/events", headers={"Authorization": f"Bearer {by_token().token}"})
    response = connection.getresponse()
    assert response.readline() == b"event: hello\n"
    looks = threading.Event()
    door.call(lambda: asyncio.get_running_loop().call_later(0.6, looks.set))
    assert looks.wait(PATIENCE_S)
    door.call(door.contexts.live.changed, "clients")
    for _ in range(3):
        line = response.readline()
    assert line == b"event: clients\n"
    connection.close()


def test_connections_are_limited_in_total_and_per_address(door, monkeypatch):
    """Others still connect when one address has all of its own."""
    monkeypatch.setattr(slow_connections, "MAX_CONNECTIONS", 3)
    held = [_connect(door) for _ in range(3)]
    for connection in held:
        connection.sendall(b"GET /login/style.css HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" in connection.recv(100)
    with _connect(door) as one_more:
        assert _is_cut(one_more)
    held.pop().close()
    monkeypatch.setattr(slow_connections, "MAX_CONNECTIONS", 100)
    monkeypatch.setattr(slow_connections, "MAX_OF_NETWORK", 2)
    monkeypatch.setattr(slow_connections, "_LOCAL", ())
    with _connect(door) as one_more:
        assert _is_cut(one_more)
    for connection in held:
        connection.close()


def test_request_smuggling_is_refused(door):
    """A proxy may have read the second request as the body of the first."""
    two = HEAD.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    with _connect(door) as connection:
        connection.sendall(two + b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n")
        found = b""
        while part := connection.recv(1 << 16):
            found += part
    assert found.startswith(b"HTTP/1.1 400 ")
    assert found.count(b"HTTP/1.1") == 1


def test_slow_body_is_ended(door, monkeypatch):
    """Even if it arrives steadily."""
    monkeypatch.setattr(shield, "SLOWEST_BODY_S", 0.2)
    with _connect(door) as connection:
        connection.sendall(HEAD + b"a")
        assert b" 400 " in connection.recv(1 << 16).partition(b"\r\n")[0]


@pytest.mark.parametrize(
    "sent",
    [b"GET /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n",
     b"GET /login HTTP/1.1\r\nX-a: b"],
    ids=["body behind its answer", "head"],
)  # fmt: skip
def test_slow_rest_of_an_answered_body_is_closed(hasty, door, sent):
    """Otherwise it would hold a connection forever."""
    ended = threading.Event()
    with _connect(door) as connection:
        connection.sendall(sent)

        def trickle():
            while not ended.wait(0.02):
                try:
                    connection.sendall(b"a")
                except OSError:
                    return

        sender = threading.Thread(target=trickle)
        sender.start()
        assert _is_cut(connection)  # else the read times out
        ended.set()
        sender.join()


@pytest.mark.parametrize("kind", ["octet-stream", "json"])
def test_document_with_a_stream_header_is_limited(door, by_token, monkeypatch, kind):
    """Otherwise a viewer could fill the memory through a route that reads its whole body."""
    monkeypatch.setattr(shield, "DOCUMENT_BYTES", 1000)
    viewer = by_token(Scope.VIEWER)
    for method, path in (("POST", "/v1/runs/describe"), ("PUT", "/v1/nothing")):
        answer = viewer.ask(method, path, body=b" " * 2000, content_type=f"application/{kind}")
        assert answer.status == 413, path


@pytest.mark.long
def test_stream_is_not_searched_for_a_form(door, add_user):
    """The session's token of an upload is in a header."""
    ann = add_user()
    form = "application/x-www-form-urlencoded"
    answer = ann.ask("PUT", "/v1/models", body=b"csrf_token=x", content_type=form)
    assert answer.status == 403


@pytest.mark.long
def test_shared_answers_are_limited(door, add_user, monkeypatch):
    """Every URL has its own, and anyone can invent URLs."""
    monkeypatch.setattr(shared_answers, "MAX_KEPT", 5)
    ann = add_user()
    for number in range(9):
        assert ann.ask("GET", f"/?part=live&x={number}").status == 200
    assert len(door.app.state.answers._made) <= 5


def test_one_user_cannot_take_all_event_streams(door, by_token, monkeypatch):
    monkeypatch.setattr(event_hub, "MAX_OF_ONE", 2)
    hub = door.contexts.live
    held = [door.call(hub.watch, (), "ann") for _ in range(3)]
    assert [each is not None for each in held] == [True, True, False]
    assert by_token().ask("GET", "/v1/events").status == 200


def test_login_ends_the_earlier_session(door, add_user):
    """One browser has one session."""
    ann = add_user()
    before = dict(ann.cookies)
    assert ann.log_in("ann", "correct horse battery").status == 303
    stale = Visitor(door.site)
    stale.cookies = before
    assert stale.ask("GET", "/v1/me").status == 401
    assert ann.ask("GET", "/v1/me").status == 200
