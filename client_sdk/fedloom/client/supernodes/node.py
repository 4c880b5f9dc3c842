"""A SuperNode that is enrolled: when it is there, an agent of the server speaks for it.

It is there from its first call on, until it leaves or misses two heartbeats. The server then sees
its client leave, as it would see a device go.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from fedloom.client import config as settings
from fedloom.client.agent.agent import Agent
from fedloom.client.state.store import ClientStore
from fedloom.client.supernodes.apps import AppBundle, FirstConfigs
from fedloom.client.supernodes.keys import fingerprint
from fedloom.client.supernodes.mailboxes import Mailboxes
from fedloom.client.supernodes.remote_app import Places, RemoteApp, SupernodeThread
from fedloom.protocol.errors import Code, FedloomError, Refusal
from fedloom.protocol.flower_messages import number_of
from fedloom.protocol.supernodes import KIND, SUPERNODE
from fedloom.protocol.trust import identity

log = logging.getLogger(__name__)

KEY = "supernode.pub"
CONFIG = "client.toml"
MAILBOX, FIRST = "mailbox", "run-configs.json"
RETRY_S = 30.0
"""Time between two attempts of an agent that ended."""
MISSED = 2
"""Heartbeats that may be missing, as in flwr."""
HEARTBEAT_S = (10.0, 1800.0)
"""Shortest and longest time between heartbeats that flwr allows."""
DEFAULT_HEARTBEAT_S = 30.0


def name_of(folder: Path) -> str:
    """The client's name, from its certificate.

    Raises:
        UsageError: it is not enrolled.
    """
    pem, _ = ClientStore(settings.load(folder / CONFIG, {}).state_dir).identity()
    return identity.peer_from_pem(pem).client


def allowed(heartbeat_s: float) -> float:
    """The time between heartbeats that is nearest to the one asked for; the shortest for NaN."""
    low, high = HEARTBEAT_S
    return min(heartbeat_s, high) if heartbeat_s > low else low


class Node:
    """One SuperNode and its client.

    Args:
        folder: its files.
        app: that it runs.
        places: of the bridge.
        client_fn: whether the app takes the older messages.
        evaluates: whether it has a function for evaluation.

    Attributes:
        key: its public key, PEM.
        client: its name in the federation.
        id: its number.
        mailboxes: of its messages.
        posted: set when there is a new message.
        refusal: why the server has revoked its client; empty otherwise.
    """

    def __init__(
        self, folder: Path, app: AppBundle, places: Places, *, client_fn: bool, evaluates: bool
    ) -> None:
        settings.load(folder / CONFIG, {}).require_stream("a SuperNode")
        self._loop = asyncio.get_running_loop()
        self.key = (folder / KEY).read_bytes()
        self.client = name_of(folder)
        self.id = number_of(f"{self.client} {fingerprint(self.key)}")
        self.posted = asyncio.Event()
        self.mailboxes = Mailboxes(folder / MAILBOX, self._notify)
        self.refusal = ""
        self._folder = folder
        self._remote = RemoteApp(
            app, self.mailboxes, FirstConfigs(folder / FIRST), self.id, places,
            client_fn=client_fn, evaluates=evaluates,
        )  # fmt: skip
        self._places = places
        self._present, self._absent = asyncio.Event(), asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None

    def _notify(self) -> None:
        with suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self.posted.set)

    def seen(self, heartbeat_s: float = DEFAULT_HEARTBEAT_S) -> None:
        """It called; it is there for two heartbeats more at least."""
        until = self._loop.time() + MISSED * allowed(heartbeat_s)
        if self._expiry is not None:
            until = max(until, self._expiry.when())
            self._expiry.cancel()
        self._expiry = self._loop.call_at(until, self.left)
        self._absent.clear()
        self._present.set()

    def left(self) -> None:
        """It said goodbye, or is not heard of any more."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._present.is_set():
            log.info("the SuperNode of %s has left", self.client)
        self._present.clear()
        self._absent.set()

    async def run(self) -> None:
        """Attend the server while the SuperNode is there; until cancelled."""
        while True:
            await self._present.wait()
            log.info("the SuperNode of %s is there", self.client)
            self.mailboxes.resume()
            agent = asyncio.ensure_future(self._attend())
            try:
                await self._absent.wait()
            finally:
                self.mailboxes.suspend()  # it may come back with its reply
                agent.cancel()
                await asyncio.wait([agent])

    async def _attend(self) -> None:
        """Run the agent, again if it fails; until the server revokes the client."""
        while True:
            try:
                config = settings.load(self._folder / CONFIG, {})
                config = replace(config, labels=config.labels | {KIND: SUPERNODE})
                runner = partial(SupernodeThread, self._places, self.mailboxes)
                await Agent(self._remote, config, runner=runner).run()
            except FedloomError as error:
                log.warning("the client %s ended: %s", self.client, error)
                if isinstance(error, Refusal) and error.code is Code.REVOKED:
                    self.refusal = f"{error}"
                    self.left()
                    return
            except Exception:
                log.exception("the client %s failed", self.client)
            await asyncio.sleep(RETRY_S)
