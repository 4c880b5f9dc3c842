"""A real server whose offers a test changes on their way to real agents.

Server, streams, ledger and rounds are unchanged. `Tampered` replaces its signing key; each change
applies to one offer, so that the next round is honest.
"""

import hashlib
from contextlib import asynccontextmanager

import numpy as np

from fedloom.client.owner import journal
from fedloom.protocol.trust.signing import Addressee, Signer, signed_offer
from fedloom.protocol.v1 import fleet_pb2
from support.agents import Adder, Agents, result, submit, until

PARAMS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3, np.float32)}


class Tampered:
    """Signs like the server, until a test sets a change.

    Attributes:
        sent: every sent message, in order.
    """

    def __init__(self, key, federation):
        self._key = key
        self.federation = federation
        self.sent = []
        self._nonce = b""
        self._next = []

    @property
    def signer(self):
        return self._key.signer

    def tell(self, issued):
        self._key.tell(issued)

    def sign(self, purpose, payload):
        return self._key.sign(purpose, payload)

    def offer(self, client, task, nonce):
        self._nonce = nonce
        honest = self._key.offer(client, task, nonce)
        message = self._next.pop(0)(client, task, honest) if self._next else honest
        self.sent.append(message)
        return message

    def once(self, change):
        """Change the next offer: `change(client, task, honest message)` gives the message."""
        self._next.append(change)

    def issued_us(self, message):
        return fleet_pb2.OfferStatement.FromString(message.signed_offer.statement).issued_us

    def signed(self, client, task, *, signer=None, federation=None, issued_us=1 << 62):
        """An offer of any task, signed by the server's own key by default."""
        to = Addressee(federation or self.federation, client, self._nonce)
        offer = signed_offer(signer or self.signer, to, task, issued_us)
        return fleet_pb2.ServerMessage(signed_offer=offer)

    def task(self, change):
        """A change of the task, signed by the server's own key: the server is hostile."""

        def changed(client, task, honest):
            other = fleet_pb2.Task()
            other.CopyFrom(task)
            change(other)
            return self.signed(client, other, issued_us=self.issued_us(honest))

        return changed


class Scene:
    """One agent, connected to a server that will misbehave."""

    def __init__(self, federation, agents, name):
        self.federation = federation
        self.agents = agents
        self.name = name
        self._before = 0
        self.tampered = Tampered(federation.contexts.signing, federation.authority.federation)
        federation.contexts.signing = self.tampered

    @property
    def state(self):
        """The agent's state directory."""
        return self.agents.configs[self.name].state_dir

    def begin(self):
        """Start a test of several with this agent: earlier entries do not count."""
        self._before = len(list(journal.read(self.state)))
        return self.federation.contexts.fleet.get(self.name)

    def journal(self, event):
        """The entries of an event in the owner's journal, since the test began."""
        entries = list(journal.read(self.state))[self._before :]
        return [entry for entry in entries if entry["event"] == event]

    def strangers(self):
        """Files that belong neither to the agent nor to the test."""
        known = {"client.toml", "client-state", "policy.toml"}
        return [p for p in self.state.parent.iterdir() if p.name not in known]

    def put(self, raw):
        """Have the server offer these bytes for download; returns their digest."""
        path = self.federation.directory / "put"
        path.write_bytes(raw)
        digest = hashlib.sha256(raw).hexdigest()
        path.replace(self.federation.contexts.models.path(digest))
        self.federation.server.runs.offers = _offers_all
        return digest

    async def run(self, model="", **settings):
        """Start a run for one client; returns its id."""
        settings["cohort"] = {"goal": 1, "quorum": 1, "patience_s": 30.0}
        if not model:
            return await submit(self.federation, PARAMS, **settings)
        values = {"name": "test", "rounds": 1, "evaluate": False, **settings}
        values["train"] = {"epochs": 1, "batch_size": 8, "learning_rate": 0.1}
        return await self.federation.server.runs.submit(values, model)

    async def phase(self, run, phase, number=1):
        """Wait until the agent has this phase in the ledger; returns the reason."""
        rows = []

        def reached():
            rows[:] = [
                row
                for row in self.federation.ledger.cohort(run, number)
                if row.client == self.name and row.phase == phase
            ]
            return bool(rows)

        await until(reached)
        return rows[0].reason

    async def declined(self, run, number=1):
        return await self.phase(run, "declined", number)

    async def stop(self, run):
        await self.federation.server.runs.command(run, "stop")
        await self.federation.ended(run)

    async def takes_part(self):
        """Check that the agent answers an honest round on its present connection."""
        run = await self.run()
        await self.federation.ended(run)
        np.testing.assert_array_equal(result(self.federation, run)["w"], PARAMS["w"] + 1)


@asynccontextmanager
async def scene(federation, directory, name, client=None):
    """An agent that is connected to a server under the test's control."""
    agents = Agents(federation, directory)
    own, offers = federation.contexts.signing, federation.server.runs.offers
    try:
        await agents.start(name, client or Adder())
        yield Scene(federation, agents, name)
    finally:
        federation.contexts.signing = own
        federation.server.runs.offers = offers
        await agents.stop()
        for run in federation.ledger.list_runs(("running", "paused")):
            await federation.server.runs.command(run.id, "stop")
        await until(lambda: federation.contexts.fleet.get(name) is None)


def thief():
    """A key without an endorsement."""
    return Signer.new()


async def _offers_all(_digest):
    """That an open round offers every file."""
    return True
