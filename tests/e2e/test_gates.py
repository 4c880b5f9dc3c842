"""Clients that decline what they are offered: the round goes on without them."""

import numpy as np
import pytest

from support.agents import Adder, played, submit, until

pytestmark = pytest.mark.e2e

ONES = {"w": np.ones(3, np.float32)}


class Shut:
    """Objects to everything; counts."""

    def __init__(self):
        self.asked = []

    def objection(self, offer):
        self.asked.append(offer.key.round)
        return "Expected a quiet device, got a busy one."


def test_a_gate_declines_before_anything_is_downloaded_and_costs_the_round_nothing(tmp_path):
    """Another client takes the place; the reason reaches the operator."""

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
        assert [r["state"] for r in rounds] == ["committed", "committed"]
        assert not list((agents.configs["a"].state_dir / "models").iterdir())

    played(tmp_path, scenario)
