"""What every simulator is given in simulation.py: networks, data, local training, and a gate.

Imported by each system's own interpreter, so it needs numpy and torch alone. Each process computes
with one thread.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

BATCH = 10
LEARNING_RATE = 0.1
CLASSES = 10
SEED = 1
FOREVER = 1_000_000
"""Rounds: the gate ends a simulation."""


def two_nn():
    """784-200-200-10 of McMahan et al. 2017: 199,210 parameters."""
    return nn.Sequential(
        nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, CLASSES)
    )


def cnn():
    """The CNN of McMahan et al. 2017: 1,663,370 parameters."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 512),
        nn.ReLU(),
        nn.Linear(512, CLASSES),
    )


class Residual(nn.Module):
    """Two convolutions with GroupNorm, and a way around them."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.GroupNorm(2, after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.GroupNorm(2, after),
        )
        self.around = nn.Identity()
        if stride != 1 or before != after:
            conv = nn.Conv2d(before, after, 1, stride, bias=False)
            self.around = nn.Sequential(conv, nn.GroupNorm(2, after))

    def forward(self, x):
        return torch.relu(self.body(x) + self.around(x))


def resnet18():
    """ResNet-18 for images of 32 × 32 with GroupNorm of 2 groups, as federated papers have it.

    He et al. 2016 with a first convolution of 3 × 3; Hsieh et al. 2020 for the GroupNorm.
    """
    widths = (64, 64), (64, 128), (128, 256), (256, 512)
    blocks = [
        block
        for before, after in widths
        for block in (Residual(before, after, after // before), Residual(after, after, 1))
    ]
    first = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.GroupNorm(2, 64), nn.ReLU()
    last = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES)
    return nn.Sequential(nn.Unflatten(1, (3, 32, 32)), *first, *blocks, *last)


def tiny():
    """110 parameters."""
    return nn.Linear(10, CLASSES)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One workload.

    Attributes:
        network: makes the untrained model.
        clients: in the population.
        examples: that each of them holds.
        cohort: clients a round.
        rounds: between two changes from one system to another.
        trains: False for clients that return what they get.
        width: values of an example.
    """

    network: object
    clients: int
    examples: int
    cohort: int
    rounds: int
    trains: bool = True
    width: int = 784

    def model(self):
        """The initial model, the same in every process."""
        torch.manual_seed(SEED)
        return self.network()

    def data(self):
        """All clients' examples: x float32 (clients, examples, 784), y int64 (clients, examples).

        Inputs are uniform from 0 to 1, classes follow from a random linear map of them.
        """
        generator = np.random.default_rng(SEED)
        x = generator.random((self.clients * self.examples, self.width), dtype=np.float32)
        classify = generator.standard_normal((self.width, CLASSES), dtype=np.float32)
        y = (x @ classify - classify.sum(axis=0) / 2).argmax(axis=1)
        shape = self.clients, self.examples
        return torch.from_numpy(x.reshape(*shape, self.width)), torch.from_numpy(y.reshape(shape))


TASKS = {
    "2NN, 10 a round": Task(network=two_nn, clients=100, examples=600, cohort=10, rounds=3),
    "2NN, 100 a round": Task(network=two_nn, clients=100, examples=600, cohort=100, rounds=1),
    "CNN, 60 examples": Task(network=cnn, clients=100, examples=60, cohort=10, rounds=2),
    "CNN, 600 examples": Task(network=cnn, clients=100, examples=600, cohort=10, rounds=1),
    "no-op, 110 values": Task(
        network=tiny, clients=1000, examples=1, cohort=100, rounds=3, trains=False, width=10
    ),
    "no-op, 2NN": Task(
        network=two_nn, clients=1000, examples=1, cohort=100, rounds=3, trains=False
    ),
    "1,000 clients a round": Task(network=two_nn, clients=1000, examples=60, cohort=1000, rounds=1),
}


GPU_TASKS = {
    "2NN, 100 a round": TASKS["2NN, 100 a round"],
    "CNN, 60 examples": TASKS["CNN, 60 examples"],
    "ResNet-18, 50 a round": Task(
        network=resnet18, clients=1000, examples=50, cohort=50, rounds=1, width=3072
    ),
}
"""Of gpu.py; the last as in pfl-research's benchmark: 50 clients a round, 50 examples each."""

QUICK_TASKS = {
    "2NN, quick": Task(network=two_nn, clients=4, examples=20, cohort=4, rounds=1),
    "CNN, quick": Task(network=cnn, clients=2, examples=20, cohort=2, rounds=1),
    "ResNet-18, quick": Task(
        network=resnet18, clients=2, examples=2, cohort=2, rounds=1, width=3072
    ),
}
ALL_TASKS = TASKS | GPU_TASKS | QUICK_TASKS

DEVICE = os.environ.get("SIMULATION_DEVICE", "cpu")
"""Where the systems without a choice of their own train."""


def fit(model, x, y):
    """One epoch as everybody writes it, without a DataLoader; x and y are one client's."""
    model, x, y = model.to(DEVICE), x.to(DEVICE), y.to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for batch in torch.randperm(len(y)).to(DEVICE).split(BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()


def loss_of(model, task):
    """Of a model on the first client's examples: whether a system trained at all."""
    x, y = task.data()
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(x[0]), y[0]))


class Gate:
    """Holds a simulation after each round until it may go on, and tells how long the round took.

    Talks over what were stdin and stdout; whatever else prints goes to stderr.
    """

    def __init__(self):
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._went = None

    def __call__(self):
        """Call when a round is done; False: it was the last one."""
        now = time.perf_counter()
        self.tell(seconds=None if self._went is None else now - self._went)
        word = sys.stdin.readline().strip()
        self._went = time.perf_counter()
        return word == "go"

    def tell(self, **found):
        """Send a line to simulation.py."""
        self._out.write(json.dumps(found) + "\n")
        self._out.flush()


def child(doc, *flags):
    """The arguments, task and gate of one system's process.

    Args:
        doc: of its script.
        flags: names of further options that take a word.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--task", choices=ALL_TASKS, default="2NN, 10 a round")
    for flag in flags:
        parser.add_argument(flag)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    return arguments, ALL_TASKS[arguments.task], Gate()
