"""Runs any deployed client: the user's own training loop, in any library.

Invariant: every job makes a new client, so no state is shared between rounds, clients or workers,
and an update depends only on the model, the task and the client's data. A client that keeps tensors
from round to round must be simulated over the wire.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from fedloom.client.agent.task_run import differences
from fedloom.client.api import Client, Weighting
from fedloom.client.update.validate import (
    as_measured,
    as_update,
    check,
    of_evaluation,
    of_update,
    weight_of,
)
from fedloom.simulation.kernels.base import (
    ClientJob,
    ClientOutcome,
    Kernel,
    Measurement,
    Params,
    RoundTask,
    asked_of,
)


class ClientKernel:
    """Runs `train` and `evaluate` of clients as a device does.

    Args:
        make_client: makes the client of a name, with its data.
        names: of the clients, by index in the population.
        measuring: evaluates the test examples; None for no evaluation.
    """

    def __init__(
        self,
        make_client: Callable[[str], Client],
        names: Sequence[str],
        measuring: Kernel | None = None,
    ) -> None:
        self._make = make_client
        self._names = names
        self._measuring = measuring

    def work(
        self, params: Params, task: RoundTask, jobs: Sequence[ClientJob]
    ) -> Iterator[ClientOutcome]:
        """Do the jobs, one after another; see `Kernel.work`.

        Raises:
            UsageError: a client returned invalid values.
        """
        for job in jobs:
            yield self._outcome(params, task, job)

    def evaluate(self, params: Params, start: int, stop: int) -> Measurement:
        """Evaluate test examples; empty without a kernel for it."""
        if self._measuring is None:
            return Measurement()
        return self._measuring.evaluate(params, start, stop)

    def _outcome(self, params: Params, task: RoundTask, job: ClientJob) -> ClientOutcome:
        client = self._make(self._names[job.client])
        asked = asked_of(task, job, self._names[job.client], task.local(job))
        evaluation = Measurement()
        if task.evaluate and client.can_evaluate():
            given = _copies(params, asked.local.evaluated(params))
            num_examples, metrics = as_measured(client.evaluate(given, asked))
            check(of_evaluation(num_examples, metrics))
            evaluation = _measured(num_examples, metrics)
        if not task.train:
            return ClientOutcome(client=job.client, evaluation=evaluation)
        update = as_update(client.train(_copies(params, asked.local.own(params)), asked))
        check(of_update(update, task.weighting))
        by_client = task.weighting is Weighting.CLIENT
        return ClientOutcome(
            client=job.client,
            parts=list(differences(update.params, params, asked)),
            training=_measured(update.num_examples, update.metrics),
            evaluation=evaluation,
            weight=weight_of(update, task.weighting) if by_client else None,
            local=asked.local,
        )


def _copies(params: Params, own: Params) -> dict[str, np.ndarray]:
    """A copy of the model with the client's own tensors; the client may change it."""
    return {name: np.array(value) for name, value in {**params, **own}.items()}


def _measured(num_examples: int, metrics: Mapping[str, float]) -> Measurement:
    values = {name: float(value) for name, value in metrics.items()}
    return Measurement(num_examples=int(num_examples), metrics=values)
