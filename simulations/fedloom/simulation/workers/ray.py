"""Workers as Ray actors, on one machine or a cluster.

The model and the data are sent once through Ray's object store. Every actor keeps its own exact
sum, which is returned once a round. If an actor is lost, with its process or its whole node, those
that are left do its jobs of the round again. Resources that the cluster lacks are refused at once:
Ray would wait for them forever.

Invariant: the reports of an actor count when its sum is here, so a job counts once.
"""

import contextlib
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from fedloom.protocol.errors import FedloomError, UnavailableError, UsageError
from fedloom.simulation.kernels.base import ClientJob, Measurement, Params, RoundTask
from fedloom.simulation.output import words
from fedloom.simulation.output.history import WorkerShare
from fedloom.simulation.workers.base import Report, RoundWork, Yield
from fedloom.simulation.workers.measure import chunks, mean
from fedloom.simulation.workers.worker import Worker
from fedloom.strategies import Partial

_LOST = (RayActorError, ObjectLostError)
BATCH_S = 0.2
"""Estimated seconds of work in one call to an actor: a call costs about a millisecond."""


class _Actor:
    def __init__(self, make: Callable[[int], Worker], number: int, empty: Partial) -> None:
        self._worker = make(number)
        self._partial = empty

    def where(self) -> str:
        return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call] # Ray leaves it untyped

    def begin(self) -> bool:
        self._partial = self._partial.empty()
        return True

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


@dataclass(slots=True)
class _Share:
    """What an actor did since its sum was empty."""

    groups: list[list[ClientJob]] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    busy_s: float = 0.0


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
            self._actors = {n: actor.remote(made, n, empty) for n in range(size)}
            self._names = {
                n: f"actor {n} ({_get(actor.where.remote())})" for n, actor in self._actors.items()
            }
        except _LOST as error:
            self.close()
            raise _ended(error) from error
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """Number of workers that are left."""
        return len(self._actors)

    def train(self, work: RoundWork) -> Yield:
        """Do a round's jobs; see `WorkerGroup.train`.

        Raises:
            UnavailableError: every actor is lost.
        """
        model = ray.put({name: np.asarray(array) for name, array in work.params.items()})
        waiting = [list(group) for group in work.groups][::-1]
        done = Yield()
        clients, busy = dict.fromkeys(self._actors, 0), dict.fromkeys(self._actors, 0.0)
        first = True
        while waiting or first:
            first = False
            self._ask(lambda _, actor: actor.begin.remote())
            shares = self._share_out(model, work, waiting, len(done.reports))
            sums = self._ask(lambda _, actor: actor.end.remote())
            for number, share in shares.items():
                if number not in sums:
                    waiting += share.groups
                    continue
                arrays, header = sums[number]
                own = {name: np.array(array) for name, array in arrays.items()}
                work.partial.merge(Partial.from_arrays(own, header))
                done.reports += share.reports
                clients[number] += len(share.reports)
                busy[number] += share.busy_s
        done.shares = tuple(
            WorkerShare(worker=self._names[number], clients=clients[number], busy_s=busy[number])
            for number in clients
        )
        return done

    def _share_out(
        self, model: Any, work: RoundWork, waiting: list[list[ClientJob]], before: int
    ) -> dict[int, _Share]:
        """Have all these groups done; `waiting` is empty afterwards."""
        shares = {number: _Share() for number in self._actors}
        running: dict[Any, int] = {}
        while running or waiting:
            for number in self._actors.keys() - set(running.values()):
                if waiting:
                    taken = self._next(waiting, shares[number])
                    running[self._actors[number].train.remote(model, work.task, taken)] = number
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            number = running.pop(ready)
            answer = self._answer(number, ready)
            if answer is None:
                waiting += shares.pop(number).groups
                continue
            reports, seconds = answer
            shares[number].reports += reports
            shares[number].busy_s += seconds
            work.progress(before + sum(len(share.reports) for share in shares.values()))
        return shares

    def _next(self, waiting: list[list[ClientJob]], share: _Share) -> list[list[ClientJob]]:
        """The next groups of an actor, `BATCH_S` of work."""
        pace = np.mean([r.seconds for r in share.reports[-100:]]) if share.reports else BATCH_S
        most = max(1, -(-len(waiting) // (2 * self.size)))
        count = min(most, max(1, int(BATCH_S / max(float(pace), 1e-6))))
        taken = [waiting.pop() for _ in range(min(count, len(waiting)))]
        share.groups += taken
        return taken

    def evaluate(self, params: Params, num_examples: int) -> Measurement:
        """Evaluate a model on the first test examples."""
        model = ray.put(dict(params))
        waiting = chunks(num_examples)
        parts: list[Measurement] = []
        while waiting:
            own = {n: waiting[place :: self.size] for place, n in enumerate(self._actors)}
            answers = self._ask(partial(_evaluate, model, own))
            parts += [part for some in answers.values() for part in some]
            waiting = [chunk for n in own.keys() - answers.keys() for chunk in own[n]]
        return mean(parts)

    def _ask(self, call: Callable[[int, Any], Any]) -> dict[int, Any]:
        """Call all actors; the answers of those that are left afterwards, by number."""
        asked = {number: call(number, actor) for number, actor in self._actors.items()}
        answers = {number: self._answer(number, answer) for number, answer in asked.items()}
        return {number: answer for number, answer in answers.items() if answer is not None}

    def _answer(self, number: int, reference: Any) -> Any:
        """The answer of an actor; None if the actor is lost."""
        try:
            return _get(reference)
        except _LOST as error:
            self._actors.pop(number, None)
            if not self._actors:
                raise _ended(error) from error
            warnings.warn(
                f"{self._names[number]} was lost: {_first_line(error)}. The {self.size} that are "
                "left do its jobs again.",
                stacklevel=2,
            )
            return None

    def close(self) -> None:
        """End the actors, and Ray if it was started for them."""
        for actor in getattr(self, "_actors", {}).values():
            with contextlib.suppress(Exception):
                ray.kill(actor)
        self._actors = {}
        if self._ours and ray.is_initialized():
            ray.shutdown()


def _evaluate(model: Any, ranges: dict[int, list[tuple[int, int]]], number: int, actor: Any) -> Any:
    return actor.evaluate.remote(model, ranges[number])


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
    except RayTaskError as error:
        if isinstance(error.cause, FedloomError):
            raise error.cause from None
        raise


def _ended(error: Exception) -> UnavailableError:
    return UnavailableError(
        f"The last Ray actor ended during the simulation: {_first_line(error)}. Continue with "
        f"{words.RESUME}, with fewer workers if memory ran out."
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
