"""A group of one worker: this process."""

import time

from fedloom.simulation.kernels.base import Measurement, Params
from fedloom.simulation.output.history import WorkerShare
from fedloom.simulation.workers.base import RoundWork, Yield
from fedloom.simulation.workers.measure import chunks, mean
from fedloom.simulation.workers.worker import Worker


class LocalWorkers:
    """Trains here, one client after another."""

    size = 1

    def __init__(self, worker: Worker, device: str) -> None:
        self._worker = worker
        self._name = f"this process ({device})"

    def train(self, work: RoundWork) -> Yield:
        """Do a round's jobs; see `WorkerGroup.train`."""
        done = Yield()
        begin = time.perf_counter()
        for group in work.groups:
            for report in self._worker.train(work.params, work.task, group, work.partial):
                done.reports.append(report)
                work.progress(len(done.reports))
        busy_s = time.perf_counter() - begin
        done.shares = (WorkerShare(worker=self._name, clients=len(done.reports), busy_s=busy_s),)
        return done

    def evaluate(self, params: Params, num_examples: int) -> Measurement:
        """Evaluate a model on the first test examples."""
        return mean([self._worker.evaluate(params, *chunk) for chunk in chunks(num_examples)])

    def close(self) -> None:
        """Do nothing: there is nothing to stop."""
