"""Evaluation in chunks that do not depend on the workers."""

from collections.abc import Sequence

from fedloom.simulation.kernels.base import Measurement
from fedloom.simulation.kernels.metrics import joined
from fedloom.simulation.workers.worker import TEST_CHUNK
from fedloom.strategies.metrics import weighted_mean


def chunks(num_examples: int) -> list[tuple[int, int]]:
    """Ranges of `TEST_CHUNK` examples that cover them all."""
    return [(n, min(n + TEST_CHUNK, num_examples)) for n in range(0, num_examples, TEST_CHUNK)]


def mean(parts: Sequence[Measurement]) -> Measurement:
    """The mean over all parts, exact in any order, and their joined scores."""
    scores = [part.scores for part in parts if part.scores is not None]
    return Measurement(
        num_examples=sum(part.num_examples for part in parts),
        metrics=weighted_mean((part.num_examples, part.metrics) for part in parts),
        scores=joined(scores) if scores else None,
    )
