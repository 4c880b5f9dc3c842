"""Baselines of the demo: models trained on all data, and on each client's data alone.

All else is as in the federated run: initial weights, gradient descent, learning rate, batch size
and passes over the data (rounds times local epochs). All are tested on the whole held-out set.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional

from fedloom.client import Kind, Task, Weighting
from fedloom.client.torch import TorchClient, parameters
from fedloom.simulation.data.population import Examples, Population
from fedloom.simulation.demo.data import all_held_out, all_training, shape_of, take
from fedloom.simulation.demo.model import build
from fedloom.simulation.demo.settings import DemoSettings
from fedloom.simulation.seeds import stream
from fedloom.strategies import RoundSettings, client_rule

CENTRALISED = "centralised"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baselines:
    """Accuracies on the whole held-out set.

    Attributes:
        centralised: of the centralised model, after the passes of each round.
        alone: of each client's own model at the end, by name.
    """

    centralised: tuple[float, ...]
    alone: dict[str, float]


def measure(
    population: Population,
    settings: DemoSettings,
    *,
    num_processes: int = 2,
    progress: Callable[[str, float], None] = lambda _name, _accuracy: None,
) -> Baselines:
    """Train all baselines, several at a time.

    Args:
        population: the data.
        settings: of the federated run.
        num_processes: models trained at a time; 1 trains in this process.
        progress: called with name and accuracy of each finished model.
    """
    found: dict[str, tuple[float, ...]] = {}
    for name, accuracies in _trained(population, settings, num_processes):
        found[name] = accuracies
        progress(name, accuracies[-1])
    alone = {name: found[name][-1] for name in population.names}
    return Baselines(centralised=found[CENTRALISED], alone=alone)


def train(
    name: str,
    own: Examples,
    held_out: Examples,
    num_classes: int,
    settings: DemoSettings,
    *,
    each_round: bool,
) -> tuple[str, tuple[float, ...]]:
    """Train one model on one set.

    Args:
        name: seeds the order of the examples, with the settings' seed.
        own: training examples.
        held_out: examples to measure accuracy on.
        num_classes: of the model.
        settings: of the federated run.
        each_round: measure after each round's passes, not only at the end.

    Returns:
        The name, and the accuracies in order.
    """
    model = build(own.x.shape[1:], num_classes, seed=settings.seed)
    client = TorchClient(model, tensors(own), functional.cross_entropy, evaluate=tensors(held_out))
    accuracies = []
    for round_ in range(1, settings.rounds + 1):
        task = training_task(name, round_, settings)
        client.train(parameters(model), task)
        if each_round or round_ == settings.rounds:
            accuracies.append(client.evaluate(parameters(model), task)[1]["accuracy"])
    return name, tuple(accuracies)


def training_task(name: str, round_: int, settings: DemoSettings) -> Task:
    """The task of a client of this name in this round."""
    order = stream(settings.seed, f"order/{name}", round_)
    return Task(
        run="demo",
        round=round_,
        kind=Kind.TRAIN,
        settings=RoundSettings(
            epochs=settings.epochs,
            steps=None,
            batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
        ),
        rule=client_rule("plain", {}),
        config={},
        seed=int(order.integers(2**63)),
        deadline_s=float("inf"),
        weighting=Weighting.EXAMPLES,
    )


def tensors(examples: Examples) -> tuple[torch.Tensor, torch.Tensor]:
    """Examples as torch tensors that share their memory."""
    return torch.from_numpy(examples.x), torch.from_numpy(examples.y)


def _trained(
    population: Population, settings: DemoSettings, num_processes: int
) -> Iterator[tuple[str, tuple[float, ...]]]:
    # The centralised model takes as long as all others together, so it is first.
    sets = {CENTRALISED: all_training(population)}
    shards = zip(population.names, population.shards, strict=True)
    sets |= {name: take(population, shard) for name, shard in shards}
    _, num_classes = shape_of(population)
    jobs = [
        partial(
            train, name, own, all_held_out(population), num_classes, settings,
            each_round=name == CENTRALISED,
        )
        for name, own in sets.items()
    ]  # fmt: skip
    if num_processes == 1:
        yield from (job() for job in jobs)
        return
    # Spawned, not forked: this process may have threads of torch or gRPC.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        for future in as_completed([pool.submit(job) for job in jobs]):
            yield future.result()
