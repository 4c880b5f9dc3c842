"""Budgets of a device in real rounds."""

from dataclasses import replace

import numpy as np
import pytest

from fedloom.client import Client
from fedloom.client.budgets import Budgets, Pace
from support.agents import Adder, played, result, submit, until

pytestmark = pytest.mark.e2e

ONES = {"w": np.ones(3, np.float32)}
COHORT = {"goal": 1, "quorum": 1, "patience_s": 60.0}


class Endless(Client):
    """Adds one per step until it is asked to stop."""

    def train(self, params, task):
        steps = 0
        while not task.should_stop():
            steps += 1
        return {"w": params["w"] + np.float32(1)}, 1, {"steps": float(steps)}


async def begin(agents, name, client, **budgets):
    await agents.enrol(name)
    agents.configs[name] = replace(agents.configs[name], budgets=Budgets(**budgets))
    await agents.start(name, client)


def test_a_training_out_of_time_sends_its_result(tmp_path):
    """The round does not wait any longer."""

    async def scenario(federation, agents):
        await begin(agents, "a", Endless(), training_s=0.05)
        run = await submit(federation, ONES, cohort=COHORT)
        await federation.ended(run)
        np.testing.assert_array_equal(result(federation, run)["w"], 2.0)

    played(tmp_path, scenario)


@pytest.mark.long
def test_a_training_out_of_time_fails_if_the_rule_counts_steps(tmp_path):
    """The number of steps is unknown; another client takes the place."""

    async def scenario(federation, agents):
        await begin(agents, "a", Endless(), training_s=0.05)
        strategy = {"name": "fednova"}
        run = await submit(federation, ONES, cohort=COHORT, strategy=strategy)
        fleet = federation.contexts.fleet
        await until(lambda: [m.phase for m in federation.ledger.cohort(run, 1)] == ["declined"])
        await agents.start("b", Adder(2.0))
        await federation.ended(run)
        assert fleet.get("a").task is None
        asked = {m.client: m.phase for m in federation.ledger.cohort(run, 1)}
        assert asked == {"a": "declined", "b": "reported"}

    played(tmp_path, scenario)


def test_a_model_that_does_not_fit_is_declined_before_the_download(tmp_path):
    """Another client takes the place; the operator sees the reason."""

    async def scenario(federation, agents):
        await begin(agents, "a", Adder(), memory_mb=1.0)
        run = await submit(federation, ONES, cohort=COHORT)
        await until(lambda: [m.phase for m in federation.ledger.cohort(run, 1)] == ["declined"])
        await agents.start("b", Adder(2.0))
        await federation.ended(run)
        (declined,) = (m for m in federation.ledger.cohort(run, 1) if m.client == "a")
        assert "memory_mb" in str(declined)
        assert not list((agents.configs["a"].state_dir / "models").iterdir())

    played(tmp_path, scenario)


@pytest.mark.long
def test_transfers_keep_the_bandwidth_limit_and_arrive_complete(tmp_path, monkeypatch):
    """In both directions, in messages of a quarter of a second."""
    passed = {}
    real = Pace.passed

    async def noted(pace, size_bytes):
        passed.setdefault(pace, []).append(size_bytes)
        await real(pace, size_bytes)

    monkeypatch.setattr(Pace, "passed", noted)

    async def scenario(federation, agents):
        start = {"w": np.arange(200_000, dtype=np.float32)}  # 0.8 MB
        await begin(agents, "a", Adder(), download_mbit_s=64.0, upload_mbit_s=16.0)
        run = await submit(federation, start, cohort=COHORT)
        await federation.ended(run)
        np.testing.assert_array_equal(result(federation, run)["w"], start["w"] + 1)
        down, up = passed.values()
        assert sum(down) > 800_000
        assert sum(up) > 800_000
        assert max(up) <= 500_000

    played(tmp_path, scenario)
