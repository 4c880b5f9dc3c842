"""Faulty training code does not end the agent or the round."""

import asyncio
import logging
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

from fedloom.client.agent import agent
from support.agents import Adder, pass_deadline, played, submit, until

pytestmark = pytest.mark.e2e

ONES = {"w": np.ones(3, np.float32)}


class SilentError(Exception):
    """An exception whose text cannot be computed."""

    def __str__(self):
        raise RuntimeError("no words")


class Raises(Adder):
    """Raises an exception in its first training."""

    def __init__(self, error):
        super().__init__()
        self.errors = [error]

    def train(self, params, task):
        if self.errors:
            raise self.errors.pop()
        return super().train(params, task)


@pytest.mark.long
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StopIteration(), "StopIteration"),
        (SystemExit(3), "SystemExit(3)"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (asyncio.CancelledError(), "CancelledError"),
        (GeneratorExit(), "GeneratorExit"),
        (ValueError("a half of it \ud800"), "\\ud800"),
        (SilentError(), "SilentError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_exception_of_training_ends_only_its_task(tmp_path, caplog, error, told):
    """The journal has the reason; the next round has the client's update."""
    caplog.set_level(
        logging.CRITICAL, "fedloom.client.agent.task_queue"
    )  # xdist takes no lone surrogates

    async def scenario(federation, agents):
        await agents.start("a", Raises(error))
        run = await submit(federation, ONES, cohort={"goal": 1, "quorum": 1})
        log = agents.configs["a"].state_dir / "journal.jsonl"
        await until(lambda: told.replace("\\", "\\\\") in log.read_text())
        await until(lambda: federation.contexts.fleet.available() == ["a"])
        pass_deadline(federation, run)  # no other client takes the place
        await federation.ended(run)
        assert federation.ledger.run(run).state == "finished"
        assert not agents.tasks["a"].done()

    played(tmp_path, scenario)


class Miscounts(Adder):
    """Returns a series of wrong numbers of examples."""

    def __init__(self, counts):
        super().__init__()
        self.counts = list(counts)

    def train(self, params, task):
        self.num_examples = self.counts.pop(0)
        return super().train(params, task)


@pytest.mark.long
def test_a_wrong_number_of_examples_ends_only_its_task(tmp_path):
    """The journal has the expected and the returned value; the agent continues."""
    wrong = [-5, 0, 1.5, float("nan"), "7", 2**70, True, None]

    async def scenario(federation, agents):
        await agents.start("a", Miscounts([*wrong, np.int64(3)]))
        await agents.start("b", Adder())
        cohort = {"goal": 2, "quorum": 1, "patience_s": 60.0}
        run = await submit(federation, ONES, rounds=len(wrong) + 1, cohort=cohort)
        await federation.ended(run)
        for number, count in enumerate(wrong, 1):
            (member,) = (m for m in federation.ledger.members(run, number) if m.client == "a")
            assert member.phase == "failed"
            assert f"got {count!r}" in member.reason
        last = federation.ledger.members(run, len(wrong) + 1)
        assert [m.phase for m in last] == ["reported", "reported"]
        text = (agents.configs["a"].state_dir / "journal.jsonl").read_text()
        assert text.count("Expected num_examples from train") == len(wrong)

    played(tmp_path, scenario)


class Breaks:
    """A gate that raises once."""

    def __init__(self):
        self.left = 1

    def objection(self, offer):
        if self.left:
            self.left = 0
            raise OSError("a file that is gone")


def test_a_gate_that_raises_declines_the_offer(tmp_path):
    """The agent continues after an error of an owner's gate or of the disk."""

    async def scenario(federation, agents):
        await agents.start("a", Adder(), gates=[Breaks()])
        run = await submit(federation, ONES, cohort={"goal": 1, "quorum": 1})
        ledger = federation.ledger
        await until(lambda: [m.phase for m in ledger.cohort(run, 1)] == ["declined"])
        pass_deadline(federation, run)  # no other client takes the place
        await federation.ended(run)
        assert ledger.run(run).state == "finished"
        assert not agents.tasks["a"].done()

    played(tmp_path, scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_signal_to_a_forked_child_does_not_stop_the_agent():
    """A worker of a process pool can be terminated."""
    woken = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, woken.append, True)
        agent._reset_signals_in_children()
        ended = []

        def train():
            ready, say = os.pipe()
            child = os.fork()
            if not child:
                os.write(say, b"!")
                time.sleep(20.0)
                os._exit(0)
            os.read(ready, 1)
            os.kill(child, signal.SIGTERM)
            ended.append(os.waitpid(child, 0)[1])

        training = threading.Thread(target=train)
        training.start()
        await asyncio.to_thread(training.join, 20.0)
        loop.remove_signal_handler(signal.SIGTERM)
        return ended

    assert asyncio.run(main()) == [signal.SIGTERM]
    assert woken == []
