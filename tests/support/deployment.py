"""A real server with agents that play experiments, to compare with their simulations."""

import asyncio
from functools import partial

import torch

from fedloom.client import Client
from fedloom.client.torch import modules
from fedloom.protocol.tensors.container import write_file
from fedloom.server.engine import Phase, RoundState, RunState
from fedloom.simulation.wire.clients import KernelClient
from fedloom.simulation.workers.setup import make_kernel
from support import parts
from support.agents import Agents, pass_deadline
from support.federation import Federation
from support.patience import PATIENCE_S

SETTLED = {Phase.REPORTED, Phase.FAILED, Phase.REFUSED}


def kernel_client(made, name):
    """A device that trains with the simulation's resident kernel."""
    kernel = make_kernel(made, "resident", torch.device("cpu"))
    return KernelClient(kernel, made.population.names.index(name), can_evaluate=True)


class Switched(Client):
    """Uses the client of the current case, a new one for each task."""

    def __init__(self, name):
        self.name = name
        self.make = None

    def train(self, params, task):
        return self.make(self.name).train(params, task)

    def evaluate(self, params, task):
        return self.make(self.name).evaluate(params, task)


class Deployment:
    """A running server and its agents, six by default."""

    def __init__(self, directory, names=parts.NAMES):
        self.federation = Federation(directory)
        self.agents = Agents(self.federation, directory)
        self.clients = [Switched(name) for name in names]

    async def start(self):
        await self.federation.start()
        for each in self.clients:
            await self.agents.start(each.name, each)

    async def stop(self):
        await self.agents.stop()
        await self.federation.stop()

    async def play(self, made, make=kernel_client, steer=None):
        """Run an experiment.

        Args:
            made: the experiment.
            make: (experiment, name) -> the client of a device.
            steer: awaited with the run's id once it has begun.

        Returns:
            The run and its rounds, as the ledger has them.
        """
        for each in self.clients:
            each.make = partial(make, made)
        for stored in self.federation.directory.glob("*/*/models/*.safetensors"):
            stored.unlink()  # all cases start from the same model
        params = modules.parameters(made.model())
        path = self.federation.directory / "initial.safetensors"
        write_file(path, params, dict.fromkeys(params, "F32"))
        values = {n: v for n, v in made.spec.as_dict().items() if v is not None}
        runs, ledger = self.federation.server.runs, self.federation.ledger
        run = await runs.submit(values, self.federation.contexts.models.add(path))
        async with asyncio.timeout(PATIENCE_S):
            if steer is not None:
                await steer(run)
            while (driver := runs.get(run)) and driver.engine.state is RunState.RUNNING:
                if driver.round is not None and _waits_in_vain(driver.round.engine):
                    pass_deadline(self.federation, run)
                await asyncio.sleep(0.01)
        await self.federation.settled()
        return ledger.run(run), ledger.list_rounds(run)


def _waits_in_vain(engine):
    """Whether an open round has no client at work and waits for its deadline."""
    phases = set(engine.cohort.phases.values())
    return engine.state is RoundState.REPORTING and phases <= SETTLED
