"""Every client rule with every local optimizer: the papers' trajectories in NumPy, or a refusal."""

import numpy as np
import pytest
import torch

from fedloom.client.torch import TorchClient
from fedloom.protocol.errors import UsageError
from fedloom.simulation import config
from fedloom.simulation.api import simulate
from fedloom.strategies import registry
from support.tasks import task
from support.trajectories import (
    OPTIMIZERS,
    ROUNDS,
    RULES,
    Point,
    Problem,
    World,
    experiment,
    named_strategy,
    quadratic,
)

_RNG = np.random.default_rng(3)
PROBLEM = Problem(
    a=_RNG.uniform(0.5, 2.0, (4, 3)),
    c=_RNG.uniform(-2.0, 2.0, (4, 3)),
    start=np.array([0.3, -0.2, 0.1]),
)
PAIRS = [(rule, optimizer) for rule in RULES for optimizer in OPTIMIZERS]


@pytest.mark.long
@pytest.mark.parametrize(("rule", "name"), [p for p in PAIRS if p[1] in RULES[p[0]]])
def test_the_trajectory_is_the_papers(rule, name):
    """Five rounds: the models, and what clients measure of them, to 1e-6."""
    world = World(PROBLEM, name)
    for _ in range(ROUNDS):
        getattr(world, rule)()
    result = simulate(experiment(PROBLEM, rule, name), show=False)
    np.testing.assert_allclose(result.params["w"], world.w, rtol=0, atol=1e-6)
    measured = [r.evaluation["loss"] for r in result.records if r.kind == "train"]
    np.testing.assert_allclose(measured, world.losses, rtol=1e-6)
    assert np.abs(world.w - PROBLEM.start).max() > 0.05


@pytest.mark.parametrize(("rule", "name"), [p for p in PAIRS if p[1] not in RULES[p[0]]])
def test_another_optimizer_is_refused_with_both_names(rule, name):
    """When the experiment is built; and by a client, whose code chooses the optimizer."""
    kind = {"adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop"}.get(name, "SGD with")
    message = f"with the client rule {rule}, which .*, got {kind}"
    with pytest.raises(UsageError, match=message):
        experiment(PROBLEM, rule, name)
    client = TorchClient(
        Point(PROBLEM.start),
        (torch.zeros(4, 1), torch.from_numpy(np.tile(np.r_[PROBLEM.a[0], PROBLEM.c[0]], (4, 1)))),
        quadratic,
        optimizer=config._optimizer(dict(OPTIMIZERS[name])),
    )
    strategy = registry.strategy(*named_strategy(rule))
    with pytest.raises(UsageError, match=message):
        client.train({"w": PROBLEM.start.copy()}, task(rule=strategy.rule))
