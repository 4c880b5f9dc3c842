"""A silent network is noticed by whichever side tests the connection, as `ping_s` says."""

import asyncio
from dataclasses import replace

import pytest

from support.agents import Adder, played, until
from support.relay import Relay

pytestmark = [pytest.mark.e2e, pytest.mark.longest]

SOON_S, NEVER_S = 20.0, 3600.0


def silenced(tmp_path, notices, *, server_s, device_s):
    """Connect a device, then let nothing pass any more, until `notices` says that it is known."""

    async def scenario(federation, agents):
        with Relay(federation.server.fleet_port) as relay:
            await agents.enrol("far")
            server = f"127.0.0.1:{relay.port}"
            agents.configs["far"] = replace(agents.configs["far"], server=server, ping_s=device_s)
            await agents.start("far", Adder())
            first = federation.contexts.fleet.get("far")
            relay.cut("silent")
            await until(lambda: notices(federation, relay, first))

    played(tmp_path, scenario, ping_s=server_s)


def test_the_server_notices_a_device_that_never_pings(tmp_path):
    def notices(federation, relay, first):
        return federation.contexts.fleet.get("far") is not first

    silenced(tmp_path, notices, server_s=SOON_S, device_s=NEVER_S)


def test_a_device_notices_a_server_that_never_pings(tmp_path):
    """And connects again."""

    def notices(federation, relay, first):
        return relay.connections > 1

    silenced(tmp_path, notices, server_s=NEVER_S, device_s=SOON_S)


def test_pings_go_on_while_nothing_else_passes(tmp_path):
    """By default gRPC sends one a minute after the first two: four would take 160 s."""

    async def scenario(federation, agents):
        with Relay(federation.server.fleet_port) as relay:
            await agents.enrol("far")
            server = f"127.0.0.1:{relay.port}"
            agents.configs["far"] = replace(agents.configs["far"], server=server, ping_s=SOON_S)
            await agents.start("far", Adder())
            for _ in range(4):
                passed = relay.passed["up"]
                await until(lambda passed=passed: relay.passed["up"] > passed)
                await asyncio.sleep(1.0)  # what belongs to one ping

    async def limited(federation, agents):
        async with asyncio.timeout(120.0):
            await scenario(federation, agents)

    played(tmp_path, limited, ping_s=NEVER_S)
