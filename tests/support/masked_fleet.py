"""Real agents of masked tasks, and a scripted server that a test plays."""

import asyncio
from contextlib import asynccontextmanager, suppress

from fedloom.client import Agent
from fedloom.client.owner import journal
from support.agents import Adder
from support.masking_server import POLICY, PlayedRound, ScriptedServer, masked_task
from support.patience import PATIENCE_S


class Fleet:
    """Agents in this event loop, and their journals.

    Attributes:
        server: scripted.
        clients: name → training code.
    """

    def __init__(self, server, clients, policy):
        self.server, self.clients = server, clients
        self.names = sorted(clients)
        self.configs = {name: server.enrol(name, policy) for name in clients}
        self._running = {}

    def start(self, *names):
        for name in names or self.names:
            agent = Agent(self.clients[name], self.configs[name])
            self._running[name] = asyncio.ensure_future(agent.run())

    async def stop(self, *names):
        for name in names or list(self._running):
            task = self._running.pop(name)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def state(self, name):
        return self.configs[name].state_dir

    def entries(self, name, event):
        """The texts of an event in a device's journal."""
        return [e["text"] for e in journal.read(self.state(name)) if e["event"] == event]

    async def noted(self, name, event, text):
        """Wait for an entry with these words."""
        async with asyncio.timeout(PATIENCE_S):
            while not any(text in each for each in self.entries(name, event)):
                await asyncio.sleep(0.01)

    def round(self, **settings):
        return PlayedRound(self.server, masked_task(self.server, **settings), self.names)


@asynccontextmanager
async def fleet(directory, n=4, policy=POLICY, clients=None):
    """A fleet of connected agents, each with its own step and number of examples."""
    server = await ScriptedServer(directory).start()
    if clients is None:
        clients = {f"client-{i}": Adder(0.25 + i / 8, i + 1) for i in range(n)}
    found = Fleet(server, clients, policy)
    try:
        found.start()
        async with asyncio.timeout(PATIENCE_S):
            await server.attends(*found.names)
        yield found
    finally:
        await found.stop()
        await server.stop()


def play(tmp_path, scenario, **settings):
    """Run a scenario with a fleet."""

    async def main():
        async with fleet(tmp_path, **settings) as found:
            return await scenario(found)

    return asyncio.run(main())
