"""Enrols the keys of SuperNodes: each becomes a client of the server, whose identity is here."""

from dataclasses import dataclass
from pathlib import Path

from fedloom.client.identity.enrol import enrol
from fedloom.client.supernodes import keys
from fedloom.client.supernodes.bridge import NODES
from fedloom.client.supernodes.node import CONFIG, KEY, name_of
from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import UsageError
from fedloom.protocol.trust.private_files import private_directory


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A SuperNode that is enrolled.

    Attributes:
        client: its name in the federation.
        key: short name of its public key.
        folder: of its files.
    """

    client: str
    key: str
    folder: Path


async def enrol_key(directory: Path, server: str, token: str, key: Path) -> Enrolled:
    """Enrol a SuperNode's public key as the client of a token.

    Args:
        directory: of the bridge.
        server: host:port of the server's enrolment port.
        token: one-time token from the operator.
        key: file with the public key.

    Raises:
        Refusal: the token is not accepted.
        UsageError: the key is not valid, or is enrolled.
    """
    pem = keys.public_key(key)
    name = keys.fingerprint(pem)
    folder = private_directory(directory / NODES) / name
    if (folder / CONFIG).exists() and (folder / KEY).exists():
        raise UsageError(f"The key in {key} is enrolled already, as {name_of(folder)}.")
    private_directory(folder)
    write_whole(folder / KEY, pem, sync=True)
    client = await enrol(server, token, folder / CONFIG)
    return Enrolled(client, name, folder)


def enrolled(directory: Path) -> list[Enrolled]:
    """The SuperNodes that are enrolled, by name of the client."""
    found = [
        Enrolled(name_of(path.parent), path.parent.name, path.parent)
        for path in (directory / NODES).glob(f"*/{KEY}")
        if (path.parent / CONFIG).exists()
    ]
    return sorted(found, key=lambda each: each.client)
