"""A device that trains the leading ranks of an adapter: two of them if its name is `ann`.

Usage: adapter_client.py CONFIG.
"""

import asyncio
import logging
import sys
from pathlib import Path

import numpy as np

from fedloom.client import Agent, Client, SliceOf, Update
from fedloom.client.config import load

FEW = 2


def stepped(params, name, seed):
    """A client's random step: the ranks that it trains, new factors by name, and its weight."""
    rng = np.random.default_rng(seed)
    a, b = (next(n for n in params if n.endswith(f"lora_{end}.weight")) for end in "AB")
    rank = FEW if name == "ann" else len(params[a])
    new = {n: np.array(params[n]) for n in (a, b)}
    new[a][:rank] += rng.normal(size=new[a][:rank].shape).astype(np.float32)
    new[b][:, :rank] += rng.normal(size=new[b][:, :rank].shape).astype(np.float32)
    return rank, new, 1 + seed % 1000


class Ranked(Client):
    """Sends slices of its leading ranks."""

    def train(self, params, task):
        rank, new, examples = stepped(params, task.client, task.seed)
        sent = {}
        for name, value in new.items():
            rows, columns = value.shape
            box = ((0, rank), (0, columns)) if "lora_A" in name else ((0, rows), (0, rank))
            sent[name] = SliceOf(value[: box[0][1], : box[1][1]], box)
        return Update(sent, examples)


async def main(path):
    await Agent(Ranked(), load(Path(path))).run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(created).3f %(name)s %(message)s")
    asyncio.run(main(sys.argv[1]))
