"""Enrolment: a token from the operator becomes this device's identity.

The private key is generated here and never leaves; the device sends a certificate request. The
server is trusted at first contact because the token pins its root. The key is stored before the
request: if the answer is lost, the same command enrols this device by the same token.
"""

import asyncio
import secrets
from pathlib import Path

import grpc

from fedloom.client.config import POLICY, template
from fedloom.client.network import diagnosis
from fedloom.client.owner.policy import template as policy_template
from fedloom.client.state.store import ClientStore
from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import IntegrityError, UnavailableError, UsageError
from fedloom.protocol.transport import methods
from fedloom.protocol.trust import identity
from fedloom.protocol.trust.bootstrap import fetch_root
from fedloom.protocol.trust.signing import KEY_BYTES, fingerprint
from fedloom.protocol.trust.tokens import parse_token
from fedloom.protocol.v1 import enrolment_pb2
from fedloom.protocol.version import PROTOCOL_VERSIONS

CONTACT_S = 20.0
STATE = "client-state"


async def enrol(server: str, token: str, config: Path) -> str:
    """Enrol this device and write its settings.

    Args:
        server: host:port of the server's enrolment port.
        token: one-time token from the operator.
        config: the client.toml to write; the state is stored in `client-state` beside it.

    Returns:
        The name of this client.

    Raises:
        Refusal: the token is not accepted, or the server does not match its pin.
        UnavailableError: the server cannot be reached, or the disk cannot be written to.
        UsageError: `server` is not host:port, or client.toml exists already.
    """
    host, _, port = server.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        scheme, _, address = server.rpartition("://")
        like = address.strip("/") if scheme else "fl.example.org:7444"
        raise UsageError(f"Expected --server as host:port, such as {like}, got {server!r}.")
    _check_new(config)
    parsed = parse_token(token)
    _check_writable(config)  # before the token is used up
    root = await asyncio.to_thread(fetch_root, host.strip("[]"), int(port), parsed.pin, CONTACT_S)
    pem = await asyncio.to_thread(ClientStore(config.parent / STATE).enrolment_key, parsed.id)
    key = identity.key_from_pem(pem)
    request = enrolment_pb2.EnrolRequest(
        protocol_versions=PROTOCOL_VERSIONS, token=token.strip(), csr_pem=identity.build_csr(key)
    )
    issued = await _call(server, root, request)
    crossing("client.enrol.issued")
    await asyncio.to_thread(_keep, config, identity.key_to_pem(key), issued, server)
    return issued.client


def _check_new(config: Path) -> None:
    if config.exists():
        raise UsageError(f"The file {config} exists already. Move it away to enrol again.")


def _check_writable(config: Path) -> None:
    try:
        config.parent.mkdir(parents=True, exist_ok=True)
        ClientStore(config.parent / STATE).make_room()
        trial = config.with_name(f".{config.name}.{secrets.token_hex(4)}")
        trial.touch(mode=0o600)
        trial.unlink()
    except OSError as error:
        raise UnavailableError(
            f"Cannot write to {config.parent}: {error}. Correct this and enrol again; the token is "
            "still valid."
        ) from error


def _keep(
    config: Path, key_pem: bytes, issued: enrolment_pb2.IssuedCertificate, server: str
) -> None:
    store = ClientStore(config.parent / STATE)
    if len(issued.signing_key) != KEY_BYTES:
        raise IntegrityError(
            f"Expected the server's signing key of {KEY_BYTES} bytes, got "
            f"{len(issued.signing_key)}: upgrade the server."
        )
    store.save_identity(key_pem, issued.chain_pem, issued.root_pem, issued.signing_key)
    fleet = issued.fleet_address or f"{server.rpartition(':')[0]}:{issued.fleet_port}"
    store.journal.note(
        "enrolled",
        f"This device became {issued.client} of the federation {issued.federation} at {fleet}, "
        f"whose signing key is {fingerprint(issued.signing_key)}.",
        client=issued.client,
        federation=issued.federation,
        server=fleet,
        signing_key=issued.signing_key.hex(),
    )
    policy = config.parent / POLICY
    if not policy.exists():  # an existing one belongs to the owner
        policy.write_text(policy_template())
    values = {"server": fleet, "enrolment": server, "state_dir": STATE, "policy": POLICY}
    write_whole(config, template(values), sync=True)


async def _call(
    server: str, root: bytes, request: enrolment_pb2.EnrolRequest
) -> enrolment_pb2.IssuedCertificate:
    credentials = grpc.ssl_channel_credentials(root_certificates=root)
    async with grpc.aio.secure_channel(server, credentials, methods.COMMON_OPTIONS) as channel:
        method = channel.unary_unary(
            methods.ENROL,
            request_serializer=enrolment_pb2.EnrolRequest.SerializeToString,
            response_deserializer=enrolment_pb2.IssuedCertificate.FromString,
        )
        try:
            issued: enrolment_pb2.IssuedCertificate = await method(request, timeout=CONTACT_S)
        except grpc.aio.AioRpcError as error:
            failed = methods.error_from_rpc(error, server)
            if isinstance(failed, UnavailableError):
                await asyncio.to_thread(_check_port, server)
            raise failed from error
    return issued


def _check_port(server: str) -> None:
    """Raise a `UsageError` if the address is the fleet's, which only clients may use."""
    if not diagnosis.welcomes_strangers(server):
        raise UsageError(
            f"{server} is the port for enrolled clients, got a device without a certificate. Enrol "
            "at the server's enrolment port, by default 7444: `fedloom server run` logs both; or "
            f"at enroll.{server}, if all are behind one port. The token is still valid."
        )
