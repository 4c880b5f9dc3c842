"""A device that trains when a test says so, in a run with buffers; and commits that wait."""

import asyncio
import threading

from fedloom.server.rounds import round_driver
from support.agents import Adder

COHORT = {"mode": "buffered", "goal": 1, "concurrency": 2, "patience_s": 600.0}


class Stepped(Adder):
    """Trains as many times as the test allows, and counts its starts."""

    def __init__(self, step=1.0, num_examples=1):
        super().__init__(step, num_examples)
        self.turns = threading.Semaphore(0)
        self.begun = []

    def train(self, params, task):
        self.begun.append((task.round, float(params["b"][0])))
        while not self.turns.acquire(timeout=0.01):
            if task.should_stop():
                break
        return super().train(params, task)

    def at(self, number):
        """Whether it works on the model of this round."""
        return bool(self.begun) and self.begun[-1][0] == number


def hold_commits(monkeypatch):
    """Block commits of full buffers until the returned event is set."""
    may_commit, commit = asyncio.Event(), round_driver.commit

    async def held(*args):
        await may_commit.wait()
        return await commit(*args)

    monkeypatch.setattr(round_driver, "commit", held)
    return may_commit
