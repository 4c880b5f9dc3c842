"""Workers as Ray actors, on one machine or a cluster.

The model and the data are sent once through Ray's object store. Every actor keeps its own exact
sum, which is returned once a round. Resources that the cluster lacks are refused at once: Ray would
wait for them forever.
"""

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayTaskError

from fedloom.protocol.errors import FedloomError, UnavailableError, UsageError
from fedloom.simulation.kernels.base import ClientJob, Measurement, Params, RoundTask
from fedloom.simulation.output.history import WorkerShare
from fedloom.simulation.workers.base import Report, RoundWork, Yield
from fedloom.simulation.workers.measure import chunks, mean
from fedloom.simulation.workers.worker import Worker
from fedloom.strategies import Partial

BATCH_S = 0.2
"""Estimated seconds of work in one call to an actor: a call costs about a millisecond."""


class _Actor:
    def __init__(self, make: Callable[[int], Worker], number: int, empty: Partial) -> None:
        self._worker = make(number)
        self._partial = empty

    def where(self) -> str:
        return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call] # Ray leaves it untyped

    def begin(self) -> None:
        self._partial = self._partial.empty()

    def train(
        self, params: Params, task: RoundTask, groups: list[list[ClientJob]]
    ) -> tuple[Any, float]:
        """Do some groups of jobs; returns their reports and the seconds taken."""
        begin = time.perf_counter()
        reports: list[Report] = []
        for group in groups:
            reports += self._worker.train(params, task, group, self._partial)
        return reports, time.perf_counter() - begin

    def end(self) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
        return self._partial.arrays()

    def evaluate(self, params: Params, ranges: list[tuple[int, int]]) -> list[Measurement]:
        """Evaluate some of the test examples."""
        return [self._worker.evaluate(params, *chunk) for chunk in ranges]


class RayCrew:
    """Persistent actors.

    Args:
        make: builds a worker in its actor.
        size: number of actors.
        empty: a round's sum before any update.
        gpu: share of a GPU for each actor; 0 for none.

    Raises:
        UsageError: the cluster lacks CPUs or GPUs.
    """

    def __init__(
        self, make: Callable[[int], Worker], size: int, *, empty: Partial, gpu: float = 0.0
    ) -> None:
        self._ours = not ray.is_initialized()
        if self._ours:
            ray.init(log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
        try:
            _check(size, gpu)
            actor: Any = ray.remote(num_cpus=1, num_gpus=gpu)(_Actor)
            made = ray.put(make)
            self._actors = [actor.remote(made, n, empty) for n in range(size)]
            self._names = [
                f"actor {n} ({place})"
                for n, place in enumerate(_get([a.where.remote() for a in self._actors]))
            ]
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self._actors)

    def train(self, work: RoundWork) -> Yield:
        """Do a round's jobs; see `WorkerGroup.train`."""
        model = ray.put({name: np.asarray(array) for name, array in work.params.items()})
        waiting = [list(group) for group in work.groups][::-1]
        done, clients, busy = Yield(), [0] * self.size, [0.0] * self.size
        _get([actor.begin.remote() for actor in self._actors])
        running = {self._hand(n, model, work.task, waiting, done): n for n in range(self.size)}
        while running:
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            number = running.pop(ready)
            reports, seconds = _get(ready)
            done.reports += reports
            clients[number] += len(reports)
            busy[number] += seconds
            work.progress(len(done.reports))
            if waiting:
                running[self._hand(number, model, work.task, waiting, done)] = number
        for arrays, header in _get([actor.end.remote() for actor in self._actors]):
            own = {name: np.array(array) for name, array in arrays.items()}
            work.partial.merge(Partial.from_arrays(own, header))
        done.shares = tuple(
            WorkerShare(worker=name, clients=n, busy_s=s)
            for name, n, s in zip(self._names, clients, busy, strict=True)
        )
        return done

    def _hand(
        self, number: int, model: Any, task: RoundTask, waiting: list[list[ClientJob]], done: Yield
    ) -> Any:
        pace = np.mean([r.seconds for r in done.reports[-100:]]) if done.reports else BATCH_S
        most = max(1, -(-len(waiting) // (2 * self.size)))
        count = min(most, max(1, int(BATCH_S / max(float(pace), 1e-6))))
        taken = [waiting.pop() for _ in range(min(count, len(waiting)))]
        return self._actors[number].train.remote(model, task, taken)

    def evaluate(self, params: Params, num_examples: int) -> Measurement:
        """Evaluate a model on the first test examples."""
        model = ray.put(dict(params))
        ranges = chunks(num_examples)
        parts = _get(
            [
                actor.evaluate.remote(model, ranges[number :: self.size])
                for number, actor in enumerate(self._actors)
            ]
        )
        return mean([part for some in parts for part in some])

    def close(self) -> None:
        """End the actors, and Ray if it was started for them."""
        for actor in getattr(self, "_actors", []):
            with contextlib.suppress(Exception):
                ray.kill(actor)
        self._actors = []
        if self._ours and ray.is_initialized():
            ray.shutdown()


def _check(size: int, gpu: float) -> None:
    """Refuse more actors than the cluster has resources for."""
    there = ray.cluster_resources()  # type: ignore[no-untyped-call] # Ray leaves it untyped
    for name, wanted in (("CPU", float(size)), ("GPU", gpu * size)):
        if wanted > there.get(name, 0.0):
            raise UsageError(
                f"{size} workers need {wanted:g} {name}; the Ray cluster has "
                f"{there.get(name, 0.0):g}. Lower engine.workers, or add nodes."
            )


def _get(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except RayActorError as error:
        raise UnavailableError(
            f"A Ray actor ended during the simulation: "
            f"{str(error).partition(chr(10))[0].rstrip('.')}. Continue with --resume, with fewer "
            "workers if memory ran out."
        ) from error
    except RayTaskError as error:
        if isinstance(error.cause, FedloomError):
            raise error.cause from None
        raise
