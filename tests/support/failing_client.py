"""A device whose training fails in the way that `FAIL` in its environment names.

Usage: failing_client.py CONFIG [CONFIG ...]
"""

import asyncio
import logging
import os
import sys
import time
from pathlib import Path

import numpy as np

from fedloom.client import Agent, Client
from fedloom.client.config import load


class Failing(Client):
    """Fails; with no `FAIL` it adds 1, with `slow` after `SLOW_S` seconds."""

    def train(self, params, task):
        how = os.environ.get("FAIL", "")
        if how == "raise":
            raise ValueError(f"no column 'age' in /data/{os.getpid()}/x.csv, row {os.getpid()}")
        if how == "memory":
            raise MemoryError
        if how == "slow":
            time.sleep(float(os.environ["SLOW_S"]))
        new = {name: value + np.float32(1) for name, value in params.items()}
        name = min(new)
        if how == "shape":
            new[name] = np.zeros((3, 1), np.float32)
        if how == "dtype":
            new[name] = new[name].astype(np.complex64)
        if how == "nan":
            new[name] = np.full_like(new[name], np.nan)
        return new, 10, {"loss": 1.0}


async def main(paths):
    await asyncio.gather(*[Agent(Failing(), load(Path(path))).run() for path in paths])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(created).3f %(name)s %(message)s")
    asyncio.run(main(sys.argv[1:]))
