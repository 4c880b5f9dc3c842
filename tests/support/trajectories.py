"""Client rules, local optimizers and own models from their papers, in NumPy, beside a simulation.

Client i has the loss ½·Σ a_i·(w - c_i)². All examples of a client are equal, so that neither the
order nor the size of batches matters; their number determines the client's steps.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import nn

from fedloom.simulation import config
from fedloom.simulation.data.population import Examples, Population, numbered
from fedloom.simulation.experiment import EngineSettings, Experiment, run_spec
from fedloom.strategies import registry

RATE, SIZES, BATCH, EPOCHS, ROUNDS = 0.05, (3, 9, 17, 6), 4, 2, 5
STEPS = [EPOCHS * -(-size // BATCH) for size in SIZES]
WEIGHTS = np.array(SIZES) / sum(SIZES)

OPTIMIZERS = {
    "default": {},
    "sgd": {"name": "sgd"},
    "momentum": {"name": "sgd", "momentum": 0.9},
    "dampened": {"name": "sgd", "momentum": 0.5, "dampening": 0.5},
    "nesterov": {"name": "sgd", "momentum": 0.8, "nesterov": True},
    "decay": {"name": "sgd", "weight_decay": 0.2},
    "decay and momentum": {"name": "sgd", "weight_decay": 0.2, "momentum": 0.9},
    "adam": {"name": "adam"},
    "rmsprop": {"name": "rmsprop"},
    "adamw": {"name": "adamw", "weight_decay": 0.1},
}
PLAIN, LINEAR = list(OPTIMIZERS)[:2], list(OPTIMIZERS)[:7]
RULES = {
    "fedavg": list(OPTIMIZERS),
    "fedprox": list(OPTIMIZERS),
    "scaffold": LINEAR,
    "feddyn": list(OPTIMIZERS),
    "fednova": LINEAR,
    "mimelite": PLAIN,
    "qfedavg": PLAIN,
    "ifca": list(OPTIMIZERS),
    "ditto": list(OPTIMIZERS),
    "apfl": list(OPTIMIZERS),
}
"""The optimizers that each accepts."""
TABLES = {
    "fedprox": {"rule": {"name": "fedprox", "mu": 0.3}},
    "scaffold": {"strategy": {"name": "scaffold", "clients": 5, "server_learning_rate": 0.8}},
    "feddyn": {"strategy": {"name": "feddyn", "alpha": 0.2, "clients": 5}},
    "fednova": {"strategy": {"name": "fednova", "server_learning_rate": 0.8}},
    "mimelite": {"strategy": {"name": "mimelite", "momentum": 0.7}},
    "qfedavg": {"strategy": {"name": "qfedavg", "q": 0.5}},
    "ifca": {"strategy": {"name": "ifca", "clusters": 2, "spread": 1.0}},
    "ditto": {"personal": {"name": "ditto", "pull": 0.4}},
    "apfl": {"personal": {"name": "apfl", "mix": 0.3, "mix_learning_rate": 0.05}},
}


@dataclass(frozen=True)
class Problem:
    """The clients' losses.

    Attributes:
        a: curvatures, shape (4, ...).
        c: optima, likewise.
        start: the first model.
    """

    a: np.ndarray
    c: np.ndarray
    start: np.ndarray

    def grad(self, i, w):
        return self.a[i] * (w - self.c[i])

    def loss(self, i, w):
        return 0.5 * float((self.a[i] * (w - self.c[i]) ** 2).sum())


# ---- optimizers, from their papers ---------------------------------------------------------------


@dataclass
class Descent:
    """Gradient descent with momentum as torch.optim documents it."""

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    b: np.ndarray | None = None

    def step(self, w, g):
        g = g + self.weight_decay * w
        first = self.b is None
        self.b = g if first else self.momentum * self.b + (1 - self.dampening) * g
        return w - RATE * (g + self.momentum * self.b if self.nesterov else self.b)

    def weights(self, count):
        """The weight of each of so many gradients in the update: powers of the momentum."""
        rho, found = self.momentum, []
        for k in range(count):
            enters = 1.0 if k == 0 else 1 - self.dampening
            later = sum(rho**n for n in range(count - k))
            found.append(enters * (rho * later if self.nesterov else later))
            found[-1] += 1.0 if self.nesterov else 0.0
        return np.array(found)


@dataclass
class Adam:
    """Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm 2."""

    weight_decay: float = 0.0
    m: float = 0.0
    v: float = 0.0
    t: int = 0

    def step(self, w, g):
        self.t += 1
        w = w - RATE * self.weight_decay * w
        self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g**2
        m, v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        return w - RATE * m / (np.sqrt(v) + 1e-8)


@dataclass
class RmsProp:
    """Tieleman and Hinton 2012, lecture 6.5."""

    v: float = 0.0

    def step(self, w, g):
        self.v = 0.99 * self.v + 0.01 * g**2
        return w - RATE * g / (np.sqrt(self.v) + 1e-8)


def optimizer(name):
    settings = {k: v for k, v in OPTIMIZERS[name].items() if k != "name"}
    made = {"adam": Adam, "adamw": Adam, "rmsprop": RmsProp}
    return made.get(OPTIMIZERS[name].get("name"), Descent)(**settings)


# ---- rules, from their papers --------------------------------------------------------------------


@dataclass
class World:
    """A federation in NumPy: after each round `w`, and the mean loss that clients measure first.

    Attributes:
        problem: the clients' losses.
        optimizer: a name of `OPTIMIZERS`.
        wire: (client, values, group) → what arrives of values that a client sends.
    """

    problem: Problem
    optimizer: str
    wire: Callable = lambda i, values, group: values
    losses: list = field(default_factory=list)

    def __post_init__(self):
        self.w = self.problem.start.astype(np.float64)
        self.c, self.h, self.m = (np.zeros_like(self.w) for _ in range(3))
        self.own_c, self.own_h = (np.zeros_like(self.problem.a) for _ in range(2))
        self.other = self.own = self.mix = None

    def sent(self, i, values, group="delta"):
        return self.wire(i, values, group)

    def train(self, i, w, direction=lambda g, w: g):
        """The parameters after a client's steps from w."""
        made = optimizer(self.optimizer)
        for _ in range(STEPS[i]):
            w = made.step(w, direction(self.problem.grad(i, w), w))
        return w

    def weights(self, i):
        return optimizer(self.optimizer).weights(STEPS[i])

    def averaged(self, train):
        """FedAvg's step with the updates of this training, which begins at w."""
        at = self.w
        return at + sum(p * self.sent(i, train(i, at) - at) for i, p in enumerate(WEIGHTS))

    def measure(self, models):
        self.losses.append(float(np.mean([self.problem.loss(i, m) for i, m in enumerate(models)])))

    def fedavg(self):
        self.measure([self.w] * 4)
        self.w = self.averaged(self.train)

    def fedprox(self):
        """Li et al. 2020, equation 2."""
        self.measure([self.w] * 4)
        at = self.w
        pulled = partial(self.train, direction=lambda g, w: g + 0.3 * (w - at))
        self.w = self.averaged(pulled)

    def scaffold(self):
        """Karimireddy et al. 2020, algorithm 1; the new c_i are means of gradients, as option II.

        Weighted as the optimizer weights them; weight decay is a part of the loss.
        """
        self.measure([self.w] * 4)
        at, c, new = self.w, self.c, self.own_c.copy()
        decay = getattr(optimizer(self.optimizer), "weight_decay", 0.0)
        ends = []
        for i in range(4):
            visited = []

            def direction(g, w, i=i, visited=visited):
                visited.append(g + decay * w)
                return g - self.own_c[i] + c

            ends.append(self.train(i, at, direction))
            a = self.weights(i)
            new[i] = np.tensordot(a, np.array(visited), 1) / a.sum()
        self.w = at + 0.8 * np.mean([self.sent(i, end - at) for i, end in enumerate(ends)], axis=0)
        changes = [self.sent(i, new[i] - self.own_c[i], "control") for i in range(4)]
        self.c = c + 4 / 5 * np.mean(changes, axis=0)
        self.own_c = new

    def feddyn(self):
        """Acar et al. 2021, algorithm 1."""
        self.measure([self.w] * 4)
        at, own = self.w, self.own_h
        ends = [self.train(i, at, lambda g, w, i=i: g - own[i] + 0.2 * (w - at)) for i in range(4)]
        self.own_h = own - 0.2 * (np.array(ends) - at)
        deltas = np.array([self.sent(i, end - at) for i, end in enumerate(ends)])
        self.h = self.h - 0.2 / 5 * deltas.sum(axis=0)
        self.w = at + deltas.mean(axis=0) - self.h / 0.2

    def fednova(self):
        """Wang et al. 2020, equation 6, with τ_eff = Σ p_i·‖a_i‖₁."""
        self.measure([self.w] * 4)
        at, norms = self.w, [self.weights(i).sum() for i in range(4)]
        deltas = [self.sent(i, (self.train(i, at) - at) / n) for i, n in enumerate(norms)]
        mean = sum(p * delta for p, delta in zip(WEIGHTS, deltas, strict=True))
        self.w = at + 0.8 * float(WEIGHTS @ norms) * mean

    def mimelite(self):
        """Karimireddy et al. 2021, algorithm 1 and table 2, momentum."""
        self.measure([self.w] * 4)
        at, m = self.w, self.m
        stirred = partial(self.train, direction=lambda g, w: 0.3 * g + 0.7 * m)
        self.w = self.averaged(stirred)
        grads = [self.sent(i, self.problem.grad(i, at), "gradient") for i in range(4)]
        self.m = 0.3 * sum(p * g for p, g in zip(WEIGHTS, grads, strict=True)) + 0.7 * m

    def qfedavg(self):
        """Li et al. 2020, algorithm 2."""
        self.measure([self.w] * 4)
        at, q, bound = self.w, 0.5, 1 / RATE
        steps = [bound * (at - self.train(i, at)) for i in range(4)]
        scaled = [self.problem.loss(i, at) ** q * step for i, step in enumerate(steps)]
        up = sum(-bound * self.sent(i, -step / bound) for i, step in enumerate(scaled))
        down = sum(
            q * self.problem.loss(i, at) ** (q - 1) * float((step**2).sum())
            + bound * self.problem.loss(i, at) ** q
            for i, step in enumerate(steps)
        )
        self.w = at - up / down

    def ifca(self):
        """Ghosh et al. 2020, algorithm 1, model averaging; weighted by examples."""
        if self.other is None:
            made = registry.strategy(*named_strategy("ifca"))
            self.other = made.init({"w": self.problem.start}, 0).slots["cluster_1"]["w"]
        models = [self.w, self.other]
        chosen = [
            int(np.argmin([self.problem.loss(i, model) for model in models])) for i in range(4)
        ]
        self.measure([models[number] for number in chosen])
        for number, (model, group) in enumerate(zip(models, ("delta", "cluster_1"), strict=True)):
            members = [i for i in range(4) if chosen[i] == number]
            if members:
                mass = sum(SIZES[i] for i in members)
                models[number] = model + sum(
                    SIZES[i] / mass * self.sent(i, self.train(i, model) - model, group)
                    for i in members
                )
        self.w, self.other = models

    def ditto(self):
        """Li et al. 2021, algorithm 1, one step of v for each of w."""
        at, before = self.w, self.own or [self.w] * 4
        self.measure(before)
        self.own = []
        for i, v in enumerate(before):
            made = optimizer(self.optimizer)
            for _ in range(STEPS[i]):
                v = made.step(v, self.problem.grad(i, v) + 0.4 * (v - at))  # noqa: PLW2901
            self.own.append(v)
        self.w = self.averaged(self.train)

    def apfl(self):
        """Deng et al. 2020, algorithm 1 and equation 10."""
        at, before, mixes = self.w, self.own or [self.w] * 4, self.mix or [0.3] * 4
        self.measure([a * v + (1 - a) * at for a, v in zip(mixes, before, strict=True)])
        self.own, self.mix, ends = [], [], []
        for i, (v, a) in enumerate(zip(before, mixes, strict=True)):
            w, of_v, of_w = at, optimizer(self.optimizer), optimizer(self.optimizer)
            for _ in range(STEPS[i]):
                g = self.problem.grad(i, a * v + (1 - a) * w)
                slope = float(((v - w) * g).sum())
                v, w = of_v.step(v, a * g), of_w.step(w, self.problem.grad(i, w))  # noqa: PLW2901
                a = min(1.0, max(0.0, a - 0.05 * slope))  # noqa: PLW2901
            self.own.append(v)
            self.mix.append(a)
            ends.append(w)
        self.w = at + sum(p * self.sent(i, ends[i] - at) for i, p in enumerate(WEIGHTS))


# ---- the same in fedloom -------------------------------------------------------------------------


class Point(nn.Module):
    """The parameters themselves, for each example."""

    def __init__(self, start):
        super().__init__()
        self.w = nn.Parameter(torch.from_numpy(start.copy()))

    def forward(self, x):
        return self.w.flatten().expand(len(x), self.w.numel())


def quadratic(output, target):
    """The mean of the examples' losses."""
    a, c = target.to(output.dtype).chunk(2, dim=1)
    return 0.5 * (a * (output - c) ** 2).sum(dim=1).mean()


def population(problem):
    """With one more example of each client to measure on."""
    rows = [np.r_[a.ravel(), c.ravel()] for a, c in zip(problem.a, problem.c, strict=True)]
    y = np.concatenate([np.tile(row, (n + 1, 1)) for row, n in zip(rows, SIZES, strict=True)])
    stops = np.cumsum(np.array(SIZES) + 1)
    shards = [np.arange(b - n, b) for n, b in zip(SIZES, stops, strict=True)]
    return Population(
        examples=Examples(x=np.zeros((len(y), 1), np.float32), y=y),
        names=numbered(4),
        shards=shards,
        held_out_shards=[np.array([b - n - 1]) for n, b in zip(SIZES, stops, strict=True)],
    )


def named_strategy(rule):
    settings = dict(TABLES[rule]["strategy"])
    return settings.pop("name"), settings


def experiment(problem, rule, name, **tables):
    """The simulation of the same federation; `tables` are further ones of the run."""
    return Experiment(
        population=population(problem),
        model=partial(Point, problem.start),
        loss=quadratic,
        optimizer=config._optimizer(dict(OPTIMIZERS[name])),
        spec=run_spec(
            {
                "rounds": ROUNDS,
                "cohort": {"goal": 4},
                "train": {"epochs": EPOCHS, "batch_size": BATCH, "learning_rate": RATE},
                **TABLES.get(rule, {}),
                **tables,
            }
        ),
        engine=EngineSettings(workers=1, kernel="resident", device="cpu"),
        test_every=0,
    )
