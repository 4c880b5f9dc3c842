"""The credentials in real handshakes of grpc.aio over loopback."""

import asyncio
import contextlib
import ssl
from datetime import UTC, datetime, timedelta

import grpc
import pytest

from fedloom.protocol.trust import bootstrap
from fedloom.protocol.trust.identity import build_csr, generate_key, key_to_pem, peer_from_pem
from fedloom.server.pki.authority import Authority
from support.patience import PATIENCE_S

NOW = datetime.now(UTC)
METHOD = "/test.Echo/WhoAmI"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """The server's authority."""
    return Authority.create(tmp_path_factory.mktemp("ours") / "pki", "demo", NOW)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Another federation with the same name."""
    return Authority.create(tmp_path_factory.mktemp("theirs") / "pki", "demo", NOW)


class _Server:
    """A grpc.aio server that answers with the caller's certificate."""

    def __init__(self, authority, *, mutual=True):
        self.calls = 0
        bundle = authority.ensure_server_certificate(["localhost", "127.0.0.1"], NOW)
        credentials = grpc.ssl_server_credentials(
            [(bundle.key_pem, bundle.chain_pem)],
            root_certificates=bundle.root_pem if mutual else None,
            require_client_auth=mutual,
        )
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handler = grpc.unary_unary_rpc_method_handler(self._who)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.Echo", {"WhoAmI": handler}),)
        )
        self.port = self._server.add_secure_port("127.0.0.1:0", credentials)

    async def _who(self, request, context):
        self.calls += 1
        return context.auth_context().get("x509_pem_cert", [b""])[0]

    async def __aenter__(self):
        await self._server.start()
        return self

    async def __aexit__(self, *error):
        await self._server.stop(None)


def _client(authority, ttl_s=3600, now=NOW):
    key = generate_key()
    chain, peer = authority.issue_client(build_csr(key), "dev-1", ttl_s, now)
    return key_to_pem(key), chain, peer


async def _call(port, root_pem, key_pem=None, chain_pem=None):
    credentials = grpc.ssl_channel_credentials(root_pem, key_pem, chain_pem)
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options) as channel:
        return await channel.unary_unary(METHOD)(b"", timeout=PATIENCE_S)


def test_an_enrolled_client_is_accepted(authority):
    """The server reads its peer from the connection."""
    key, chain, peer = _client(authority)

    async def scenario():
        async with _Server(authority) as server:
            return await _call(server.port, authority.root_pem, key, chain)

    assert peer_from_pem(asyncio.run(scenario())) == peer


def _refused(server_of, root_pem, key=None, chain=None, *, mutual=True):
    async def scenario():
        async with _Server(server_of, mutual=mutual) as server:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await _call(server.port, root_pem, key, chain)
            return caught.value.code(), server.calls

    assert asyncio.run(scenario()) == (grpc.StatusCode.UNAVAILABLE, 0)


def test_a_foreign_authoritys_client_is_refused_in_the_handshake(authority, foreign):
    key, chain, _ = _client(foreign)
    _refused(authority, authority.root_pem, key, chain)


def test_a_client_without_a_certificate_is_refused_in_the_handshake(authority):
    _refused(authority, authority.root_pem)


def test_an_expired_client_is_refused_in_the_handshake(authority):
    key, chain, _ = _client(authority, ttl_s=60, now=NOW - timedelta(hours=1))
    _refused(authority, authority.root_pem, key, chain)


def test_a_server_certificate_does_not_make_a_client(authority):
    """Its purpose is checked in the handshake."""
    bundle = authority.issue_server(["localhost"], 3600, NOW)
    _refused(authority, authority.root_pem, bundle.key_pem, bundle.chain_pem)


def test_a_client_refuses_a_foreign_server(authority, foreign):
    """It trusts only the pinned root."""
    _refused(foreign, authority.root_pem, mutual=False)


def test_tls_1_3_is_negotiated_with_an_independent_client(authority, tmp_path):
    """OpenSSL verifies the server strictly and presents its certificate."""
    key, chain, _ = _client(authority)
    identity = tmp_path / "identity.pem"
    identity.write_bytes(key + chain)
    context = ssl.create_default_context(cadata=authority.root_pem.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(identity)
    context.set_alpn_protocols(["h2"])

    async def scenario():
        async with _Server(authority) as server:
            _, writer = await asyncio.open_connection("localhost", server.port, ssl=context)
            tls = writer.get_extra_info("ssl_object")
            version, protocol = tls.version(), tls.selected_alpn_protocol()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return version, protocol

    assert asyncio.run(scenario()) == ("TLSv1.3", "h2")


def test_first_contact_with_a_real_enrolment_port(authority):
    """A device that has only the pin gets the root from gRPC's TLS and calls with it."""

    async def scenario():
        async with _Server(authority, mutual=False) as server:
            arguments = ("localhost", server.port, authority.root_pin, 10)
            root = await asyncio.to_thread(bootstrap.fetch_root, *arguments)
            return root, await _call(server.port, root)

    assert asyncio.run(scenario()) == (authority.root_pem, b"")


@pytest.mark.parametrize("mutual", [True, False], ids=["fleet", "enrolment"])
def test_a_client_that_knows_only_tls_1_2_is_refused(authority, tmp_path, mutual):
    """Its certificate would cross the network in clear. gRPC closes the socket without an alert."""
    key, chain, _ = _client(authority)
    identity = tmp_path / "identity.pem"
    identity.write_bytes(key + chain)
    older = ssl.create_default_context(cadata=authority.root_pem.decode())
    older.load_cert_chain(identity)
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    older.set_alpn_protocols(["h2"])

    async def scenario():
        async with _Server(authority, mutual=mutual) as server:
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                await asyncio.open_connection("localhost", server.port, ssl=older)

    asyncio.run(scenario())


def test_a_client_refuses_a_server_that_knows_only_tls_1_2(authority, tmp_path):
    """It offers no cipher suite that such a server could choose."""
    bundle = authority.ensure_server_certificate(["localhost"], NOW)
    (tmp_path / "server.pem").write_bytes(bundle.key_pem + bundle.chain_pem)
    older = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    older.load_cert_chain(tmp_path / "server.pem")
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    older.set_alpn_protocols(["h2"])
    negotiated = []

    async def scenario():
        def connected(reader, writer):
            negotiated.append(writer.get_extra_info("ssl_object").version())
            writer.close()

        async with await asyncio.start_server(connected, "127.0.0.1", 0, ssl=older) as server:
            with pytest.raises(grpc.aio.AioRpcError):
                await _call(server.sockets[0].getsockname()[1], authority.root_pem)

    asyncio.run(scenario())
    assert not negotiated
