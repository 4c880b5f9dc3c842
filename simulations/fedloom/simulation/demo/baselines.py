"""What the federated model is compared with: the same training on all data, and on each shard.

Everything is as in the federated run: the same initial weights, gradient descent, learning rate and
batch size, and as many passes over the data (rounds times local epochs). Only who holds what
differs. The centralised model is what could be had if all data could be in one place; each client
alone is what it has without the others. Both are measured on the whole held-out set.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

import torch
from torch.nn import functional

from fedloom.client import Kind, Task, Weighting
from fedloom.client.torch import TorchClient, parameters
from fedloom.simulation.demo.model import build
from fedloom.simulation.demo.settings import DemoSettings
from fedloom.simulation.demo.shards import Federation
from fedloom.simulation.seeds import stream
from fedloom.simulation.sources.shards import Dataset
from fedloom.strategies import RoundSettings, client_rule

CENTRALISED = "centralised"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baselines:
    """Accuracies on the whole held-out set.

    Attributes:
        centralised: after the passes of each round.
        alone: of each client's own model at the end, by name.
    """

    centralised: tuple[float, ...]
    alone: dict[str, float]


def measure(
    federation: Federation,
    settings: DemoSettings,
    *,
    num_processes: int = 2,
    progress: Callable[[str, float], None] = lambda _name, _accuracy: None,
) -> Baselines:
    """Train all baselines, several at a time.

    Args:
        federation: the data.
        settings: as of the federated run.
        num_processes: how many to train at a time; 1 trains in this process.
        progress: called with a name and an accuracy as each is done.
    """
    found: dict[str, tuple[float, ...]] = {}
    for name, accuracies in _trained(federation, settings, num_processes):
        found[name] = accuracies
        progress(name, accuracies[-1])
    alone = {shard.client: found[shard.client][-1] for shard in federation.shards}
    return Baselines(centralised=found[CENTRALISED], alone=alone)


def train(
    name: str, own: Dataset, held_out: Dataset, settings: DemoSettings, *, each_round: bool
) -> tuple[str, tuple[float, ...]]:
    """Train one model on one set.

    Args:
        name: seeds the order of the examples, with the settings' seed.
        own: what to train on.
        held_out: what to measure accuracy on.
        settings: as of the federated run.
        each_round: measure after each round's passes, not at the end alone.

    Returns:
        The name, and the accuracies that were measured, in order.
    """
    model = build(own.image_shape, own.num_classes, seed=settings.seed)
    client = TorchClient(model, tensors(own), functional.cross_entropy, evaluate=tensors(held_out))
    accuracies = []
    for round_ in range(1, settings.rounds + 1):
        task = training_task(name, round_, settings)
        client.train(parameters(model), task)
        if each_round or round_ == settings.rounds:
            accuracies.append(client.evaluate(parameters(model), task)[1]["accuracy"])
    return name, tuple(accuracies)


def training_task(name: str, round_: int, settings: DemoSettings) -> Task:
    """What a client of this name would be asked in this round."""
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


def tensors(dataset: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    """A data set as torch tensors that share its memory."""
    return torch.from_numpy(dataset.x), torch.from_numpy(dataset.y)


def _trained(
    federation: Federation, settings: DemoSettings, num_processes: int
) -> Iterator[tuple[str, tuple[float, ...]]]:
    # The centralised model takes as long as all the others together: it goes first.
    sets = {CENTRALISED: federation.train}
    sets |= {shard.client: shard.train for shard in federation.shards}
    if num_processes == 1:
        for name, own in sets.items():
            each_round = name == CENTRALISED
            yield train(name, own, federation.held_out, settings, each_round=each_round)
        return
    # Spawned, not forked: this process may hold threads of torch or grpc.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        futures = [
            pool.submit(
                train, name, own, federation.held_out, settings, each_round=name == CENTRALISED
            )
            for name, own in sets.items()
        ]
        for future in as_completed(futures):
            yield future.result()
