"""Clients that decline offers: the round continues without them."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from fedloom.client.conditions import Conditions, linux
from support.agents import Adder, Held, played, result, submit, until

pytestmark = pytest.mark.e2e

ONES = {"w": np.ones(3, np.float32)}


class Shut:
    """Declines every offer, and counts them."""

    def __init__(self):
        self.asked = []

    def objection(self, offer):
        self.asked.append(offer.key.round)
        return "Expected a quiet device, got a busy one."


@pytest.mark.long
def test_a_gate_declines_before_the_download(tmp_path):
    """Another client takes the place; the operator sees the reason."""

    async def scenario(federation, agents):
        gate = Shut()
        await agents.start("a", Adder(), gates=[gate])
        run = await submit(
            federation, ONES, rounds=2, cohort={"goal": 1, "quorum": 1, "patience_s": 60.0}
        )
        await until(lambda: gate.asked)
        await agents.start("b", Adder())
        await federation.ended(run)
        rounds = federation.ledger.list_rounds(run)
        assert [r.state for r in rounds] == ["committed", "committed"]
        assert not list((agents.configs["a"].state_dir / "models").iterdir())

    played(tmp_path, scenario)


def heat(monkeypatch, tmp_path, degrees):
    """Set the temperature of a device with one sensor."""
    zone = tmp_path / "sys/class/thermal/thermal_zone0/temp"
    zone.parent.mkdir(parents=True)
    zone.write_text(f"{degrees}000")
    monkeypatch.setattr(linux, "ROOT", tmp_path)
    return zone


@pytest.mark.long
def test_a_hot_device_declines_and_is_asked_again_after_its_rest(tmp_path, monkeypatch):
    """It is not asked during its rest, and the rounds continue without it."""
    zone = heat(monkeypatch, tmp_path, 90)

    async def scenario(federation, agents):
        fleet = federation.contexts.fleet
        await agents.enrol("hot")
        settings = Conditions(temperature_below=70.0, again_s=3600.0)
        agents.configs["hot"] = replace(agents.configs["hot"], conditions=settings)
        await agents.start("hot", Adder(5.0))
        cohort = {"goal": 1, "quorum": 1}
        run = await submit(federation, ONES, rounds=3, cohort=cohort)
        await until(lambda: fleet.available() == [] and fleet.get("hot").task is None)
        await agents.start("cool", Adder(1.0))
        await federation.ended(run)
        np.testing.assert_array_equal(result(federation, run)["w"], 4.0)
        asked = [{m.client for m in federation.ledger.cohort(run, n)} for n in (1, 2, 3)]
        assert asked == [{"hot", "cool"}, {"cool"}, {"cool"}]
        (declined,) = (m for m in federation.ledger.cohort(run, 1) if m.client == "hot")
        assert "the limit is 70 °C" in str(declined)

        zone.write_text("20000")
        fleet.rest("hot", 0.001)  # its rest of an hour is over
        run = await submit(federation, ONES, cohort={"goal": 2, "quorum": 2})
        await federation.ended(run)
        np.testing.assert_array_equal(result(federation, run)["w"], 4.0)

    played(tmp_path, scenario)


@pytest.mark.long
@pytest.mark.parametrize("when_lost", ["stop", "finish"])
def test_a_device_that_gets_hot_during_training_follows_its_settings(
    tmp_path, monkeypatch, when_lost
):
    """It stops and is replaced, or it finishes the training."""
    zone = heat(monkeypatch, tmp_path, 20)

    async def scenario(federation, agents):
        await agents.enrol("warm")
        settings = Conditions(temperature_below=70.0, check_s=0.02, when_lost=when_lost)
        agents.configs["warm"] = replace(agents.configs["warm"], conditions=settings)
        warm = Held(5.0)
        await agents.start("warm", warm)
        run = await submit(federation, ONES, cohort={"goal": 1, "quorum": 1})
        await until(warm.begun.is_set)
        zone.write_text("90000")
        if when_lost == "stop":
            await until(lambda: federation.contexts.fleet.get("warm").task is None)
            await agents.start("cool", Adder(1.0))
        else:
            await asyncio.sleep(0.1)
            warm.let_go.set()
        await federation.ended(run)
        wanted = 2.0 if when_lost == "stop" else 6.0
        np.testing.assert_array_equal(result(federation, run)["w"], wanted)

    played(tmp_path, scenario)
