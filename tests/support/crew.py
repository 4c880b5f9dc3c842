"""A process of real agents, for the console's tests: python crew.py DIRECTORY NAME...

Each learns the same linear rule from its own noisy examples, so that losses fall and accuracies
rise; `delay_s` in a run's config is the duration of a training step in seconds. Agents whose names
begin with `bad` send invalid updates.
"""

import asyncio
import sys
import time
import zlib
from pathlib import Path

import numpy as np

from fedloom.client import Agent, Client
from fedloom.client.config import load

SIZE = 24
TRUTH = np.random.default_rng(1).normal(size=SIZE).astype(np.float32)


class Learner(Client):
    """Logistic regression by gradient descent.

    Args:
        name: of the client; draws its examples.
    """

    def __init__(self, name):
        self.name = name
        draw = np.random.default_rng(zlib.crc32(name.encode()))
        self.x = draw.normal(size=(120 + int(draw.integers(200)), SIZE)).astype(np.float32)
        self.y = (self.x @ TRUTH + draw.normal(size=len(self.x)) > 0).astype(np.float32)
        self.slowness = 0.6 + 0.8 * draw.random()

    def _metrics(self, w):
        p = 1 / (1 + np.exp(-np.clip(self.x @ w, -30, 30)))
        loss = -np.mean(self.y * np.log(p + 1e-7) + (1 - self.y) * np.log(1 - p + 1e-7))
        return {"loss": float(loss), "accuracy": float(np.mean((p > 0.5) == self.y))}, p

    def train(self, params, task):
        w = params["w"].copy()
        for _ in range(4):
            _, p = self._metrics(w)
            w -= 0.25 * (self.x.T @ (p - self.y) / len(self.y)).astype(np.float32)
        until = time.monotonic() + float(task.config.get("delay_s", 0.3)) * self.slowness
        while time.monotonic() < until and not task.should_stop():
            time.sleep(0.02)
        if self.name.startswith("bad"):
            w[0] = np.nan
        return {**params, "w": w}, len(self.x), self._metrics(w)[0]

    def evaluate(self, params, task):
        return len(self.x), self._metrics(params["w"])[0]


async def main(directory, names):
    """Run the agents until the process is ended."""
    agents = [Agent(Learner(name), load(directory / name / "client.toml")) for name in names]
    await asyncio.gather(*(agent.run() for agent in agents))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
