"""An agent presents its issuing certificate too, so the root alone verifies it."""

import asyncio
import socket
import ssl
from datetime import UTC, datetime

import pytest
from cryptography import x509

from fedloom.client.config import ClientConfig
from fedloom.client.doctor import identity, network
from fedloom.client.network.connection import Connection
from fedloom.client.state.store import ClientStore
from fedloom.protocol.trust.identity import build_csr, generate_key, key_to_pem
from fedloom.server.pki.authority import Authority


@pytest.fixture
def enrolled(tmp_path):
    """A client's store, and a listening server that trusts the root alone."""
    now = datetime.now(UTC)
    authority = Authority.create(tmp_path / "pki", "fedloom", now)
    bundle = authority.ensure_server_certificate(("localhost",), now)
    (tmp_path / "server.pem").write_bytes(bundle.key_pem + bundle.chain_pem)
    (tmp_path / "root.pem").write_bytes(authority.root_pem)
    key = generate_key()
    chain, _ = authority.issue_client(build_csr(key), "alice", 600.0, now)
    store = ClientStore(tmp_path / "client")
    store.save_identity(key_to_pem(key), chain, authority.root_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    context.load_verify_locations(tmp_path / "root.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield store, listener, context


def presented(listener, context):
    """The certificate that a peer presents and the server verifies; raises if it cannot."""
    with context.wrap_socket(listener.accept()[0], server_side=True) as connection:
        return x509.load_der_x509_certificate(connection.getpeercert(binary_form=True))


@pytest.mark.parametrize("who", ["agent", "doctor"])
def test_a_server_that_trusts_the_root_alone_verifies_the_client(enrolled, who):
    """The chain leads from the leaf over the issuing authority to the root."""
    store, listener, context = enrolled
    config = ClientConfig(
        server=f"localhost:{listener.getsockname()[1]}", state_dir=store.directory
    )
    listener.settimeout(30)

    async def agent():
        async with Connection(config, store).open_channel() as channel:
            channel.get_state(try_to_connect=True)
            return await asyncio.to_thread(presented, listener, context)

    def doctor():
        held, _ = identity.held(config)
        with network._channel(config, held) as channel:
            # A call, since the thread of `subscribe` may outlive the channel, and raises then.
            call = channel.unary_unary("/fedloom.v1.Fleet/Any").future(b"")
            try:
                return presented(listener, context)
            finally:
                call.cancel()

    leaf = asyncio.run(agent()) if who == "agent" else doctor()
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [name.value for name in names] == ["spiffe://fedloom/client/alice"]
