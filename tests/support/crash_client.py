"""Several deterministic clients in one process; the crash test kills and restarts it.

Usage: crash_client.py CONFIG [CONFIG ...]
"""

import asyncio
import logging
import sys
from pathlib import Path

import numpy as np

from fedloom.client import Agent, Client
from fedloom.client.config import load


def local_step(params, seed):
    """A client's step: a function of the model and the seed only."""
    rng = np.random.default_rng(seed)
    new = {}
    for name, value in params.items():
        step = rng.standard_normal(value.shape, dtype=np.float32)
        new[name] = value + np.float32(0.01) * step
    return new


class Walker(Client):
    """Takes a random step that depends on its task's seed."""

    def train(self, params, task):
        num_examples = 1 + task.seed % 1000
        return local_step(params, task.seed), num_examples, {"seed": float(task.seed % 7)}


async def main(paths):
    agents = [Agent(Walker(), load(Path(path))).run() for path in paths]
    await asyncio.gather(*agents)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    asyncio.run(main(sys.argv[1:]))
