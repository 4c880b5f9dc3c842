"""Updates that a gate accepted before a deadline, and tells the driver of after it."""

import asyncio

import numpy as np
import pytest

from fedloom.server.engine import Wake
from fedloom.server.ledger import AcceptedUpdate
from fedloom.server.rounds.round_driver import RoundDriver
from support.agents import Adder, Held, played, result, submit, until

pytestmark = pytest.mark.e2e

ZEROS = {"w": np.zeros(3, np.float32)}


def pass_time(driver, seconds):
    before = driver._now
    driver._now = lambda: before() + seconds
    driver.feed(Wake())


@pytest.mark.parametrize("mode", [{}, {"mode": "buffered", "max_staleness": 5, "concurrency": 3}])
def test_an_update_accepted_before_the_deadline_counts_for_the_quorum(tmp_path, monkeypatch, mode):
    """A pause before the deadline moves it by its length, as without gates."""
    accepted, untold = RoundDriver.accepted, []

    def tell(driver, update, counted):
        if update.client == "late" and isinstance(update, AcceptedUpdate):
            untold.append(counted)  # its message waits in the queue; rows are told of
        else:
            accepted(driver, update, counted)

    monkeypatch.setattr(RoundDriver, "accepted", tell)
    look, looks = RoundDriver._look_at_rows, []
    monkeypatch.setattr(
        RoundDriver, "_look_at_rows", lambda *args: looks.append(args) or look(*args)
    )

    async def scenario(federation, agents):
        ledger, runs = federation.ledger, federation.server.runs

        async def sealed(key):
            return ledger.accepted(*key)

        federation.contexts.rounds.sealed = sealed
        await agents.start("held", Held())
        await agents.start("late", Adder(1.0))
        await agents.start("fast", Adder(3.0))
        cohort = {"goal": 3, "quorum": 2, "deadline_s": 600.0, **mode}
        run = await submit(federation, ZEROS, cohort=cohort)
        driver = runs.get(run).round
        await until(lambda: untold and driver.engine.cohort.accepted == 1)
        await runs.command(run, "pause")
        pass_time(driver, 6000.0)
        await runs.command(run, "resume")
        await asyncio.sleep(0.1)
        assert driver.engine.state == "reporting"
        assert driver.engine.clock.deadline_left_s(driver._now()) > 500.0
        assert not looks, "no deadline passes in a pause"
        pass_time(driver, 600.0)
        await federation.ended(run)
        assert len(looks) == 1
        (only,) = ledger.list_rounds(run)
        assert (only.state, only.accepted) == ("committed", 2), only.reason
        np.testing.assert_array_equal(result(federation, run)["w"], 2.0)

    played(tmp_path, scenario)
