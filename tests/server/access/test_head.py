"""HEAD over real connections: headers without a body, and the connection stays open."""

import socket

import pytest

from support.door import Door, write_model
from support.visitor import Visitor


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    with Door(tmp_path_factory.mktemp("door") / "state", console="127.0.0.1:0") as door:
        yield door


@pytest.fixture(scope="module")
def token(door):
    return door.ask("POST", "/api-tokens", {"name": "look", "scope": "viewer"})[1]["token"]


def heads(door, token, *paths):
    """The responses to HEAD for each path, over one connection that ends with a GET."""
    with socket.create_connection(("127.0.0.1", door.port), timeout=10.0) as connection:
        for path in (*paths, None):
            method = "GET" if path is None else "HEAD"
            end = "Connection: close\r\n" if path is None else ""
            connection.sendall(
                f"{method} {path or '/v1/me'} HTTP/1.1\r\nHost: 127.0.0.1:{door.port}\r\n"
                f"Authorization: Bearer {token}\r\n{end}\r\n".encode()
            )
        said = b"".join(iter(lambda: connection.recv(65536), b""))
    *found, last, me = said.split(b"\r\n\r\n")
    assert last.startswith(b"HTTP/1.1 200")
    assert b'"name":' in me
    return found


@pytest.mark.long
def test_no_body_follows_the_headers(door, token):
    """For pages, documents, files, errors and streams: the next response follows directly."""
    good = ("/", "/v1/server", "/static/fedloom.css", "/v1/events", "/metrics")
    statuses = [found.split(b" ")[1] for found in heads(door, token, *good, "/v1/runs/none", "/x")]
    assert statuses == [b"200"] * 5 + [b"404"] * 2


def test_a_stream_of_events_is_not_kept_open(door, token):
    """More than the allowed number of streams, and no watcher remains."""
    answers = heads(door, token, *["/v1/events"] * 40)
    assert all(b"text/event-stream" in found for found in answers)
    assert door.call(len, door.contexts.live) == 0


def test_a_model_is_not_read_for_its_length(door, token, tmp_path, monkeypatch):
    """A model may have gigabytes."""
    path = write_model(tmp_path / "model.safetensors", size=5000)
    digest = door.put_model(path)
    monkeypatch.setattr("starlette.responses.anyio.open_file", None)
    answer = Visitor(door.site, token=token).ask("HEAD", f"/v1/models/{digest}")
    assert (answer.status, answer.headers["etag"]) == (200, f'"{digest}"')
    assert int(answer.headers["content-length"]) == path.stat().st_size


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("DELETE", "/v1/server", "GET, HEAD"), ("HEAD", "/v1/runs/x/pause", "POST")],
)
def test_allowed_methods_include_head(door, token, method, path, allowed):
    """If they include GET."""
    answer = Visitor(door.site, token=token).ask(method, path)
    assert (answer.status, answer.headers["allow"]) == (405, allowed)
