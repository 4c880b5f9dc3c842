"""A device trusts the server that its token pins; other servers are refused with a reason."""

import contextlib
import hashlib
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedloom.protocol.errors import Code, Refusal, UnavailableError, UsageError
from fedloom.protocol.trust import bootstrap
from fedloom.server.pki.authority import Authority
from support.patience import PATIENCE_S

NOW = datetime.now(UTC)
NAMES = ["localhost", "127.0.0.1"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """One authority for the tests that only read."""
    return Authority.create(tmp_path_factory.mktemp("state") / "pki", "demo", NOW)


@pytest.fixture(scope="module")
def bundle(authority):
    """Its server's credentials."""
    return authority.issue_server(NAMES, 3600, NOW)


@contextlib.contextmanager
def _listening(handle):
    """Run `handle(connection)` in a thread for one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                handle(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def _tls(directory, key_pem, chain_pem, maximum=None):
    file = directory / "server.pem"
    file.write_bytes(key_pem + chain_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    if maximum is not None:
        context.maximum_version = maximum

    def handle(connection):
        with context.wrap_socket(connection, server_side=True) as tls:
            tls.recv(1)

    return _listening(handle)


def _ders(chain_pem):
    return [c.public_bytes(Encoding.DER) for c in x509.load_pem_x509_certificates(chain_pem)]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_pinned_root_is_fetched(tmp_path, authority, bundle, host):
    """Over a real TLS socket, by name and by address."""
    with _tls(tmp_path, bundle.key_pem, bundle.chain_pem) as port:
        root = bootstrap.fetch_root(host, port, authority.root_pin, 10)
    assert root == authority.root_pem


def test_another_pin_is_refused_with_advice(tmp_path, bundle):
    with (
        _tls(tmp_path, bundle.key_pem, bundle.chain_pem) as port,
        pytest.raises(Refusal, match=r"in between poses as it.*Check that host and port") as caught,
    ):
        bootstrap.fetch_root("localhost", port, b"\0" * 32, 10)
    assert caught.value.code is Code.BAD_TOKEN


def test_an_impostor_that_presents_the_pinned_root_is_refused(tmp_path, authority):
    """The root is public and proves nothing: the leaf must lead to it."""
    other = Authority.create(tmp_path / "other", "demo", NOW).issue_server(NAMES, 3600, NOW)
    leaf, issuing, _ = x509.load_pem_x509_certificates(other.chain_pem)
    forged = b"".join(c.public_bytes(Encoding.PEM) for c in (leaf, issuing)) + authority.root_pem
    with (
        _tls(tmp_path, other.key_pem, forged) as port,
        pytest.raises(Refusal, match="does not lead to it") as caught,
    ):
        bootstrap.fetch_root("localhost", port, authority.root_pin, 10)
    assert caught.value.code is Code.WRONG_IDENTITY


def test_a_clients_certificate_does_not_make_a_server(authority):
    """A client's certificate is for client authentication only."""
    from fedloom.protocol.trust.identity import build_csr, generate_key

    chain, _ = authority.issue_client(build_csr(generate_key()), "localhost", 3600, NOW)
    presented = [*_ders(chain), *_ders(authority.root_pem)]
    with pytest.raises(Refusal) as caught:
        bootstrap.verified_root(presented, "localhost", authority.root_pin, NOW)
    assert caught.value.code is Code.WRONG_IDENTITY


def test_another_host_name_is_refused_with_the_names_that_work(authority, tmp_path):
    """The message lists the names in the certificate."""
    elsewhere = authority.issue_server(["fl.example.org", "10.0.0.7"], 3600, NOW)
    with (
        _tls(tmp_path, elsewhere.key_pem, elsewhere.chain_pem) as port,
        pytest.raises(Refusal, match=r"fl\.example\.org, 10\.0\.0\.7, not for localhost") as caught,
    ):
        bootstrap.fetch_root("localhost", port, authority.root_pin, 10)
    assert caught.value.code is Code.WRONG_IDENTITY


@pytest.mark.parametrize("host", ["FL.Example.org", "a.w.example.org", "10.0.0.7", "::1"])
def test_every_form_of_a_servers_name_is_found(authority, host):
    """Case, wildcards, IPv4 and IPv6 addresses match as in TLS."""
    names = ["fl.example.org", "*.w.example.org", "10.0.0.7", "::1"]
    chain = _ders(authority.issue_server(names, 3600, NOW).chain_pem)
    root = bootstrap.verified_root(chain, host, authority.root_pin, NOW)
    assert root == authority.root_pem


@pytest.mark.parametrize("offset", [timedelta(days=-1), timedelta(days=1)])
def test_a_wrong_clock_is_named_as_the_reason(authority, bundle, offset):
    """The message has both times."""
    now = NOW + offset
    with pytest.raises(Refusal, match=f"clock says {now:%Y-%m-%d %H:%M}") as caught:
        bootstrap.verified_root(_ders(bundle.chain_pem), "localhost", authority.root_pin, now)
    assert caught.value.code is Code.EXPIRED


def test_a_chain_without_the_root_is_refused(authority, bundle):
    chain = _ders(bundle.chain_pem)[:2]
    with pytest.raises(Refusal) as caught:
        bootstrap.verified_root(chain, "localhost", authority.root_pin, NOW)
    assert caught.value.code is Code.BAD_TOKEN


def test_unreadable_certificates_are_refused(authority, bundle):
    """With a typed refusal, with or without the right root."""
    root = _ders(authority.root_pem)[0]
    garbage = b"\x30\x03garbage"
    for chain, pin in [
        ([garbage, root], authority.root_pin),
        ([garbage], hashlib.sha256(garbage).digest()),
        ([_ders(bundle.chain_pem)[0], garbage, root], authority.root_pin),
    ]:
        with pytest.raises(Refusal, match="cannot be read") as caught:
            bootstrap.verified_root(chain, "localhost", pin, NOW)
        assert caught.value.code is Code.WRONG_IDENTITY


def test_a_closed_port_is_unavailable():
    """The message names what to check."""
    with socket.socket() as bound:  # bound, not listening: the port stays reserved
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"Cannot reach 127.0.0.1:{port}"):
            bootstrap.fetch_root("127.0.0.1", port, b"\0" * 32, 10)


def test_a_silent_server_is_unavailable():
    """The backlog accepts the connection; the handshake has a time limit."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UnavailableError, match="timed out"):
            bootstrap.fetch_root("127.0.0.1", port, b"\0" * 32, 0.05)


def test_a_server_that_speaks_no_tls_is_unavailable():
    """With another message than for a closed port."""

    def handle(connection):
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with (
        _listening(handle) as port,
        pytest.raises(UnavailableError, match=r"answers, but not with TLS 1\.3"),
    ):
        bootstrap.fetch_root("127.0.0.1", port, b"\0" * 32, 10)


def test_a_server_without_tls_13_is_unavailable(tmp_path, authority, bundle):
    """First contact does not fall back to an older protocol."""
    with (
        _tls(tmp_path, bundle.key_pem, bundle.chain_pem, ssl.TLSVersion.TLSv1_2) as port,
        pytest.raises(UnavailableError, match=r"answers, but not with TLS 1\.3"),
    ):
        bootstrap.fetch_root("localhost", port, authority.root_pin, 10)


@pytest.mark.parametrize("host", ["a" * 300, "a..b"])
def test_an_invalid_host_is_a_usage_error(host):
    with pytest.raises(UsageError, match="Expected a host name"):
        bootstrap.fetch_root(host, 1, b"\0" * 32, 10)


@pytest.mark.parametrize("port", [-1, 0, 65536, 70000])
def test_an_invalid_port_is_a_usage_error(port):
    """The resolver would silently connect to the port modulo 65536."""
    with pytest.raises(UsageError, match="from 1 to 65535"):
        bootstrap.fetch_root("localhost", port, b"\0" * 32, 10)


def test_a_host_name_that_no_certificate_can_carry_is_a_usage_error(authority, bundle):
    """Underscores resolve in some networks but are not valid in host names."""
    with pytest.raises(UsageError, match="letters, digits, hyphens and dots"):
        bootstrap.verified_root(_ders(bundle.chain_pem), "a_b", authority.root_pin, NOW)
