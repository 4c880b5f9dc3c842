"""Readings leave a device only where its owner lists them; the server shows the latest ones."""

import asyncio

import pytest

from fedloom.cli.connection.api_client import Control
from fedloom.client.agent import device_reports
from fedloom.client.owner import journal
from fedloom.protocol.errors import Code
from fedloom.protocol.v1 import fleet_pb2
from support.agents import Adder, played, until

pytestmark = [pytest.mark.e2e, pytest.mark.long]


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Reports every 20 ms, from the connection on."""
    monkeypatch.setattr(device_reports, "FIRST_S", (0.0, 0.0))
    monkeypatch.setattr(device_reports, "LEAST_S", 0.02)


def allow(agents, name, *readings):
    """Let an enrolled device's owner list these readings."""
    policy = agents.directory / name / "policy.toml"
    policy.write_text(f"[device]\nreport = {list(readings)}\n".replace("'", '"'))


def entries(agents, name):
    """What the device's journal says of readings."""
    found = journal.read(agents.configs[name].state_dir)
    return [entry for entry in found if entry["event"] == "reported"]


async def get(federation, *path):
    return await asyncio.to_thread(Control(federation.directory).get, *path)


def test_a_device_reports_what_its_owner_lists_and_nothing_by_default(tmp_path):
    """An edit applies to the next report; the journal says what leaves."""

    async def scenario(federation, agents):
        for name in ("ann", "bob"):
            await agents.enrol(name)
        allow(agents, "ann", "memory", "cpu")
        await agents.start("ann", Adder())
        await agents.start("bob", Adder())
        devices = federation.contexts.devices
        await until(lambda: (found := devices.get("ann")) and found.cpu is not None)
        first = await get(federation, "clients", "ann")
        listed = await get(federation, "clients")
        allow(agents, "ann", "memory")
        await until(lambda: devices.get("ann").cpu is None)
        allow(agents, "ann")
        await asyncio.sleep(0.1)
        last = devices.get("ann")
        await asyncio.sleep(0.3)
        assert devices.get("ann") is last
        return first, listed, devices.get("bob"), entries(agents, "ann"), entries(agents, "bob")

    rules = {"device_report_s": 0.02}
    first, listed, bob, of_ann, of_bob = played(tmp_path, scenario, clients=rules)
    device = first["device"]
    assert 0 <= device["cpu"] <= 100
    assert 0 < device["memory_used_bytes"] < device["memory_total_bytes"]
    assert (device["temperature"], device["battery"], device["gpus"]) == (None, None, [])
    assert [client["device"] for client in listed["clients"]] == [None, None]
    assert bob is None
    assert of_bob == []
    assert [entry["readings"] for entry in of_ann] == [["memory", "cpu"], ["memory"]]
    assert "Reports memory, cpu of this device to " in of_ann[0]["text"]


def test_a_server_that_takes_no_readings_gets_none(tmp_path):
    async def scenario(federation, agents):
        await agents.enrol("ann")
        allow(agents, "ann", "memory")
        await agents.start("ann", Adder())
        await asyncio.sleep(0.3)
        return federation.contexts.devices.get("ann"), entries(agents, "ann")

    assert played(tmp_path, scenario, clients={"device_report_s": 0}) == (None, [])


def test_a_hostile_report_ends_the_stream_with_the_reason(tmp_path):
    """The earlier one stays; the refusal has the client's name."""

    async def scenario(federation, _):
        eve = await federation.attend(federation.enrol("eve"))
        await eve.say(fleet_pb2.ClientMessage(device=fleet_pb2.DeviceReport(cpu=5.0)))
        devices = federation.contexts.devices
        await until(lambda: devices.get("eve"))
        await eve.say(fleet_pb2.ClientMessage(device=fleet_pb2.DeviceReport(cpu=float("nan"))))
        answer = await eve.ending()
        await federation.settled()
        return answer, devices.get("eve").cpu, [row.client for row in federation.refusals()]

    answer, cpu, refused = played(tmp_path, scenario)
    assert answer.code is Code.MALFORMED
    assert "cpu from 0 to 100, got nan" in answer.message
    assert cpu == 5.0
    assert refused == ["eve"]
