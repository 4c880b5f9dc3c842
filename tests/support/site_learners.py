"""Devices in one process that train on examples of their own, alike at a site and without sites.

Usage: site_learners.py RUN_SEED SITE CONFIG [CONFIG ...], as site_devices.py. At a server without
sites, a device takes the seed of SITE/NAME from each offer, so that all that it draws is the same.
A device called mute sends measurements and no tensors.
"""

import asyncio
import logging
import os
import sys
import time
from hashlib import blake2b
from pathlib import Path

import numpy as np
from site_devices import STUCK

from fedloom.client import Agent, MaskOf, SliceOf
from fedloom.client.agent import task_queue
from fedloom.client.config import load
from fedloom.client.numpy import GradientClient
from fedloom.protocol.task_description import task_seed


def gradient(params, x, y):
    """Loss and gradient of least squares over a body and a head."""
    hidden = x @ params["body"] + params["bias"]
    error = hidden @ params["head"] - y
    back = error @ params["head"].T / len(x)
    return float(np.mean(error**2) / 2), {
        "body": x.T @ back, "bias": back.sum(0), "head": hidden.T @ error / len(x)
    }  # fmt: skip


def examples(name):
    """Examples that follow from the name of their device."""
    rng = np.random.default_rng(int.from_bytes(blake2b(name.encode(), digest_size=8).digest()))
    x = rng.normal(0, 1, (30 + rng.integers(30), 12))
    return x, x @ rng.normal(0, 1, (12, 2)) + rng.normal(0, 1, 2)


def parts(new, seed):
    """Some rows of one tensor and some values of another; the third is whole or missing."""
    rng = np.random.default_rng(seed)
    rows = 1 + seed % 11
    found = {
        "body": SliceOf(new["body"][:rows], ((0, rows), (0, 8))),
        "head": MaskOf(new["head"], rng.random((8, 2)) < 0.5),
    }
    return found if seed % 2 else {**found, "bias": new["bias"]}


class Learner(GradientClient):
    """Trains, but for the round in which all devices of the process do for an hour."""

    def train(self, params, task):
        if str(task.round) == os.environ.get(STUCK):
            time.sleep(3600.0)
        new, num_examples, metrics = super().train(params, task)
        return parts(new, task.seed) if "parts" in task.config else new, num_examples, metrics


class MuteLearner(Learner):
    """Trains, and returns no tensors."""

    def train(self, params, task):
        _, num_examples, metrics = super().train(params, task)
        return {}, num_examples, metrics


def reseed(run_seed):
    """Give each task of a device SITE.NAME the seed of SITE/NAME."""
    read = task_queue.task_from_message

    def reseeded(offer, client):
        offer.seed = task_seed(run_seed, offer.key.round, client.replace(".", "/"))
        return read(offer, client)

    task_queue.task_from_message = reseeded


async def main(run_seed, site, paths):
    agents = []
    if site == "-":
        reseed(run_seed)
    for path in map(Path, paths):
        own = path.parent.name
        name = own.replace(".", "/") if site == "-" else f"{site}/{own}"
        made = MuteLearner if name.endswith("/mute") else Learner
        device = made(gradient, examples(name), examples(f"{name}/held out"), None, None)
        agents.append(Agent(device, load(path)).run())
    await asyncio.gather(*agents)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
