"""A group of one worker: this process."""

import time
from collections.abc import Sequence

from fedloom.simulation.kernels.base import ClientJob, Measurement, Params, RoundTask
from fedloom.simulation.output.history import WorkerShare
from fedloom.simulation.workers.base import Progress, Yield
from fedloom.simulation.workers.measure import chunks, mean
from fedloom.simulation.workers.worker import Worker
from fedloom.strategies import Partial


class LocalWorkers:
    """Trains here, one client after another."""

    size = 1

    def __init__(self, worker: Worker, device: str) -> None:
        self._worker = worker
        self._name = f"this process ({device})"

    def train(
        self,
        params: Params,
        task: RoundTask,
        groups: Sequence[Sequence[ClientJob]],
        partial: Partial,
        progress: Progress,
    ) -> Yield:
        """Do a round's jobs; see `WorkerGroup.train`."""
        done = Yield()
        begin = time.perf_counter()
        for group in groups:
            for report in self._worker.train(params, task, group, partial):
                done.reports.append(report)
                progress(len(done.reports))
        busy_s = time.perf_counter() - begin
        done.shares = (WorkerShare(worker=self._name, clients=len(done.reports), busy_s=busy_s),)
        return done

    def evaluate(self, params: Params, num_examples: int) -> Measurement:
        """Evaluate a model on the first test examples."""
        return mean([self._worker.evaluate(params, *chunk) for chunk in chunks(num_examples)])

    def close(self) -> None:
        """Do nothing: there is nothing to stop."""
