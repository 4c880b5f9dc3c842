"""Opens the ledger of a replica, which may wait for older ones: see `migrations`."""

import asyncio
import logging
import socket
from pathlib import Path

from fedloom.server.ledger import Ledger
from fedloom.server.ledger.migrations import OlderServerError
from fedloom.server.replicas import standby

log = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Between two attempts."""


async def open_ledger(
    state_dir: Path, database: str, listener: socket.socket, stopping: asyncio.Event
) -> Ledger | None:
    """Open a ledger once no server lives that could not read it afterwards.

    Args:
        state_dir: of this server.
        database: its setting.
        listener: of the control socket, which tells whom it waits for.
        stopping: set when this server is to stop.

    Returns:
        None if it is to stop before.

    Raises:
        FedloomError: the ledger cannot be opened.
    """
    told = ""
    async with standby.answering(listener) as answers:
        while not stopping.is_set():
            try:
                return await asyncio.to_thread(Ledger.in_directory, state_dir, database)
            except OlderServerError as error:
                answers.driven_by(error.name)
                if str(error) != told:
                    told = str(error)
                    log.warning("this server waits: %s", error)
            try:
                await asyncio.wait_for(stopping.wait(), PAUSE_S)
            except TimeoutError:
                continue
    return None
