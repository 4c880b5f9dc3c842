"""The console's address: on loopback, with TLS, behind a proxy; and refused settings."""

import json
import socket

import pytest

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.server.access import gate
from fedloom.server.access.site import make_site
from fedloom.server.config import ServerConfig
from fedloom.server.http import tcp_listener
from support.door import Door
from support.patience import PATIENCE_S
from support.visitor import Visitor


def _open(tmp_path, **settings):
    with tcp_listener.listening(tmp_path, ServerConfig(**settings), None) as door:
        return door and (door.port, door.context)


def test_auto_takes_the_next_free_port(tmp_path, monkeypatch):
    """If all are taken, the server runs without a console."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(tcp_listener, "AUTO_PORTS", (port, 0))
        found, context = _open(tmp_path)
        assert (found != port, context) == (True, None)
        monkeypatch.setattr(tcp_listener, "AUTO_PORTS", (port,))
        assert _open(tmp_path) is None
        with pytest.raises(UnavailableError, match="Is another program"):
            _open(tmp_path, console=f"127.0.0.1:{port}")
    assert _open(tmp_path, console="") is None


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_only_loopback_is_without_tls(tmp_path, address):
    """A server without an authority needs a configured certificate."""
    with pytest.raises(UsageError, match="loopback"):
        _open(tmp_path, console=address)
    (tmp_path / "bad.pem").write_text("nonsense")
    with pytest.raises(UsageError, match="console_certificate"):
        _open(tmp_path, console=address, console_certificate="bad.pem")


@pytest.mark.parametrize("url", ["fl.example.org", "ftp://x", "https://"])
def test_invalid_public_url_is_refused(url):
    with pytest.raises(UsageError):
        ServerConfig(console_url=url)


def test_origin_must_equal_the_host(tmp_path):
    """Scheme, name and port, as browsers define an origin."""
    plain = make_site(ServerConfig(), 7445, tls=False)
    tls = make_site(ServerConfig(names=("fl.example",), console="0.0.0.0:1"), 1, tls=True)
    assert plain.is_own("http://127.0.0.1:7445", "127.0.0.1:7445")
    assert not plain.is_own("https://127.0.0.1:7445", "127.0.0.1:7445")
    assert not plain.is_own("http://127.0.0.1:7446", "127.0.0.1:7445")
    assert tls.url == "https://fl.example:1"
    assert tls.is_own("https://fl.example:1", "fl.example:1")
    assert not tls.is_own("http://fl.example:1", "fl.example:1")
    assert (plain.cookie, tls.cookie) == ("fedloom-7445", "__Host-fedloom")


def test_configured_proxy_on_this_machine_is_trusted(tmp_path):
    """For the last address that it adds; cookies and links use the public URL."""
    settings = {"console": "127.0.0.1:0", "console_url": "https://fl.example.org"}
    with Door(tmp_path / "state", **settings) as door:
        assert door.site.url == "https://fl.example.org"
        assert door.site.secure
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Visitor, "_connect", _directly(door))
            visitor = Visitor(door.site)
            answer = visitor.ask(
                "POST", "/login", form={"name": "x"}, host="fl.example.org",
                origin="https://fl.example.org", x_forwarded_for="10.9.9.9, 192.0.2.7",
            )  # fmt: skip
        assert answer.status == 401
        assert answer.headers["strict-transport-security"]
        [entry] = door.ask("GET", "/audit")[1]["entries"]
        assert json.loads(entry["detail"])["address"] == "192.0.2.7"


@pytest.mark.parametrize(
    ("named", "address"),
    [
        ("192.0.2.7:51034", "192.0.2.7"),
        ("[2001:db8::7]:51034", "2001:db8::7"),
        ("2001:db8::7", "2001:db8::7"),
    ],
)
def test_port_of_a_forwarded_address_is_dropped(named, address):
    """Otherwise each connection would be throttled separately."""
    assert gate._without_port(named) == address


def _directly(door):
    """Connections to the actual address of the server."""
    import http.client

    return lambda *_: http.client.HTTPConnection("127.0.0.1", door.port, timeout=PATIENCE_S)
