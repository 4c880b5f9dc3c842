"""An agent without its server, for an hour on a simulated clock."""

import asyncio
import logging
import random
import time
from contextlib import suppress

import pytest

from fedloom.client import Agent, Client
from fedloom.client.agent import agent as agent_module
from fedloom.client.config import ClientConfig
from fedloom.protocol.errors import UnavailableError
from support.modules import like

HOUR_S = 3600.0
LONGEST_S = 60.0
CONNECT_S = 0.05
"""Time of an attempt that is refused at once."""


class World:
    """A clock, and a server that is unreachable for a while."""

    def __init__(self, away_s):
        self.now = 0.0
        self.away_s = away_s
        self.attempts = []

    async def sleep(self, delay_s):
        self.now += delay_s

    async def attend(self):
        self.attempts.append(self.now)
        self.now += CONNECT_S
        if self.now < self.away_s:
            raise UnavailableError("Expected an answer, got none.")
        raise asyncio.CancelledError  # connected: the test ends


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Run an agent until its server is reachable; returns the world."""

    def live(seed, away_s=HOUR_S):
        world = World(away_s)
        draws = random.Random(seed)
        config = ClientConfig(server="localhost:1", state_dir=tmp_path / "state", plaintext="ann")
        agent = Agent(Client(), config)
        monkeypatch.setattr(agent, "_attend", world.attend)
        monkeypatch.setattr(agent_module, "asyncio", like(asyncio, sleep=world.sleep))
        monkeypatch.setattr(agent_module.JITTER, "uniform", draws.uniform)
        monkeypatch.setattr(agent_module, "time", like(time, monotonic=lambda: world.now))
        with suppress(asyncio.CancelledError):
            asyncio.run(agent.run())
        monkeypatch.undo()
        return world

    return live


def test_an_hour_offline_is_a_few_attempts_and_one_line(offline, caplog):
    """At most 60 s apart; the lost connection is logged once."""
    caplog.set_level(logging.INFO)
    world = offline(seed=1)
    gaps = [b - a for a, b in zip(world.attempts, world.attempts[1:], strict=False)]
    assert HOUR_S / LONGEST_S <= len(world.attempts) <= 3 * HOUR_S / LONGEST_S
    assert max(gaps) <= LONGEST_S + CONNECT_S
    assert world.attempts[-1] - HOUR_S <= LONGEST_S
    lines = [r for r in caplog.records if "not connected" in r.getMessage()]
    assert len(lines) == 1


def test_the_first_attempts_are_soon(offline):
    """After a restart of a second, every client is back within 5 s."""
    for seed in range(50):
        assert offline(seed, away_s=1.0).attempts[-1] < 5.0


@pytest.mark.long
def test_agents_that_lost_the_server_together_return_spread_out(offline):
    """After an hour, their returns are spread over a minute, by full jitter.

    Of a wait uniform from 0 to 60 s, a mean of 60/3 s is left: E[W²] / (2 E[W]).
    """
    returns = sorted(offline(seed).attempts[-1] - HOUR_S for seed in range(200))
    assert sum(returns) / len(returns) == pytest.approx(LONGEST_S / 3, rel=0.25)
    most = max(sum(t <= other < t + 1 for other in returns) for t in returns)
    assert most <= 20
    assert returns[-1] > LONGEST_S / 2


def test_jitter_does_not_depend_on_the_training_codes_seed():
    """Nor does it draw from the training code's generator."""
    draws = []
    for _ in range(2):
        random.seed(7)
        draws.append(agent_module.JITTER.uniform(0, LONGEST_S))
    assert draws[0] != draws[1]
    assert random.random() == random.Random(7).random()
