"""Devices in one process, alike at a site and at a server without sites.

Usage: site_devices.py RUN_SEED SITE CONFIG [CONFIG ...]

At a server without sites, SITE is "-" and a device NAME is called SITE.NAME: it draws from the seed
that the device SITE/NAME would get.
"""

import asyncio
import logging
import os
import sys
import time
from pathlib import Path

import numpy as np
from crash_client import local_step

from fedloom.client import Agent, Client
from fedloom.client.config import load
from fedloom.protocol.task_description import task_seed

log = logging.getLogger(__name__)

STUCK = "FEDLOOM_TEST_STUCK"
"""Number of the round in which all devices train for an hour; in the environment."""

PAUSE = "FEDLOOM_TEST_PAUSE"
"""Seconds for which each device trains in any other round; likewise."""


class SeededDevice(Client):
    """Takes a step that depends on its seed, and measures what depends on its seed and the model.

    Args:
        run_seed: of the run.
        name: SITE/NAME.
        at_site: whether the task has that device's seed already.
    """

    def __init__(self, run_seed, name, *, at_site):
        self.run_seed, self.name, self.at_site = run_seed, name, at_site

    def seed(self, task):
        seed = task_seed(self.run_seed, task.round, self.name)
        assert (task.seed == seed) == self.at_site
        return seed

    def train(self, params, task):
        log.info("%s trains in round %d", self.name, task.round)
        if str(task.round) == os.environ.get(STUCK):
            time.sleep(3600.0)
        time.sleep(float(os.environ.get(PAUSE, "0")))
        seed = self.seed(task)
        return local_step(params, seed), 1 + seed % 1000, {"loss": (seed % 997) / 7}

    def evaluate(self, params, task):
        loss = float(np.mean(params["w"], dtype=np.float64)) + self.seed(task) % 11
        return 1 + self.seed(task) % 50, {"loss": loss}


async def main(run_seed, site, paths):
    agents = []
    for path in map(Path, paths):
        own = path.parent.name
        name = own.replace(".", "/") if site == "-" else f"{site}/{own}"
        device = SeededDevice(run_seed, name, at_site=site != "-")
        agents.append(Agent(device, load(path)).run())
    await asyncio.gather(*agents)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(created).3f %(name)s %(message)s")
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
