"""One worker: it does jobs with a kernel, checks updates as a server does, and adds them.

Invariant: an update is checked completely before any part of it is added.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.client.api import Update
from fedloom.client.training.client_rule import RuleContext, RuleOutput, Slots, apply_rule
from fedloom.client.update.compress import compress
from fedloom.client.update.validate import weight_of
from fedloom.protocol.errors import Code, Refusal, UsageError
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.container import DTYPES
from fedloom.protocol.tensors.value_checks import ValueChecker, check_scalars, check_weight
from fedloom.protocol.trust.noise_stream import key_of_seed
from fedloom.protocol.updates.addends import rounding_draws
from fedloom.protocol.updates.header import check_metrics, check_ranks
from fedloom.protocol.updates.message import Limits, TensorPart, body_bytes
from fedloom.simulation.kernels.base import (
    ClientJob,
    ClientOutcome,
    Kernel,
    Measurement,
    Params,
    RoundTask,
)
from fedloom.simulation.training.rule_memory import Memory
from fedloom.simulation.training.spooled_updates import path_of, store
from fedloom.simulation.workers.base import Report
from fedloom.simulation.workers.failure_cases import FailureCases
from fedloom.simulation.workers.failures import explained
from fedloom.strategies import DELTA, Adapters, Full, Partial, Personal, weight_units
from fedloom.strategies.exact.fixed_point import masked_weight
from fedloom.strategies.exact.partial import SCALAR
from fedloom.strategies.masking.noise import MemberNoise
from fedloom.strategies.staleness import discounted
from fedloom.strategies.state import slots_from_arrays, slots_to_arrays

TEST_CHUNK = 1000
"""Test examples evaluated together. Fixed, so that the mean does not depend on the workers."""
_GLANCE = 1024
_LARGE = 1 << 18
"""Values from which a glance at the first ones is worth its time: 2 us."""


_Difference: TypeAlias = tuple[TensorPart, NDArray[np.generic] | None]
_Begun: TypeAlias = tuple[Params, RoundTask, Memory | None]


@dataclass(frozen=True, slots=True)
class UpdateChecks:
    """The checks of updates, as in a deployment.

    Attributes:
        limits: of the run.
        wire_dtypes: container dtype of deltas by tensor.
        manifest: of the model.
    """

    limits: Limits
    wire_dtypes: dict[str, str]
    manifest: Manifest


class Worker:
    """Does jobs, one group after another.

    Args:
        kernel: trains.
        checks: of updates.
        names: of the clients, by index in the population.
        cases: stores the inputs of clients that fail; None for none.
    """

    def __init__(
        self,
        kernel: Kernel,
        checks: UpdateChecks,
        names: Sequence[str],
        cases: FailureCases | None = None,
    ) -> None:
        self._kernel = kernel
        self._checks = checks
        self._names = names
        self._cases = cases
        self._scratch: dict[tuple[str, str], NDArray[np.generic]] = {}
        self._bytes_up: int | None = None
        self._reached = False
        self._weight = 0.0
        self._round: tuple[Params, RoundTask, _Begun] | None = None

    def train(
        self, params: Params, task: RoundTask, jobs: Sequence[ClientJob], partial: Partial
    ) -> Iterator[Report]:
        """Do a group of jobs and add accepted updates to `partial`.

        Raises:
            UsageError: the model, the loss or a client's own code failed; says where.
            UnavailableError: memory ran out.
        """
        begin = time.perf_counter()
        params, task, memory = self._begun(params, task)
        job_of = {job.client: job for job in jobs}
        for outcome in self._outcomes(params, task, jobs):
            code, reason, header = "", "", None
            self._bytes_up, self._reached, self._weight = None, False, 0.0
            try:
                header = self._admit(outcome, task, job_of[outcome.client], partial, memory)
            except Refusal as refusal:
                code, reason = refusal.code.value, str(refusal)
                if self._cases is not None and refusal.code is Code.NOT_FINITE:
                    reason += self._cases.save(refusal, params, task, job_of[outcome.client])
            now = time.perf_counter()
            yield Report(
                client=outcome.client,
                training=outcome.training,
                evaluation=outcome.evaluation,
                seconds=now - begin,
                refused=code,
                reason=reason,
                has_tensors=header is not None,
                header=header or b"",
                bytes_up=self._bytes_up,
                reached=self._reached,
                weight=self._weight,
            )
            begin = time.perf_counter()

    def _begun(self, params: Params, task: RoundTask) -> _Begun:
        """The model and the task with what clients receive and recall; one for a round."""
        if self._round is None or self._round[0] is not params or self._round[1] is not task:
            model, received = _split(params, task)
            memory = Memory(Path(task.memory)) if task.remembers else None
            recalled = memory if task.rule.remembers or task.personal.remembers else None
            local = _Locals(received, recalled, task.personal, task.adapters)
            self._round = params, task, (model, replace(task, local=local), memory)
        return self._round[2]

    def evaluate(self, params: Params, start: int, stop: int) -> Measurement:
        """Evaluate some of the test examples."""
        params = {name: array for name, array in params.items() if name in self._checks.wire_dtypes}
        try:
            return self._kernel.evaluate(params, start, stop)
        except Exception as error:  # noqa: BLE001 - a model may raise anything
            raise explained(error, "The evaluation on the test examples") from None

    def _outcomes(
        self, params: Params, task: RoundTask, jobs: Sequence[ClientJob]
    ) -> Iterator[ClientOutcome]:
        """The outcomes of the jobs; errors are explained with the client's name."""
        try:
            yield from self._kernel.work(params, task, jobs)
        except Exception as error:  # noqa: BLE001 - a user's code may raise anything
            who = self._names[jobs[0].client] if len(jobs) == 1 else f"{len(jobs)} clients"
            saved = "" if self._cases is None else self._save(error, params, task, jobs)
            raise explained(error, f"The training of {who}{saved}") from None

    def _save(
        self, error: Exception, params: Params, task: RoundTask, jobs: Sequence[ClientJob]
    ) -> str:
        """Store the inputs of the client that fails; of a group, the first that fails alone."""
        assert self._cases is not None
        if len(jobs) == 1:
            return self._cases.save(error, params, task, jobs[0])
        for job in jobs:
            try:
                for _ in self._kernel.work(params, task, [job]):
                    pass
            except Exception as alone:  # noqa: BLE001 - a user's code may raise anything
                return self._cases.save(alone, params, task, job)
        return ""

    def _admit(
        self,
        outcome: ClientOutcome,
        task: RoundTask,
        job: ClientJob,
        partial: Partial,
        memory: Memory | None,
    ) -> bytes | None:
        """Check an update and add it to the sum, or write it to a file.

        Returns:
            The header of the file, empty if none was written; None for an update without
            tensors, which changes nothing.
        """
        _check_metrics(outcome, task)
        if not outcome.parts:
            self._bytes_up = 0
            return None
        num_examples = outcome.training.num_examples
        settled = apply_rule(task.rule, outcome.parts, outcome.local, task.settings, num_examples)
        settled = self._protected(settled, job.seed, task)
        parts, kept = self._encoded(settled, task, job, memory)
        if not parts:
            return None
        limits = self._checks.limits
        for group in limits.groups:
            covered = {part.tensor: part.coverage for part in parts if part.group == group}
            check_ranks(covered, limits, self._checks.manifest)
        weight = weight_of(Update({}, num_examples, weight=outcome.weight), task.weighting)
        check_weight(weight, limits.max_weight)
        if task.masking is not None:
            weight = _masked(weight)
        units = weight_units(weight)
        # An unchanged tensor, such as a frozen one, passes every check and adds only its weight.
        differences = [(part, self._difference(part)) for part in parts]
        if task.attack is not None and outcome.client in task.attackers:
            lie = task.attack.alone
            differences = [(part, None if v is None else lie(v)) for part, v in differences]
        check_scalars(settled.scalars, limits.max_abs)
        self._reached = True  # a server checks all above by the header
        self._check(differences, task)
        if memory is not None:
            memory.remember(outcome.client, task.round, slots_to_arrays(kept))
        if task.spool:
            path = path_of(task.spool, task.round, outcome.client)
            sent = [_as_sent(part, values) for part, values in differences]
            return store(path, sent, self._checks.manifest, weight)
        self._add(partial, differences, units, task, job)
        if (noise := _share(partial, task, job)) is not None:
            noise.add_to(partial)
        for name, value in settled.scalars.items():
            key = SCALAR, name
            draws = rounding_draws(_sum_bits(task), job.seed, key, noisy=_is_noisy(task))
            partial.add_array(key, Full(), units, np.array(value), draws=draws)
        partial.count += 1
        self._weight = weight
        return b""

    @staticmethod
    def _add(
        partial: Partial, differences: Sequence[_Difference], units: int, task: RoundTask,
        job: ClientJob,
    ) -> None:  # fmt: skip
        """Add the tensors of a checked update to a sum."""
        for part, values in differences:
            key = part.group, part.tensor
            if values is None:
                partial.add_zeros(key, part.coverage, units)
                continue
            counted = discounted(units, task.factor) if part.group == DELTA else units
            draws = rounding_draws(_sum_bits(task), job.seed, key, noisy=_is_noisy(task))
            partial.add_array(key, part.coverage, units, values, value_units=counted, draws=draws)

    def _encoded(
        self, settled: RuleOutput, task: RoundTask, job: ClientJob, memory: Memory | None
    ) -> tuple[Sequence[TensorPart], Slots]:
        """The parts to send, and what to remember by slot."""
        kept, manifest = dict(settled.memory), self._checks.manifest
        if task.compression is None:
            if task.sizes_vary:
                self._bytes_up = body_bytes(settled.parts, manifest)
            return settled.parts, kept
        before: Slots = {}
        if memory is not None and task.compression.remembers:
            before = slots_from_arrays(memory.recall(job.client, job.memory_round))
        compressed = compress(task.compression, settled.parts, manifest, job.seed, before)
        if task.sizes_vary:
            self._bytes_up = body_bytes(compressed.parts, manifest)
        return compressed.parts, kept | compressed.memory

    def _check(self, differences: Sequence[_Difference], task: RoundTask) -> None:
        limits = self._checks.limits
        longest = limits.max_norm if task.guard is None else task.guard.longest
        checker = ValueChecker(limits.max_abs, longest)
        for part, values in differences:
            if values is not None:
                checker.check(part.tensor, values)
        checker.norm()

    def _protected(self, settled: RuleOutput, seed: int, task: RoundTask) -> RuleOutput:
        """The update after the device's clipping and noise."""
        if task.guard is None:
            return settled
        try:
            return task.guard.protect(
                settled,
                self._checks.manifest,
                run=task.run,
                round=task.round,
                seed=seed,
                secret=bytes,
            )
        except UsageError as error:
            raise Refusal(Code.NOT_FINITE, str(error)) from None

    def _difference(self, part: TensorPart) -> NDArray[np.generic] | None:
        """The values as they would be sent, 1-D, in memory that the next update reuses.

        None if all of them are zero.
        """
        if part.coded is not None:
            return part.coded.decode()
        dtype = DTYPES[self._checks.wire_dtypes[part.tensor]]
        values = np.ascontiguousarray(part.values).reshape(-1)
        if part.less is None:
            return values.astype(dtype, copy=False) if values.any() else None
        less = np.ascontiguousarray(part.less).reshape(-1)
        if _same(values, less):
            return None
        key = part.group, part.tensor
        out = self._scratch.get(key)
        if out is None or out.size != values.size:
            out = self._scratch[key] = np.empty(values.size, dtype)
        np.subtract(values, less, out=out, dtype=dtype)
        return out


def _sum_bits(task: RoundTask) -> int | None:
    return None if task.masking is None else task.masking.sum_bits


def _is_noisy(task: RoundTask) -> bool:
    return task.guard is not None and task.guard.session_noise > 0


def _share(partial: Partial, task: RoundTask, job: ClientJob) -> MemberNoise | None:
    """A client's share of the noise of its session; None for no noise."""
    if task.guard is None:
        return None
    return task.guard.share(
        members=job.members,
        exponent=partial.exponent,
        size=sum(spec.size for spec in partial.specs.values()),
        round=task.round,
        key=key_of_seed(job.seed),
    )


def _masked(weight: float) -> float:
    """A weight on the grid of masked weights.

    Raises:
        Refusal: it is too small.
    """
    try:
        return masked_weight(weight)
    except ValueError as error:
        raise Refusal(Code.WEIGHT_OUT_OF_RANGE, str(error)) from None


def _check_metrics(outcome: ClientOutcome, task: RoundTask) -> None:
    """Check the metrics that a device would send: none of its training with [privacy]."""
    check_metrics(outcome.evaluation.num_examples, outcome.evaluation.metrics)
    if task.guard is None:
        check_metrics(outcome.training.num_examples, outcome.training.metrics)


def _as_sent(part: TensorPart, values: NDArray[np.generic] | None) -> TensorPart:
    sent = np.zeros(part.values.size, np.float32) if values is None else values
    return TensorPart(part.group, part.tensor, part.coverage, sent)


@dataclass(frozen=True, slots=True)
class _Locals:
    received: Slots
    memory: Memory | None
    personal: Personal
    adapters: Adapters

    def __call__(self, job: ClientJob) -> RuleContext:
        if self.memory is None:
            return RuleContext(received=self.received, adapters=self.adapters)
        memory = slots_from_arrays(self.memory.recall(job.client, job.memory_round))
        return RuleContext(
            received=self.received, memory=memory, personal=self.personal, adapters=self.adapters
        )


def _split(params: Params, task: RoundTask) -> tuple[Params, Slots]:
    if not task.rule.receives:
        return params, {}
    starts = tuple(f"{slot}/" for slot in task.rule.receives)
    received = {name: array for name, array in params.items() if name.startswith(starts)}
    model = {name: array for name, array in params.items() if name not in received}
    return model, slots_from_arrays(received)


def _same(a: NDArray[np.generic], b: NDArray[np.generic]) -> bool:
    """Whether all values are equal; trained tensors usually differ in the first values."""
    if a.size >= _LARGE and (a[:_GLANCE] != b[:_GLANCE]).any():
        return False
    return bool((a == b).all())
