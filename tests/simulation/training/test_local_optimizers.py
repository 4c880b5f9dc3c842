"""Every client rule with every local optimizer: the papers' trajectories in NumPy, or a refusal.

Client i has the loss ½·Σ a_i·(w - c_i)². All examples of a client are equal, so that neither the
order nor the size of batches matters; their number determines the client's steps.
"""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedloom.client.torch import TorchClient
from fedloom.protocol.errors import UsageError
from fedloom.simulation import config
from fedloom.simulation.api import simulate
from fedloom.simulation.data.population import Examples, Population, numbered
from fedloom.simulation.experiment import EngineSettings, Experiment, run_spec
from fedloom.strategies import registry
from support.tasks import task

RATE, SIZES, BATCH, EPOCHS, ROUNDS = 0.05, (3, 9, 17, 6), 4, 2, 5
STEPS = [EPOCHS * -(-size // BATCH) for size in SIZES]
_RNG = np.random.default_rng(3)
A, C = _RNG.uniform(0.5, 2.0, (4, 3)), _RNG.uniform(-2.0, 2.0, (4, 3))
START = np.array([0.3, -0.2, 0.1])
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
PAIRS = [(rule, optimizer) for rule in RULES for optimizer in OPTIMIZERS]


def grad(i, w):
    return A[i] * (w - C[i])


def loss(i, w):
    return 0.5 * float((A[i] * (w - C[i]) ** 2).sum())


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
    """A federation in NumPy: after each round `w`, and the mean loss that clients measure first."""

    optimizer: str
    w: np.ndarray = field(default_factory=START.copy)
    losses: list = field(default_factory=list)

    def train(self, i, w, direction=lambda g, w: g):
        """The parameters after a client's steps from w."""
        made = optimizer(self.optimizer)
        for _ in range(STEPS[i]):
            w = made.step(w, direction(grad(i, w), w))
        return w

    def weights(self, i):
        return optimizer(self.optimizer).weights(STEPS[i])

    def measure(self, models):
        self.losses.append(float(np.mean([loss(i, m) for i, m in enumerate(models)])))

    def fedavg(self):
        self.measure([self.w] * 4)
        self.w = sum(p * self.train(i, self.w) for i, p in enumerate(WEIGHTS))

    def fedprox(self):
        """Li et al. 2020, equation 2."""
        self.measure([self.w] * 4)
        at = self.w
        pulled = partial(self.train, direction=lambda g, w: g + 0.3 * (w - at))
        self.w = sum(p * pulled(i, at) for i, p in enumerate(WEIGHTS))

    c = np.zeros(3)
    own_c = np.zeros((4, 3))

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
            new[i] = (a[:, None] * np.array(visited)).sum(axis=0) / a.sum()
        self.w = at + 0.8 * (np.mean(ends, axis=0) - at)
        self.c = c + 4 / 5 * (new - self.own_c).mean(axis=0)
        self.own_c = new

    h = np.zeros(3)
    own_h = np.zeros((4, 3))

    def feddyn(self):
        """Acar et al. 2021, algorithm 1."""
        self.measure([self.w] * 4)
        at, own = self.w, self.own_h
        ends = [self.train(i, at, lambda g, w, i=i: g - own[i] + 0.2 * (w - at)) for i in range(4)]
        self.own_h = own - 0.2 * (np.array(ends) - at)
        self.h = self.h - 0.2 / 5 * (np.array(ends) - at).sum(axis=0)
        self.w = np.mean(ends, axis=0) - self.h / 0.2

    def fednova(self):
        """Wang et al. 2020, equation 6, with τ_eff = Σ p_i·‖a_i‖₁."""
        self.measure([self.w] * 4)
        at, norms = self.w, [self.weights(i).sum() for i in range(4)]
        ends = [self.train(i, at) for i in range(4)]
        mean = sum(p * (end - at) / n for p, end, n in zip(WEIGHTS, ends, norms, strict=True))
        self.w = at + 0.8 * float(WEIGHTS @ norms) * mean

    m = np.zeros(3)

    def mimelite(self):
        """Karimireddy et al. 2021, algorithm 1 and table 2, momentum."""
        self.measure([self.w] * 4)
        at, m = self.w, self.m
        stirred = partial(self.train, direction=lambda g, w: 0.3 * g + 0.7 * m)
        self.w = sum(p * stirred(i, at) for i, p in enumerate(WEIGHTS))
        self.m = 0.3 * sum(p * grad(i, at) for i, p in enumerate(WEIGHTS)) + 0.7 * m

    def qfedavg(self):
        """Li et al. 2020, algorithm 2."""
        self.measure([self.w] * 4)
        at, q, bound = self.w, 0.5, 1 / RATE
        steps = [bound * (at - self.train(i, at)) for i in range(4)]
        up = sum(loss(i, at) ** q * step for i, step in enumerate(steps))
        down = sum(
            q * loss(i, at) ** (q - 1) * float(step @ step) + bound * loss(i, at) ** q
            for i, step in enumerate(steps)
        )
        self.w = at - up / down

    other: np.ndarray | None = None

    def ifca(self):
        """Ghosh et al. 2020, algorithm 1, model averaging; weighted by examples."""
        if self.other is None:
            made = registry.strategy(*named_strategy("ifca"))
            self.other = made.init({"w": START}, 0).slots["cluster_1"]["w"]
        models = [self.w, self.other]
        chosen = [int(np.argmin([loss(i, model) for model in models])) for i in range(4)]
        self.measure([models[number] for number in chosen])
        for number, model in enumerate(models):
            members = [i for i in range(4) if chosen[i] == number]
            if members:
                mass = sum(SIZES[i] for i in members)
                models[number] = sum(SIZES[i] / mass * self.train(i, model) for i in members)
        self.w, self.other = models

    own: list | None = None

    def ditto(self):
        """Li et al. 2021, algorithm 1, one step of v for each of w."""
        at, before = self.w, self.own or [self.w] * 4
        self.measure(before)
        self.own = []
        for i, v in enumerate(before):
            made = optimizer(self.optimizer)
            for _ in range(STEPS[i]):
                v = made.step(v, grad(i, v) + 0.4 * (v - at))  # noqa: PLW2901
            self.own.append(v)
        self.w = sum(p * self.train(i, at) for i, p in enumerate(WEIGHTS))

    mix: list | None = None

    def apfl(self):
        """Deng et al. 2020, algorithm 1 and equation 10."""
        at, before, mixes = self.w, self.own or [self.w] * 4, self.mix or [0.3] * 4
        self.measure([a * v + (1 - a) * at for a, v in zip(mixes, before, strict=True)])
        self.own, self.mix, ends = [], [], []
        for i, (v, a) in enumerate(zip(before, mixes, strict=True)):
            w, of_v, of_w = at, optimizer(self.optimizer), optimizer(self.optimizer)
            for _ in range(STEPS[i]):
                g = grad(i, a * v + (1 - a) * w)
                slope = float((v - w) @ g)
                v, w = of_v.step(v, a * g), of_w.step(w, grad(i, w))  # noqa: PLW2901
                a = min(1.0, max(0.0, a - 0.05 * slope))  # noqa: PLW2901
            self.own.append(v)
            self.mix.append(a)
            ends.append(w)
        self.w = sum(p * end for p, end in zip(WEIGHTS, ends, strict=True))


# ---- the same in fedloom -------------------------------------------------------------------------


class Point(nn.Module):
    """The parameters themselves, for each example."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.from_numpy(START.copy()))

    def forward(self, x):
        return self.w.expand(len(x), 3)


def quadratic(output, target):
    """The mean of the examples' losses."""
    a, c = target.double().chunk(2, dim=1)
    return 0.5 * (a * (output - c) ** 2).sum(dim=1).mean()


def population():
    """With one more example of each client to measure on."""
    y = np.concatenate([np.tile(np.r_[A[i], C[i]], (n + 1, 1)) for i, n in enumerate(SIZES)])
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


def experiment(rule, name):
    table = OPTIMIZERS[name]
    return Experiment(
        population=population(),
        model=Point,
        loss=quadratic,
        optimizer=config._optimizer(dict(table)),
        spec=run_spec(
            {
                "rounds": ROUNDS,
                "cohort": {"goal": 4},
                "train": {"epochs": EPOCHS, "batch_size": BATCH, "learning_rate": RATE},
                **TABLES.get(rule, {}),
            }
        ),
        engine=EngineSettings(workers=1, kernel="resident", device="cpu"),
        test_every=0,
    )


@pytest.mark.parametrize(("rule", "name"), [p for p in PAIRS if p[1] in RULES[p[0]]])
def test_the_trajectory_is_the_papers(rule, name):
    """Five rounds: the models, and what clients measure of them, to 1e-6."""
    world = World(name)
    for _ in range(ROUNDS):
        getattr(world, rule)()
    result = simulate(experiment(rule, name), show=False)
    np.testing.assert_allclose(result.params["w"], world.w, rtol=0, atol=1e-6)
    measured = [r.evaluation["loss"] for r in result.records if r.kind == "train"]
    np.testing.assert_allclose(measured, world.losses, rtol=1e-6)
    assert np.abs(world.w - START).max() > 0.05


@pytest.mark.parametrize(("rule", "name"), [p for p in PAIRS if p[1] not in RULES[p[0]]])
def test_another_optimizer_is_refused_with_both_names(rule, name):
    """When the experiment is built; and by a client, whose code chooses the optimizer."""
    kind = {"adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop"}.get(name, "SGD with")
    message = f"with the client rule {rule}, which .*, got {kind}"
    with pytest.raises(UsageError, match=message):
        experiment(rule, name)
    client = TorchClient(
        Point(),
        (torch.zeros(4, 1), torch.from_numpy(np.tile(np.r_[A[0], C[0]], (4, 1)))),
        quadratic,
        optimizer=config._optimizer(dict(OPTIMIZERS[name])),
    )
    strategy = registry.strategy(*named_strategy(rule))
    with pytest.raises(UsageError, match=message):
        client.train({"w": START.copy()}, task(rule=strategy.rule))
