"""Batches of a data loader as torch takes them: its sampler, workers, collate function, drop_last.

The run's settings replace the batch size, unless the loader has a batch sampler, and the task's
seed replaces the random state. Everything else is the loader's: which examples an epoch has, also
repeatedly, how they are joined, and in which processes. A loader that cannot be used in this way is
refused.

Invariant: the batches depend only on the loader, the batch size and the seed, not on earlier tasks;
those after a resumed training's first are the same as without the interruption.
"""

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from fedloom.client.torch import batches
from fedloom.client.torch.batches import (
    Batch,
    DatasetItems,
    ExampleSource,
    Indices,
    Split,
    joined,
    orders,
    pair,
    tensors,
)
from fedloom.client.training.length import batches_of
from fedloom.protocol.errors import UsageError

log = logging.getLogger(__name__)

_BITS = 1 << 64
_STRIDE = 0x9E3779B97F4A7C15
"""An odd number far from small multiples of 2^64: consecutive batches get unlike seeds."""


Data = batches.Data | DataLoader[Any]
"""Data of one client, or a loader of it."""


def examples(data: Data, split: Split | None = None, *, evaluates: bool = False) -> ExampleSource:
    """Wrap data so that batches can be drawn from it.

    Args:
        data: of one client.
        split: a batch into inputs and targets; None for pairs.
        evaluates: whether a loader's own batch size and `drop_last` hold, as no round sets these.

    Raises:
        UsageError: the data has no length, or a loader cannot be used as it is.
    """
    if isinstance(data, DataLoader):
        return _of(data, split or pair, evaluates=evaluates)
    return batches.examples(data, split)


def _of(loader: DataLoader[Any], split: Split, *, evaluates: bool) -> ExampleSource:
    kind = type(loader)
    if kind.__iter__ is not DataLoader.__iter__:
        raise UsageError(
            f"Expected a DataLoader of torch, got {kind.__name__}, which has its own __iter__: "
            "give the data set, or a loader with your sampler and collate_fn."
        )
    if isinstance(loader.dataset, IterableDataset):
        return _OfStream(loader, split, evaluates=evaluates)
    if loader.batch_sampler is None:
        raise UsageError(
            "Expected a loader that makes batches, got batch_size=None, with which every item of "
            f"{type(loader.dataset).__name__} is one: set batch_size, or batch_sampler."
        )
    random_order, dataset = _is_random(loader), loader.dataset
    in_place = random_order or (evaluates and type(loader.sampler) is SequentialSampler)
    plain = in_place and loader.batch_size is not None and not loader.drop_last
    if plain and not loader.num_workers:
        is_pair = isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2
        if is_pair and split is pair and loader.collate_fn is default_collate:
            return tensors(*cast("TensorDataset", dataset).tensors)
        return DatasetItems(dataset, loader.collate_fn, split)
    return _OfLoader(loader, split, evaluates=evaluates)


def _is_random(loader: DataLoader[Any]) -> bool:
    """Whether every epoch has all examples once, in any order."""
    sampler = loader.sampler
    if type(sampler) is not RandomSampler or sampler.replacement:
        return False
    return len(sampler) == len(sampler.data_source) == len(loader.dataset)  # type: ignore[arg-type]


class _OfLoader(DatasetItems):
    """Examples of a map-style data set, as a loader draws them."""

    is_drawn_here = False

    def __init__(self, loader: DataLoader[Any], split: Split, *, evaluates: bool) -> None:
        super().__init__(loader.dataset, loader.collate_fn, split)
        self._loader, self._evaluates = loader, evaluates
        self._batches = loader.batch_sampler if loader.batch_size is None else None
        self._drawn_from: Iterable[Any] = loader.sampler if self._batches is None else self._batches
        if not hasattr(self._drawn_from, "__len__"):
            raise UsageError(
                f"Expected a sampler with a length, got {type(self._drawn_from).__name__}."
            )
        self._told = False

    def __len__(self) -> int:
        if self._batches is not None:
            return sum(map(len, self.in_order(0)))
        return self._kept(self._loader.batch_size or 0 if self._evaluates else 0)

    def all(self) -> Batch:
        return self.take(list(chain.from_iterable(map(list, self.in_order(len(self))))))

    def per_epoch(self, batch_size: int) -> int:
        if self._batches is not None:
            return len(cast("Sequence[Any]", self._batches))
        return batches_of(self.num_trained(batch_size), batch_size)

    def num_trained(self, batch_size: int) -> int:
        if self._batches is not None:
            return len(self)
        if kept := self._kept(batch_size):
            return kept
        raise UsageError(
            f"Expected a batch of examples, got none: the loader has {len(self)}, and drop_last "
            f"drops a batch of less than {batch_size}."
        )

    def in_order(self, batch_size: int) -> Iterator[Indices]:
        size = self._loader.batch_size or 0 if self._evaluates else batch_size
        order = self._order(_Randomness(0, self._generators()))
        return iter(self._epoch(size, order, drops=self._evaluates))

    def _kept(self, batch_size: int) -> int:
        """Examples of an epoch that `drop_last` leaves."""
        drawn = len(cast("Sequence[Any]", self._drawn_from))
        return drawn - (drawn % batch_size if batch_size and self._loader.drop_last else 0)

    def drawn(self, batch_size: int, seed: int, skip: int, stop: int) -> Iterator[Batch]:
        self._tell(batch_size)
        wanted = islice(chain.from_iterable(self._epochs(batch_size, seed)), skip, stop)
        return self._fetched(wanted, seed, skip)

    def _epochs(self, batch_size: int, seed: int) -> Iterator[list[Sequence[Any]]]:
        if self._batches is None and _is_random(self._loader):
            for order in orders(len(self._loader.dataset), seed):  # type: ignore[arg-type]
                yield self._epoch(batch_size, order.tolist())
        randomness = _Randomness(seed, self._generators())
        while True:
            yield self._epoch(batch_size, self._order(randomness))

    def _order(self, randomness: "_Randomness") -> list[Any]:
        """What the sampler draws in an epoch: indices, or batches of them."""
        stated = len(cast("Sequence[Any]", self._drawn_from))
        with randomness.installed():
            found = list(islice(self._drawn_from, stated + 1))
        if len(found) != stated:
            more = "more" if len(found) > stated else f"{len(found)}"
            raise UsageError(
                f"Expected {stated} items of {type(self._drawn_from).__name__}, as its length "
                f"says, got {more}."
            )
        return found

    def _epoch(
        self, batch_size: int, order: list[Any], *, drops: bool = True
    ) -> list[Sequence[Any]]:
        """The batches of an epoch; `drops` says whether drop_last holds."""
        if self._batches is not None:
            return [list(batch) for batch in order]
        size = batch_size or max(1, len(order))
        end = self._kept(batch_size) if drops else len(order)
        return [order[at : min(at + size, end)] for at in range(0, end, size)]

    def _tell(self, batch_size: int) -> None:
        own = self._loader.batch_size
        if self._told or own in {1, batch_size}:  # 1 is the default, so it says nothing
            return
        self._told = True
        if own is None:
            log.warning("batches are those of the loader's batch_sampler, whatever the run's size")
        else:
            log.warning("the run's batch size, %d, replaces the loader's, %d", batch_size, own)

    def _generators(self) -> list[torch.Generator]:
        holders: list[Any] = [self._drawn_from, getattr(self._drawn_from, "sampler", None)]
        found = (getattr(holder, "generator", None) for holder in holders)
        return [each for each in found if isinstance(each, torch.Generator)]

    def fetched(self, wanted: Iterable[Indices]) -> Iterator[Batch]:
        return self._fetched(wanted, 0, 0)

    def _fetched(self, wanted: Iterable[Indices], seed: int, begin: int) -> Iterator[Batch]:
        """The batches of these indices, made by the loader's workers if it has any."""
        if not self._loader.num_workers:
            yield from map(self.take, wanted)
            return
        jobs = (((seed + n * _STRIDE) % _BITS, each) for n, each in enumerate(wanted, begin))
        loader = self._loader
        made: DataLoader[Any] = DataLoader(
            _Fetch(loader.dataset, loader.collate_fn),  # type: ignore[arg-type] # has __getitem__
            batch_size=None,
            sampler=jobs,
            collate_fn=_same,
            **_workers_of(loader),
        )
        with _Randomness(seed, []).installed():  # it draws a seed for its workers
            fetched = iter(made)
        for batch in fetched:
            yield self._split(batch)


def _workers_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """How a loader fetches batches, whichever they are."""
    names = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "prefetch_factor")
    kept = {name: getattr(loader, name) for name in names}
    return {**kept, "multiprocessing_context": loader.multiprocessing_context}


class _Fetch:
    """Makes whole batches in a worker, each from random numbers of its own.

    So neither the number of workers nor an interruption changes what a random transformation does.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset, self._collate = dataset, collate

    def __getitem__(self, job: tuple[int, Sequence[Any]]) -> Any:
        seed, indices = job
        _seed(seed)
        return joined(self._dataset, self._collate, indices)


class _OfStream(ExampleSource):
    """Examples of an iterable data set with a stated length: of batches, not of indices."""

    is_drawn_here = False

    def __init__(self, loader: DataLoader[Any], split: Split, *, evaluates: bool) -> None:
        self._name = type(loader.dataset).__name__
        if not hasattr(loader.dataset, "__len__"):
            raise UsageError(
                "Expected (x, y) tensors, a data set with a length, or a loader of one, "
                f"got {self._name}: give it __len__, the number of its examples."
            )
        if loader.batch_size is None:
            raise UsageError(f"Expected a loader of {self._name} with a batch_size, got None.")
        self._loader, self._split, self._evaluates = loader, split, evaluates

    def __len__(self) -> int:
        return sum(self._kept(self._loader.batch_size or 0 if self._evaluates else 0))

    def all(self) -> Batch:
        return next(self._epoch(0, _Randomness(0, [])))

    def take(self, indices: Indices) -> Batch:
        return cast("Batch", indices)  # of `in_order`, which has read it

    def per_epoch(self, batch_size: int) -> int:
        return sum(batches_of(kept, batch_size) for kept in self._kept(batch_size) if kept)

    def num_trained(self, batch_size: int) -> int:
        if found := sum(self._kept(batch_size)):
            return found
        raise UsageError(f"Expected a batch of examples of {self._name}, got {len(self)} examples.")

    def _kept(self, batch_size: int) -> list[int]:
        """Examples of an epoch by worker, which should share them evenly."""
        drops, workers = self._loader.drop_last and batch_size, max(1, self._loader.num_workers)
        each, more = divmod(len(self._loader.dataset), workers)  # type: ignore[arg-type]
        shares = [each + (number < more) for number in range(workers)]
        return [share - share % batch_size if drops else share for share in shares]

    def in_order(self, batch_size: int) -> Iterator[Any]:
        size = self._loader.batch_size or 0 if self._evaluates else batch_size
        return self._epoch(size, _Randomness(0, []), drops=self._evaluates)

    def drawn(self, batch_size: int, seed: int, skip: int, stop: int) -> Iterator[Batch]:
        randomness = _Randomness(seed, [])

        def endless() -> Iterator[Batch]:
            while True:
                yield from self._epoch(batch_size, randomness)

        return islice(endless(), skip, stop)

    def _epoch(
        self, batch_size: int, randomness: "_Randomness", *, drops: bool = True
    ) -> Iterator[Batch]:
        """The batches of an epoch; `drops` says whether drop_last holds."""
        loader = self._loader
        drops = drops and loader.drop_last and batch_size > 0
        made = DataLoader(
            loader.dataset,
            batch_size=batch_size or len(self),
            drop_last=drops,
            collate_fn=loader.collate_fn,
            **_workers_of(loader),
        )
        kept = self._kept(batch_size if drops else 0)
        wanted = sum(kept), sum(batches_of(each, batch_size) for each in kept if each)
        found = 0, 0
        with randomness.installed():
            read = iter(made)
        while found <= wanted:
            with randomness.installed():
                batch = next(read, None)
            if batch is None:
                break
            x, y = self._split(batch)
            found = found[0] + len(y), found[1] + 1
            if found[0] <= wanted[0]:
                yield x, y
        if found != wanted:
            more = "more" if found > wanted else f"{found[0]} in {found[1]}"
            raise UsageError(
                f"Expected {wanted[0]} examples of {self._name} in {wanted[1]} batches, as its "
                f"length says, got {more}. Workers must share them evenly "
                "(torch.utils.data.get_worker_info)."
            )


class _Randomness:
    """Random numbers of a task for code that draws from global generators.

    Args:
        seed: of the task.
        generators: of torch, which the code uses as well.
    """

    def __init__(self, seed: int, generators: Sequence[torch.Generator]) -> None:
        self._seed, self._generators = seed, list(generators)
        self._states: tuple[Any, ...] | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Within this the global generators have the task's numbers; each time the next ones."""
        before = self._read()
        try:
            if self._states is None:
                _seed(self._seed)
                for generator in self._generators:
                    generator.manual_seed(self._seed)
            else:
                self._write(self._states)
            yield
        finally:
            self._states = self._read()
            self._write(before)

    def _read(self) -> tuple[Any, ...]:
        own = [generator.get_state() for generator in self._generators]
        return torch.get_rng_state(), random.getstate(), np.random.get_state(), own  # noqa: NPY002 - the global one

    def _write(self, states: tuple[Any, ...]) -> None:
        of_torch, of_python, of_numpy, own = states
        torch.set_rng_state(of_torch)
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002 - the global one
        for generator, state in zip(self._generators, own, strict=True):
            generator.set_state(state)


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002 - the global one, which samplers use


def _same(batch: Any) -> Any:
    return batch
