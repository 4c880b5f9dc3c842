"""A restarted server selects clients by the history in its ledger."""

import numpy as np
import pytest

from fedloom.client import Client
from fedloom.server.engine import select_by
from fedloom.server.rounds.observed_rounds import add_rounds
from fedloom.strategies.selection import History, PowerOfChoice
from support.agents import played, submit, until

pytestmark = pytest.mark.e2e

NAMES = ["a", "b", "c", "d", "e"]
ROUNDS = 40


class Learner(Client):
    """Reports a loss that falls with every round in which it takes part."""

    def __init__(self, number):
        self.number = number
        self.rounds = 0

    def train(self, params, task):
        self.rounds += 1
        loss = (1 + self.number) / self.rounds
        return {name: value + 1 for name, value in params.items()}, 1 + self.number, {"loss": loss}


@pytest.mark.long
def test_every_cohort_follows_from_the_committed_rounds(tmp_path):
    """Each cohort is the policy's draw for the committed rounds, also after a restart."""
    policy = PowerOfChoice(choices=2.0)

    def committed(federation, run):
        return sum(r.state == "committed" for r in federation.ledger.list_rounds(run))

    def everyone_waits(federation):
        return len(federation.contexts.fleet.available()) == len(NAMES)

    def drawn(rows, number):
        history = History()
        add_rounds(history, [row for row in rows if row.round < number], policy)
        return sorted(select_by(policy, 3, number, history, 600.0)(NAMES, 2))

    async def scenario(federation, agents):
        for number, name in enumerate(NAMES):
            await agents.start(name, Learner(number))
        await until(lambda: everyone_waits(federation))
        run = await submit(
            federation,
            {"w": np.zeros(3, np.float32)},
            seed=3,
            rounds=ROUNDS,
            cohort={"goal": 2, "quorum": 2, "patience_s": 60.0},
            selection={"name": "power_of_choice", "choices": 2.0},
        )
        await until(lambda: committed(federation, run) >= 3)
        await federation.server.runs.command(run, "pause")
        await federation.server.__aexit__(None, None, None)
        before = committed(federation, run)
        assert before < ROUNDS
        await federation.start()
        await until(lambda: all(federation.contexts.fleet.get(name) is not None for name in NAMES))
        await federation.server.runs.command(run, "resume")
        await federation.ended(run)
        rows = federation.ledger.observations(run)
        cohorts = {
            number: sorted(row.client for row in federation.ledger.cohort(run, number))
            for number in range(1, ROUNDS + 1)
        }
        assert cohorts == {number: drawn(rows, number) for number in cohorts}
        assert len({tuple(cohort) for cohort in cohorts.values()}) > 2

    played(tmp_path, scenario)
