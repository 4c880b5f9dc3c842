"""Real agents in the test's own event loop, enrolled through the real enrolment port."""

import asyncio
import re
import threading
from contextlib import suppress
from dataclasses import replace

import numpy as np

from fedloom.client import Agent, Client
from fedloom.client.config import load
from fedloom.client.identity.enrol import enrol
from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.server.engine import Wake
from support.federation import Federation
from support.patience import PATIENCE_S
from support.ports import steady_port


class Adder(Client):
    """Adds a constant to every value; `num_examples` is its weight."""

    def __init__(self, step=1.0, num_examples=1):
        self.step = step
        self.num_examples = num_examples

    def train(self, params, task):
        new = {name: value + np.asarray(self.step, value.dtype) for name, value in params.items()}
        return new, self.num_examples, {"step": self.step}


class Held(Adder):
    """Trains when the test allows; `begun` is set at its start."""

    def __init__(self, step=1.0, num_examples=1):
        super().__init__(step, num_examples)
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def train(self, params, task):
        self.begun.set()
        while not self.let_go.wait(0.01):
            if task.should_stop():
                break
        return super().train(params, task)


class Agents:
    """The agents of a test.

    Args:
        federation: a running `support.federation.Federation`.
        directory: for their states.
    """

    def __init__(self, federation, directory):
        self.federation = federation
        self.directory = directory
        self.configs = {}
        self.tasks = {}

    async def enrol(self, name):
        """Enrol a client with a token, as a device does."""
        token = self.federation.add_token(name).text()
        path = self.directory / name / "client.toml"
        await enrol(f"127.0.0.1:{self.federation.server.enrolment_port}", token, path)
        self.configs[name] = replace(load(path), reconnect_s=0.2)

    async def start(self, name, client, gates=()):
        """Start an agent, enrol it first if needed, and wait until it is connected."""
        if name not in self.configs:
            await self.enrol(name)
        self.tasks[name] = asyncio.ensure_future(Agent(client, self.configs[name], gates).run())
        fleet = self.federation.contexts.fleet
        await until(lambda: fleet.get(name) is not None)

    async def stop(self, *names):
        """Stop agents; by default all of them."""
        for name in names or list(self.tasks):
            task = self.tasks.pop(name)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def until(condition):
    """Wait for a condition."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


def pass_deadline(federation, run):
    """Make the deadline of a run's open round pass."""
    driver = federation.server.runs.get(run).round
    loop = asyncio.get_running_loop()
    driver._now = lambda: loop.time() + driver.engine.config.deadline_s
    driver.feed(Wake())


async def submit(federation, params, **settings):
    """Start a run from a model in memory; returns its id."""
    path = federation.directory / "initial.safetensors"
    write_file(path, params)
    digest = federation.contexts.models.add(path)
    values = {
        "name": "test",
        "rounds": 1,
        "evaluate": False,
        "train": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
        **settings,
    }
    return await federation.server.runs.submit(values, digest)


def result(federation, run):
    """The current model of a run."""
    row = federation.ledger.run(run)
    return read_params(federation.contexts.models.path(row.model))


def played(tmp_path, scenario, **settings):
    """Run a scenario against a separate server with agents; returns its result.

    The server may be restarted: its port stays. `settings` are of its `server.toml`.
    """

    async def main():
        directory = tmp_path / "server"
        directory.mkdir(parents=True)
        federation = Federation(directory)
        configure(directory / "server.toml", **settings)
        await federation.start()
        agents = Agents(federation, tmp_path)
        try:
            async with asyncio.timeout(3 * PATIENCE_S):
                return await scenario(federation, agents)
        finally:
            await agents.stop()
            await federation.stop()

    return asyncio.run(main())


def configure(path, **settings):
    """Set a fixed port of a server, and other settings as TOML text; a dictionary is a table."""
    text = path.read_text().replace("127.0.0.1:0", f"127.0.0.1:{steady_port()}", 1)
    for name, value in settings.items():
        if isinstance(value, dict):
            text += f"\n[{name}]\n" + "".join(f"{key} = {each}\n" for key, each in value.items())
            continue
        text, found = re.subn(rf"(?m)^{name} = .*$", f"{name} = {value}", text)
        assert found == 1, name
    path.write_text(text)
