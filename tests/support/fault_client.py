"""A device of the fault suite: one agent whose training takes as long as the run's config says.

Usage: fault_client.py CONFIG [CONFIG ...]. Each line of its log begins with seconds since the
epoch, so that a test can tell what happened after what.
"""

import asyncio
import logging
import sys
import time
from pathlib import Path

from crash_client import local_step

from fedloom.client import Agent, Client
from fedloom.client.config import load
from fedloom.protocol.errors import FedloomError


class Walker(Client):
    """Takes a random step that depends on its task's seed, after a pause."""

    def train(self, params, task):
        end = time.monotonic() + float(task.config.get("pause_s", 0.0))
        while time.monotonic() < end and not task.should_stop():
            time.sleep(0.01)
        return local_step(params, task.seed), 1 + task.seed % 1000, {}


async def main(paths):
    await asyncio.gather(*[Agent(Walker(), load(Path(path))).run() for path in paths])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(created).3f %(name)s %(message)s")
    try:
        asyncio.run(main(sys.argv[1:]))
    except FedloomError as error:
        logging.getLogger("device").error("ended: %s", error)  # noqa: TRY400 - as the command does
        sys.exit(1)
