"""Leaving a federation: the server is notified, and this device's stored data is erased.

Erasing does not wait for the server: an offline device leaves too, and its certificate expires.
Keys are overwritten before they are removed. Flash storage may keep earlier copies of a block, so
erase the whole device before it changes owners.

Invariants: only files that this package wrote are removed; an interrupted departure can be
repeated.
"""

import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from fedloom.client.config import ClientConfig
from fedloom.client.network.connection import CONNECT_S, Connection
from fedloom.client.owner import journal
from fedloom.client.owner.policy_gate import FILE as ROUNDS
from fedloom.client.state.health_file import FILE as AGENT
from fedloom.client.state.identity_files import ENROLMENT, IDENTITY, NOISE, RENEWAL
from fedloom.client.state.process_lock import FILE as LOCK
from fedloom.client.state.store import ClientStore
from fedloom.protocol import positional_files
from fedloom.protocol.atomic_files import sync_directory
from fedloom.protocol.errors import Code, FedloomError, Refusal
from fedloom.protocol.transport import methods
from fedloom.protocol.v1 import fleet_pb2

KEYS = (IDENTITY, NOISE, RENEWAL, ENROLMENT)
FILES = ("root.pem", "signing.pub", "room", LOCK, "answered.json", ROUNDS, AGENT)
FOLDERS = ("models", "outbox", "memory", "promoted", "checkpoints", "flower")

_GONE = frozenset({Code.REVOKED, Code.UNKNOWN_CLIENT, Code.EXPIRED})
"""Refusals of a server that does not accept this client any more."""


@dataclass(frozen=True, slots=True)
class LeaveNotice:
    """Result of notifying the server.

    Attributes:
        notified: whether the server was notified.
        why: the reason if it was not, as a sentence.
    """

    notified: bool
    why: str = ""


async def notify_server(config: ClientConfig) -> LeaveNotice:
    """Notify the server that this client leaves."""
    if config.plaintext or not (config.state_dir / "identity.pem").exists():
        return LeaveNotice(True)  # no certificate to revoke
    connection = Connection(config, ClientStore(config.state_dir))
    try:
        async with connection.open_channel() as channel:
            method: Any = channel.unary_unary(
                methods.LEAVE,
                request_serializer=fleet_pb2.LeaveRequest.SerializeToString,
                response_deserializer=fleet_pb2.LeaveReply.FromString,
            )
            await method(fleet_pb2.LeaveRequest(), timeout=CONNECT_S)
    except grpc.aio.AioRpcError as error:
        return _answer(methods.error_from_rpc(error, config.server))
    except FedloomError as error:  # an expired or unreadable certificate
        return _answer(error)
    return LeaveNotice(True)


def _answer(error: FedloomError) -> LeaveNotice:
    if isinstance(error, Refusal) and error.code in _GONE:
        return LeaveNotice(True)
    return LeaveNotice(False, str(error))


def wipe(state_dir: Path, *, keep_log: bool = False) -> list[Path]:
    """Remove a client's files; missing files are no error.

    Returns:
        Other files in the folder, which were not removed.
    """
    if not state_dir.exists():
        return []
    for name in KEYS:
        _overwrite(state_dir / name)
    for name in (*KEYS, *FILES):
        for path in (state_dir / name, *state_dir.glob(f".{name}.*"), state_dir / f"{name}.tmp"):
            path.unlink(missing_ok=True)
    for name in FOLDERS:
        if (state_dir / name).is_symlink():
            (state_dir / name).unlink()
        shutil.rmtree(state_dir / name, ignore_errors=True)
    logs = journal.files(state_dir)
    if not keep_log:
        for path in logs:
            path.unlink()
        logs = []
    left = [path for path in state_dir.iterdir() if path not in logs]
    if left or logs:
        sync_directory(state_dir)
    else:
        state_dir.rmdir()
    return sorted(left)


def _overwrite(path: Path) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | positional_files.NO_LINK | positional_files.BINARY)
    except OSError:
        return  # missing, or a link
    try:
        positional_files.write_at(handle, secrets.token_bytes(os.fstat(handle).st_size), 0)
        os.fsync(handle)
    finally:
        os.close(handle)


def put_aside(config: Path) -> Path:
    """Rename a client.toml to `.left`, so that the device can enrol again."""
    aside = config.with_name(config.name + ".left")
    if config.exists():
        config.replace(aside)
    return aside
