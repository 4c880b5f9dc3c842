"""Leaving a federation: the server is told, and what this device kept of it is wiped.

Wiping does not wait for the server: a device that is offline leaves all the same, and its
certificate ends by itself. Keys are overwritten before they are removed; on a disk that moves
blocks about, as flash does, an earlier copy may outlive that, so a device that changes hands
should be erased as a whole.

Invariants: only what this package makes is removed, whatever else lies in the folder; a departure
that was cut off can be repeated.
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
from fedloom.client.offers.replay_guard import FILE as ANSWERS
from fedloom.client.owner import journal
from fedloom.client.owner.policy_gate import FILE as ROUNDS
from fedloom.client.state.health_file import FILE as AGENT
from fedloom.client.state.process_lock import FILE as LOCK
from fedloom.client.state.store import ClientStore
from fedloom.protocol.errors import Code, FedloomError, Refusal
from fedloom.protocol.transport import methods
from fedloom.protocol.trust.private_files import sync_directory
from fedloom.protocol.v1 import fleet_pb2

KEYS = ("identity.pem", "noise.key")
FILES = ("root.pem", "signing.pub", "room", LOCK, ANSWERS, ROUNDS, AGENT)
FOLDERS = ("models", "outbox", "memory", "promoted", "checkpoints", "flower")

_GONE = frozenset({Code.REVOKED, Code.UNKNOWN_CLIENT, Code.EXPIRED})
"""Answers of a server for which this client is no more."""


@dataclass(frozen=True, slots=True)
class LeaveNotice:
    """How telling the server went.

    Attributes:
        told: whether the server knows.
        why: it does not, as a sentence.
    """

    told: bool
    why: str = ""


async def notify_server(config: ClientConfig) -> LeaveNotice:
    """Tell the server that this client leaves.

    Args:
        config: of the client.
    """
    if config.plaintext:
        return LeaveNotice(True)  # without certificates there is nothing to revoke
    if not (config.state_dir / "identity.pem").exists():
        return LeaveNotice(True)
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
    except FedloomError as error:  # a certificate that has ended, or cannot be read
        return _answer(error)
    return LeaveNotice(True)


def _answer(error: FedloomError) -> LeaveNotice:
    if isinstance(error, Refusal) and error.code in _GONE:
        return LeaveNotice(True)
    return LeaveNotice(False, str(error))


def wipe(state_dir: Path, *, keep_log: bool = False) -> list[Path]:
    """Remove what a client keeps; what is not there any more is no error.

    Args:
        state_dir: of the client.
        keep_log: leave the journal.

    Returns:
        What lies in the folder beside that, and was left alone.
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
    """Put chance in the place of a key's bytes."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    except OSError:
        return  # it is gone, or no file of ours
    try:
        os.pwrite(handle, secrets.token_bytes(os.fstat(handle).st_size), 0)
        os.fsync(handle)
    finally:
        os.close(handle)


def put_aside(config: Path) -> Path:
    """Rename a client.toml, so that the device can enrol anew; its settings may be of use then."""
    aside = config.with_name(config.name + ".left")
    if config.exists():
        config.replace(aside)
    return aside
