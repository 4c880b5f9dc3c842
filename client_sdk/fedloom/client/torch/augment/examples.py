"""Examples whose inputs are transformed when a batch is drawn.

Invariant: batches have the examples and the order of the source; an input depends on the example,
the task's seed and the epoch, not on the batch.
"""

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from fedloom.client.torch import batches
from fedloom.client.torch.augment.draws import Draws
from fedloom.client.torch.augment.pipeline import Pipeline
from fedloom.protocol.errors import UsageError


class Transformed(batches.ExampleSource):
    """Examples with transforms: all of them in training, and in evaluation those that apply there.

    Args:
        source: of tensors, a data set or a shard; not of a loader.
        pipeline: of inputs.
    """

    def __init__(self, source: batches.ExampleSource, pipeline: Pipeline) -> None:
        self._source, self._pipeline = source, pipeline
        self._checked = False

    def __len__(self) -> int:
        return len(self._source)

    def fix(self) -> None:
        """Use only the examples that a growing source has now."""
        batches.fix(self._source)

    def all(self) -> batches.Batch:
        """As for evaluation."""
        return self._evaluated(self._source.all())

    def take(self, indices: batches.Indices) -> batches.Batch:
        """As for evaluation."""
        return self._evaluated(self._source.take(indices))

    def drawn(self, batch_size: int, seed: int, skip: int, stop: int) -> Iterator[batches.Batch]:
        """The batches of training; see `ExampleSource.drawn`."""
        size = len(self)
        if not batch_size:
            everything = torch.arange(size)
            for epoch in range(skip, stop):
                x, y = self._as_checked(self._source.all())
                yield self._pipeline.train(x, Draws(seed, epoch, everything, size)), y
            return
        per_epoch = self.per_epoch(batch_size)
        chosen = islice(batches.shuffled(size, batch_size, seed), skip, stop)
        for step, indices in enumerate(chosen, skip):
            x, y = self._as_checked(self._source.take(indices))
            yield self._pipeline.train(x, Draws(seed, step // per_epoch, indices, size)), y

    def _evaluated(self, batch: batches.Batch) -> batches.Batch:
        x, y = self._as_checked(batch)
        return self._pipeline.evaluate(x), y

    def _as_checked(self, batch: batches.Batch) -> batches.Batch:
        """The batch; the first one is checked.

        Raises:
            UsageError: the transforms do not support these inputs or targets.
        """
        if not self._checked:
            x, y = batch
            if not isinstance(x, Tensor):
                raise UsageError(
                    f"Expected inputs as one tensor, got {type(x).__name__}. Transform in the data "
                    "set instead."
                )
            dtype = str(x.dtype).removeprefix("torch.")
            self._pipeline.output_shape(tuple(x.shape[1:]), dtype, tuple(y.shape[1:]))
            self._checked = True
        return batch
