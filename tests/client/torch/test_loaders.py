"""A client trains on the examples that torch takes from the same loader, or refuses it by name.

The oracle is torch: its samplers and batch samplers, with the task's seed as random state.
"""

import random
from collections import Counter
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)

from fedloom.client import Kind, Task, Weighting
from fedloom.client.torch import TorchClient, parameters
from fedloom.protocol.errors import UsageError
from fedloom.strategies import Plain, RoundSettings

N, BATCH, SEED = 103, 8, 5
X = torch.arange(N, dtype=torch.float32)[:, None]
Y = torch.zeros(N)
ALL = TensorDataset(X, Y)


class Seen(nn.Module):
    """A linear model that notes which examples it trains on, batch by batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.batches = []

    def forward(self, x):
        if isinstance(x, dict):
            x = x["number"]
        elif not isinstance(x, torch.Tensor):
            x = x.number
        if self.training:
            self.batches.append(x[:, 0].int().tolist())
        return self.layer(x / N)[:, 0]

    def examples(self):
        return list(chain.from_iterable(self.batches))


class Numbered(Dataset):
    """Reads several items at once, as torch's loaders ask for them."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        raise AssertionError("one by one")

    def __getitems__(self, indices):
        return [(X[index], Y[index]) for index in indices]


class Noisy(Dataset):
    """Adds a random number below one to every example."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return X[index] + torch.rand(1) * 0.5 + random.random() * 0.25 + np.random.rand() * 0.2, 0.0  # noqa: NPY002 - the global one


class EverySecond(Sampler):
    """Shuffled by numpy."""

    def __len__(self):
        return N // 2

    def __iter__(self):
        return iter(np.random.permutation(np.arange(0, 2 * (N // 2), 2)).tolist())  # noqa: NPY002 - the global one


class Growing(Sampler):
    """Batches of 1, 2, 3, … examples, until they are 10."""

    def __len__(self):
        return 4

    def __iter__(self):
        order = torch.randperm(N).tolist()
        return iter([order[:1], order[1:3], order[3:6], order[6:10]])


class Stream(IterableDataset):
    def __init__(self, stated=N, real=N, shards=True):
        self.stated, self.real, self.shards = stated, real, shards

    def __len__(self):
        return self.stated

    def __iter__(self):
        worker = get_worker_info() if self.shards else None
        places = range(self.real)
        if worker is not None:
            places = places[worker.id :: worker.num_workers]
        return iter([(X[place], Y[place]) for place in places])


def joined(items):
    """A collate function that marks what it joined."""
    x, y = default_collate(items)
    return x + 0.25, y


def loader(dataset=ALL, **options):
    return DataLoader(dataset, **{"batch_size": BATCH, **options})


def seeded_loader():
    generator = torch.Generator().manual_seed(99)
    return loader(sampler=RandomSampler(ALL, num_samples=50, generator=generator))


KINDS = {
    "in order": loader,
    "shuffled": lambda: loader(shuffle=True),
    "a subset of the data set": lambda: loader(Subset(ALL, range(7, 30)), shuffle=True),
    "two data sets": lambda: loader(ConcatDataset([ALL, Subset(ALL, range(10))])),
    "several items at once": lambda: loader(Numbered()),
    "ten rows of a hundred": lambda: loader(sampler=SubsetRandomSampler(range(10))),
    "weighted": lambda: loader(sampler=WeightedRandomSampler(torch.arange(N).double(), 60)),
    "weighted, each once": lambda: loader(
        sampler=WeightedRandomSampler(torch.ones(N), 60, replacement=False)
    ),
    "with replacement": lambda: loader(sampler=RandomSampler(ALL, replacement=True)),
    "fewer than all": lambda: loader(sampler=RandomSampler(ALL, num_samples=31)),
    "more than all": lambda: loader(sampler=RandomSampler(ALL, replacement=True, num_samples=150)),
    "a generator of its own": seeded_loader,
    "a list of places": lambda: loader(sampler=[5, 3, 3, 80]),
    "a part, in order": lambda: loader(sampler=SequentialSampler(range(20))),
    "a sampler of its own": lambda: loader(sampler=EverySecond()),
    "distributed": lambda: loader(sampler=DistributedSampler(ALL, 3, 1, shuffle=False)),
    "distributed, shuffled": lambda: loader(sampler=DistributedSampler(ALL, 3, 2)),
    "distributed, dropped": lambda: loader(sampler=DistributedSampler(ALL, 3, 2, drop_last=True)),
    "batches in order": lambda: DataLoader(
        ALL, batch_sampler=BatchSampler(SequentialSampler(ALL), 5, drop_last=False)
    ),
    "batches, dropped": lambda: DataLoader(
        ALL, batch_sampler=BatchSampler(RandomSampler(ALL), 5, drop_last=True)
    ),
    "batches of its own": lambda: DataLoader(ALL, batch_sampler=Growing()),
    "dropped, in order": lambda: loader(drop_last=True),
    "dropped, of a sampler": lambda: loader(sampler=[5, 3, 9] * 4, drop_last=True),
    "workers": lambda: loader(num_workers=2),
    "workers and a sampler": lambda: loader(num_workers=2, sampler=SubsetRandomSampler(range(20))),
    "a collate function": lambda: loader(collate_fn=joined, sampler=[1, 2, 3]),
    "a stream": lambda: loader(Stream()),
    "a stream, dropped": lambda: loader(Stream(), drop_last=True),
    "a stream of two workers": lambda: loader(Stream(), num_workers=2),
}
ANY_ORDER = {"shuffled", "a subset of the data set"}
"""Every epoch has all examples, in an order of the task's seed, which is not torch's."""


def task(**settings):
    asked = {"epochs": 2, "steps": None, "batch_size": BATCH, "learning_rate": 0.1} | settings
    return Task(
        run="r",
        round=1,
        kind=Kind.TRAIN,
        settings=RoundSettings(**asked),
        rule=Plain(),
        config={},
        seed=SEED,
        deadline_s=60.0,
        weighting=Weighting.EXAMPLES,
    )


def squares(output, target):
    return ((output - target) ** 2).mean()


def trained(data, client=None, **settings):
    """The batches that a client trains on, and the number that it reports."""
    client = client or TorchClient(Seen(), data, squares)
    client.model.batches.clear()
    _, count, _ = client.train(parameters(client.model), task(**settings))
    return client.model.batches, count


def plain(made, epochs=2):
    """The batches of plain torch, whose random state is the task's seed, epoch by epoch."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002 - the global one
    generator = getattr(made.sampler, "generator", None)
    if generator is not None:
        generator.manual_seed(SEED)
    if isinstance(made.dataset, IterableDataset):
        return [[x[:, 0].int().tolist() for x, _ in made] for _ in range(epochs)]
    found = [list(made.batch_sampler) for _ in range(epochs)]
    numbers = [int(made.dataset.__getitems__([i])[0][0]) if isinstance(made.dataset, Numbered)
               else int(made.dataset[i][0]) for i in range(len(made.dataset))]  # fmt: skip
    return [[[numbers[place] for place in batch] for batch in epoch] for epoch in found]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_client_trains_on_what_torch_takes(kind):
    """Batch by batch; of a shuffled loader, epoch by epoch."""
    expected = plain(KINDS[kind]())
    found, count = trained(KINDS[kind]())
    assert count == len(list(chain.from_iterable(expected[0])))
    if kind in ANY_ORDER:
        half = len(found) // 2
        for epoch, batches in zip((found[:half], found[half:]), expected, strict=True):
            assert [len(batch) for batch in epoch] == [len(batch) for batch in batches]
            assert Counter(chain.from_iterable(epoch)) == Counter(chain.from_iterable(batches))
            assert epoch != batches
    else:
        assert found == list(chain.from_iterable(expected))


def test_a_shuffled_loader_that_drops_drops_the_last_of_an_order():
    """Each epoch has 96 of 103 examples, none twice; over epochs others are dropped."""
    found, count = trained(loader(shuffle=True, drop_last=True), epochs=8)
    assert count == N - N % BATCH
    epochs = [list(chain.from_iterable(found[at : at + 12])) for at in range(0, len(found), 12)]
    assert len(epochs) == 8
    assert all(len(set(epoch)) == len(epoch) == count for epoch in epochs)
    assert len({frozenset(epoch) for epoch in epochs}) > 1


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_is_repeated_trains_on_the_same_batches(kind):
    """Whatever other code does with the global random state, which stays its own."""
    client = TorchClient(Seen(), KINDS[kind](), squares)
    first = [list(batch) for batch in trained(None, client)[0]]
    torch.manual_seed(1234)
    random.seed(1234)
    before = torch.get_rng_state()
    assert [list(batch) for batch in trained(None, client)[0]] == first
    assert torch.equal(torch.get_rng_state(), before)
    found = random.random()
    random.seed(1234)
    assert found == random.random()


@pytest.mark.parametrize(
    "kind", ["ten rows of a hundred", "batches of its own", "workers", "a stream"]
)
def test_a_loader_is_evaluated_as_it_is(kind):
    """Every example once, of those that the loader has; with its own batch size."""
    made = KINDS[kind]()
    client = TorchClient(Seen(), ALL, squares, evaluate=KINDS[kind]())
    count, metrics = client.evaluate(parameters(client.model), task())
    numbers = torch.tensor([float(n) for n in chain.from_iterable(plain(made, 1)[0])])
    with torch.no_grad():
        expected = squares(client.model.layer(numbers[:, None] / N)[:, 0], torch.zeros(1))
    if kind != "batches of its own":  # drawn at random
        assert metrics["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert count == len(numbers)


def test_random_transformations_do_not_depend_on_the_number_of_workers():
    """Nor on the global random state: each batch has its own random numbers."""
    one = noisy(workers=1)
    assert noisy(workers=2) == one
    assert len(set(one)) == N
    assert any(number % 1 for number in one)


def noisy(workers):
    """What a client trains on, of data with random numbers in it."""
    model = Seen()
    model.forward = lambda x: (model.batches.append(x[:, 0].tolist()), model.layer(x / N)[:, 0])[1]
    made = loader(Noisy(), num_workers=workers, shuffle=True)
    trained(None, TorchClient(model, made, squares), epochs=1)
    return model.examples()


@dataclass
class Point:
    number: torch.Tensor


BATCHES = {
    "a dictionary": (
        lambda items: dict(zip(("number", "label"), default_collate(items), strict=True)),
        lambda batch: ({"number": batch["number"]}, batch["label"]),
    ),
    "three tensors": (
        lambda items: (default_collate(items)[0], torch.zeros(1), default_collate(items)[1]),
        lambda batch: (batch[0], batch[2]),
    ),
    "a dataclass": (
        lambda items: (Point(default_collate(items)[0]), default_collate(items)[1]),
        lambda batch: batch,
    ),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_other_batches_are_split_as_the_client_says(kind):
    collate, split = BATCHES[kind]
    client = TorchClient(Seen(), loader(collate_fn=collate), squares, split=split)
    assert trained(None, client)[0] == trained(loader())[0]


def test_batches_that_are_no_pairs_are_refused_without_split():
    collate, _ = BATCHES["a dictionary"]
    client = TorchClient(Seen(), loader(collate_fn=collate), squares)
    with pytest.raises(UsageError, match=r"pairs|inputs, targets\), got dict.*`split`"):
        client.train(parameters(client.model), task())


class Unbounded:
    def __iter__(self):
        return iter(range(N))


class Lying(EverySecond):
    def __len__(self):
        return 10


class OwnLoader(DataLoader):
    def __iter__(self):
        return iter([])


class Endless(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OwnLoader(ALL), "OwnLoader, which has its own __iter__"),
        (lambda: DataLoader(ALL, batch_size=None), "got batch_size=None"),
        (lambda: loader(sampler=Unbounded()), "a length, got Unbounded"),
        (lambda: loader(sampler=Lying()), "Expected 10 items of Lying.*got more"),
        (lambda: loader(Endless()), "got Endless: give it __len__"),
        (
            lambda: loader(Stream(stated=90)),
            "Expected 90 examples of Stream in 12 batches.*got more",
        ),
        (lambda: loader(Stream(real=90)), "Expected 103 examples of Stream.*got 90 in 12"),
        (lambda: loader(Stream(shards=False), num_workers=2), "103 examples of Stream.*got more"),
        (lambda: loader(sampler=[1, 2], drop_last=True), "drop_last drops a batch of less than 8"),
        (lambda: loader(Stream(5, 5), drop_last=True), "a batch of examples of Stream, got 5"),
        (lambda: loader(sampler=[]), "at least one example"),
    ],
)
def test_a_loader_that_cannot_be_used_as_it_is_is_refused_by_name(make, message):
    with pytest.raises(UsageError, match=message):
        trained(make())


def test_the_size_of_batches_is_the_runs_and_said_once(caplog):
    client = TorchClient(Seen(), loader(batch_size=5), squares)
    for _ in range(2):
        found, _ = trained(None, client)
        assert [len(batch) for batch in found[:2]] == [BATCH, BATCH]
    assert [record.getMessage() for record in caplog.records] == [
        "the run's batch size, 8, replaces the loader's, 5"
    ]


@pytest.mark.long
def test_an_optimizer_that_needs_a_closure_is_refused():
    client = TorchClient(Seen(), ALL, squares, optimizer=torch.optim.LBFGS)
    with pytest.raises(UsageError, match="got LBFGS, which needs closure"):
        client.train(parameters(client.model), task())
