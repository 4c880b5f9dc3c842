"""Clients whose evaluations follow a curve, in a simulation and as a device's process.

Usage: curve_client.py CONFIG [CONFIG ...].
"""

import asyncio
import sys
from pathlib import Path

import numpy as np
import torch

from fedloom.client import Agent, Client
from fedloom.client.config import load


class CurveClient(Client):
    """Adds 1 to every value, so a model's first value counts the rounds that made it.

    The run's `config.curve` holds what the models evaluate to, in order, as `5 nan - 3.5`; `-`
    stands for a client that does not report the metric.
    """

    def __init__(self, _name=""):
        pass

    def train(self, params, task):
        return {name: value + np.float32(1) for name, value in params.items()}, 1, {"loss": 0.0}

    def evaluate(self, params, task):
        measured = task.config["curve"].split()[round(float(params["w"].flat[0]))]
        found = {} if measured == "-" else {task.config["metric"]: float(measured)}
        return 4, {"other": 1.0, **found}


class Counter(torch.nn.Module):
    """A model of the tensor `w`, all zeros."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(4))


def settings(curve, **best):
    """A run of as many rounds as the curve has models, whose two clients follow it."""
    return {
        "rounds": len(curve.split()) - 1,
        "evaluate": True,
        "cohort": {"goal": 2, "quorum": 2, "deadline_s": 3600.0, "patience_s": 3600.0},
        "train": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
        "config": {"curve": curve, "metric": best.get("metric", "loss")},
        "best": best,
    }


async def main(paths):
    await asyncio.gather(*[Agent(CurveClient(), load(Path(path))).run() for path in paths])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
