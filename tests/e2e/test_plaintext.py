"""Connections without TLS: only on loopback, for experiments on one machine."""

import asyncio

import numpy as np
import pytest

from fedloom.client import Agent, ClientConfig
from fedloom.protocol.errors import UsageError
from fedloom.server import config
from fedloom.server.app import Server
from support.agents import Adder, result, submit, until
from support.federation import Federation

pytestmark = pytest.mark.e2e


def test_a_plaintext_run_on_loopback_gives_the_same_mean(tmp_path):
    """Clients have the names that they state."""

    async def main():
        federation = Federation(tmp_path)
        federation.server = await Server(tmp_path, plaintext=True).__aenter__()
        address = f"127.0.0.1:{federation.server.fleet_port}"
        settings = [
            ClientConfig(server=address, state_dir=tmp_path / name, plaintext=name)
            for name in ("a", "b")
        ]
        agents = [
            asyncio.ensure_future(Agent(Adder(float(step), 1), each).run())
            for step, each in enumerate(settings, start=1)
        ]
        try:
            await until(lambda: len(federation.contexts.fleet) == 2)
            run = await submit(
                federation, {"b": np.zeros(3)}, cohort={"goal": 2, "quorum": 2}, rounds=2
            )
            await federation.ended(run)
            np.testing.assert_array_equal(result(federation, run)["b"], 3.0)
        finally:
            for agent in agents:
                agent.cancel()
            await asyncio.wait(agents)
            await federation.server.__aexit__(None, None, None)

    asyncio.run(main())


def test_plaintext_is_refused_off_loopback_on_both_sides(tmp_path):
    """By server and client."""
    config.write(tmp_path, config.ServerConfig(fleet="0.0.0.0:0"))
    with pytest.raises(UsageError, match="loopback"):
        Server(tmp_path, plaintext=True)
    with pytest.raises(UsageError, match="loopback"):
        ClientConfig(server="fl.example.org:7443", state_dir=tmp_path, plaintext="a")
