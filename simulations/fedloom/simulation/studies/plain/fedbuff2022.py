"""FedBuff and synchronous FedAvg on a virtual clock (Nguyen et al. 2022, Algorithm 1), in numpy.

A device takes a fixed time for its training. With buffers, a device that ends is replaced by an
idle one, drawn uniformly, on the newest model; a step is made from K updates of different clients,
each scaled by 1/√(1 + staleness). A synchronous round takes the first updates of a cohort and ends
with the last of them.
"""

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from .local_sgd import Client, train
from .softmax import Floats


def buffered(
    clients: Sequence[Client], start: Floats, rng: np.random.Generator, *, seconds: Sequence[float],
    concurrency: int, goal: int, epochs: int, batch: int, rate: float, max_staleness: int,
) -> Iterator[tuple[float, Floats]]:  # fmt: skip
    """Time and model after each buffer.

    Args:
        clients: examples of each.
        start: the initial model.
        rng: for selection and batches.
        seconds: that each client takes.
        concurrency: clients that train at a time.
        goal: K.
        epochs: of local training.
        batch: examples of a step.
        rate: of a step.
        max_staleness: updates with a larger one are dropped.
    """
    model, version, total, count = start.copy(), 0, np.zeros_like(start), 0
    idle, reported = list(range(len(clients))), []
    events: list[tuple[float, int, int, Floats]] = []

    def fill(now: float) -> None:
        while idle and len(events) < concurrency:
            k = idle.pop(int(rng.integers(len(idle))))
            heapq.heappush(events, (now + seconds[k], k, version, model))

    fill(0.0)
    while True:
        now, k, begun, given = heapq.heappop(events)
        staleness = version - begun
        reported.append(k)  # it counts once in a buffer, and waits for the next
        if staleness <= max_staleness:
            there, _ = train(rng, given, clients[k], rate=rate, batch=batch, epochs=epochs)
            total += (there - given) / np.sqrt(1 + staleness)
            count += 1
        if count == goal:
            model, version, total, count = model + total / goal, version + 1, total * 0, 0
            idle, reported = idle + reported, []
            yield now, model
        fill(now)


def synchronous(
    clients: Sequence[Client], start: Floats, rng: np.random.Generator, *, seconds: Sequence[float],
    cohort: int, goal: int, epochs: int, batch: int, rate: float,
) -> Iterator[tuple[float, Floats]]:  # fmt: skip
    """Time and model after each round.

    Args:
        clients: examples of each.
        start: the initial model.
        rng: for cohorts and batches.
        seconds: that each client takes.
        cohort: clients that begin a round.
        goal: of them that are waited for.
        epochs: of local training.
        batch: examples of a step.
        rate: of a step.
    """
    model, now = start.copy(), 0.0
    while True:
        drawn = rng.choice(len(clients), cohort, replace=False)
        first = sorted(drawn, key=lambda k: seconds[k])[:goal]
        total = np.zeros_like(model)
        for k in first:
            there, _ = train(rng, model, clients[k], rate=rate, batch=batch, epochs=epochs)
            total += there - model
        model, now = model + total / goal, now + seconds[first[-1]]
        yield now, model
