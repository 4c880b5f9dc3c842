"""Trainings that ignore a stop: the device declines offers until they end."""

import threading

import numpy as np
import pytest

from fedloom.client.agent import training_thread
from fedloom.client.api import Client
from support.agents import played, result, submit, until
from support.patience import PATIENCE_S

pytestmark = pytest.mark.e2e

ONES = {"w": np.ones(3, np.float32)}
COHORT = {"goal": 1, "quorum": 1, "patience_s": 60.0}


class Deaf(Client):
    """Its first training ignores stops and ends when the test allows; counts overlapping calls."""

    def __init__(self):
        self.begun, self.let_go = threading.Event(), threading.Event()
        self.at_once = self.most = 0

    def train(self, params, task):
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.begun.set()
        self.let_go.wait(PATIENCE_S)
        self.at_once -= 1
        return {"w": params["w"] + np.float32(1)}, 1, {}


async def declined(federation, run):
    """Why the only member of a run's first round declined."""
    cohort = federation.ledger.cohort
    await until(lambda: [m.phase for m in cohort(run, 1)] == ["declined"])
    return str(cohort(run, 1)[0])


def journal(agents, name):
    return (agents.configs[name].state_dir / "journal.jsonl").read_text()


@pytest.mark.long
@pytest.mark.parametrize("ends", ["late", "in time"])
def test_offers_are_declined_until_a_withdrawn_training_has_ended(tmp_path, monkeypatch, ends):
    """The server and the journal have the reason; within the grace period the agent waits."""
    monkeypatch.setattr(training_thread, "GRACE_S", 0.05 if ends == "late" else PATIENCE_S)

    async def scenario(federation, agents):
        deaf, command = Deaf(), federation.server.runs.command
        await agents.start("a", deaf)
        first = await submit(federation, ONES, cohort=COHORT)
        await until(deaf.begun.is_set)
        await command(first, "stop")
        second = await submit(federation, ONES, cohort=COHORT)
        if ends == "late":
            why = await declined(federation, second)
            assert f"still running round 1 of {first}, though the server withdrew it" in why
            assert "still running round" in journal(agents, "a")
            assert federation.contexts.fleet.available() == []  # the client rests
            deaf.let_go.set()
            await command(second, "stop")
            federation.contexts.fleet.rest("a", 0.001)
            second = await submit(federation, ONES, cohort=COHORT)
        deaf.let_go.set()
        await federation.ended(second)
        np.testing.assert_array_equal(result(federation, second)["w"], 2.0)
        assert deaf.most == 1

    played(tmp_path, scenario)
