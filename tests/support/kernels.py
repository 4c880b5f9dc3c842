"""Small populations, tasks and models for tests of kernels."""

import numpy as np
import torch
from torch import nn

from fedloom.client import Kind, Task, Weighting
from fedloom.client.torch import TorchClient, augment, parameters
from fedloom.simulation.data.population import Examples, Population, numbered
from fedloom.simulation.kernels.base import ClientJob, RoundTask
from fedloom.strategies import Plain, RoundSettings

CPU = torch.device("cpu")
SIZES = (23, 20, 7, 41)


def population(
    *,
    shape=(12,),
    sizes=SIZES,
    classes=4,
    dtype=np.float32,
    held_out=True,
    places=(),
    tokens=False,
    transform=None,
):
    """Clients of unequal sizes; targets are class numbers at each place."""
    rng = np.random.default_rng(0)
    total = sum(sizes)
    x = (
        rng.integers(0, classes, (total, *shape))
        if tokens
        else rng.standard_normal((total, *shape))
    )
    y = rng.integers(0, classes, (total, *places))
    shards = np.split(rng.permutation(total), np.cumsum(sizes)[:-1])
    test = Examples(x=(x[:30] if tokens else x[:30].astype(dtype)), y=y[:30])
    return Population(
        examples=Examples(x=x if tokens else x.astype(dtype), y=y),
        names=numbered(len(sizes)),
        shards=shards,
        held_out_shards=[shard[: i * 3] for i, shard in enumerate(shards)] if held_out else None,
        test=test,
        num_classes=classes,
        transform=None if transform is None else augment.Pipeline.of(transform),
    )


def task(*, rule=None, evaluate=False, train=True, weighting=Weighting.EXAMPLES, **settings):
    """A round's task: one epoch in batches of 5."""
    defaults = {"epochs": 1, "steps": None, "batch_size": 5, "learning_rate": 0.1}
    return RoundTask(
        run="r",
        round=3,
        settings=RoundSettings(**{**defaults, **settings}),
        rule=rule or Plain(),
        evaluate=evaluate,
        train=train,
        weighting=weighting,
    )


def jobs(count=4):
    """One job for each client."""
    return [ClientJob(client, 1000 + client) for client in range(count)]


def seeded(make):
    """A model with weights from seed 0."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def mlp(shape=12, classes=4, activation=nn.ReLU):
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(shape, 16), activation(), nn.Linear(16, 8), activation(), nn.Linear(8, classes)
    )


def received(model):
    """A copy of the model's tensors by name."""
    return {name: np.array(value) for name, value in parameters(model).items()}


def deltas(outcome):
    """An update's differences by name, as float64."""
    return {part.tensor: np.asarray(part.values, np.float64) - part.less for part in outcome.parts}


def values(outcome):
    """A copy of an update's new values by name."""
    return {part.tensor: np.array(part.values) for part in outcome.parts}


def deployed(  # noqa: PLR0917 - a test says what it compares
    model, people, loss, params, round_task, job, *, optimizer=None
):
    """`TorchClient`'s result of the same job: values, examples, metrics and evaluation."""
    examples = people.examples

    def pair(shard):
        return torch.from_numpy(examples.x[shard]), torch.from_numpy(examples.y[shard])

    held_out = people.held_out_shards
    client = TorchClient(
        model,
        pair(people.shards[job.client]),
        loss,
        evaluate=None if held_out is None else pair(held_out[job.client]),
        transform=people.transform,
        **({} if optimizer is None else {"optimizer": optimizer}),
    )
    asked = Task(
        run=round_task.run,
        round=round_task.round,
        kind=Kind.TRAIN,
        settings=round_task.settings,
        rule=round_task.rule,
        config={},
        seed=job.seed,
        deadline_s=60.0,
        weighting=Weighting.EXAMPLES,
    )
    evaluation = client.evaluate(params, asked)
    sent, num_examples, metrics = client.train(params, asked)
    return {name: value.copy() for name, value in sent.items()}, num_examples, metrics, evaluation
