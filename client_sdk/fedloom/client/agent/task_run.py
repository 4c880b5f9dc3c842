"""From a task to an update on disk: runs the training code and checks what it returns.

Only differences leave the device: new values minus the received ones, for the coordinates that
`train` returned. An error in what it returns is reported with the name of the tensor.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path

import numpy as np

from fedloom.client.agent.trim_memory import trim
from fedloom.client.api import Client, Params, Task, Update, Weighting
from fedloom.client.budgets import Budgets, machine, room_beside
from fedloom.client.owner.policy import Policy, PolicyError
from fedloom.client.owner.update_check import too_few
from fedloom.client.state.store import ClientStore
from fedloom.client.training.checkpoints import Checkpoints, Interruptions
from fedloom.client.training.client_rule import RuleContext, RuleOutput, apply_rule
from fedloom.client.update.clip_and_noise import Guard
from fedloom.client.update.compress import compress
from fedloom.client.update.validate import (
    Returned,
    as_measured,
    as_update,
    check,
    covered,
    of_evaluation,
    of_update,
    weight_of,
)
from fedloom.protocol import flower_messages
from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import UsageError
from fedloom.protocol.manifest import Manifest, read_manifest
from fedloom.protocol.task_description import TaskDescription
from fedloom.protocol.task_kind import Kind
from fedloom.protocol.task_message import from_message
from fedloom.protocol.tensors.container import read_params
from fedloom.protocol.tensors.file_arrays import Scratch, stored_params
from fedloom.protocol.trust.private_files import private_opener
from fedloom.protocol.updates.compression import describe
from fedloom.protocol.updates.message import TensorPart, write_body
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import DELTA
from fedloom.strategies.exact.lazy_arrays import Values
from fedloom.strategies.exact.partial import Slice
from fedloom.strategies.privacy import advice
from fedloom.strategies.state import slots_from_arrays, slots_to_arrays

log = logging.getLogger(__name__)

_WORTH_TRIMMING_BYTES = 4 << 20
"""From this model size on, freed memory is returned to the system."""


def task_from_message(message: fleet_pb2.Task, client: str = "") -> Task:
    """Return a task as the author's code sees it.

    Raises:
        UsageError: this version of the client knows no such kind, weighting, rule or codec.
    """
    asked = from_message(message)
    return Task(
        run=asked.run,
        round=asked.round,
        training_round=asked.training_round,
        client=client,
        kind=asked.kind,
        settings=asked.settings,
        rule=asked.rule,
        config=dict(asked.config),
        seed=asked.seed,
        deadline_s=asked.deadline_s,
        weighting=Weighting(asked.weighting),
        local=RuleContext(personal=asked.personal, adapters=asked.adapters),
    )


def checkpoints_of(
    message: fleet_pb2.Task, store: ClientStore, budgets: Budgets, settings: Interruptions
) -> Checkpoints:
    """Return the checkpoints of a task, within the device's budget of disk space."""
    path = store.checkpoint_path(message) if settings.checkpoints else None
    room = partial(room_beside, budgets, store, message)
    return Checkpoints(path, settings.checkpoint_s, room=room)


class OutOfTimeError(Exception):
    """The training exceeded the device's time budget, and its partial result cannot be used."""


class StoppedError(Exception):
    """The training code was asked to stop: there is no update."""


@dataclass(frozen=True)
class TaskRun:
    """One task of a client.

    Attributes:
        client: the training code.
        task: as the training code sees it.
        message: as the server sent it.
        name: of this client.
        store: of the model and the update.
        policy: what the device's owner allows to leave.
        budgets: of the device.
        trains: called when training begins, after an evaluation.
    """

    client: Client
    task: Task
    message: fleet_pb2.Task
    name: str
    store: ClientStore
    policy: Policy = field(default_factory=Policy)
    budgets: Budgets = field(default_factory=Budgets)
    trains: Callable[[], None] = lambda: None

    @cached_property
    def _asked(self) -> TaskDescription:
        return from_message(self.message)

    @cached_property
    def _manifest(self) -> Manifest:
        return read_manifest(self.store.model_path(self.message.model.digest))

    def run(self) -> fleet_pb2.UpdateHeader:
        """Evaluate and train, and write the update to the outbox. Blocks; runs in a thread.

        Raises:
            UsageError: the training code returned something invalid.
            PolicyError: the owner's policy keeps it here.
            StoppedError: it was stopped.
            OutOfTimeError: it took too long, and its partial result cannot be sent.
        """
        self._limit_thread()
        self._trim()  # memory of the transfers
        try:
            return self._run()
        finally:
            self._trim()

    def _trim(self) -> None:
        """Return memory to the system, if the model is large enough to be worth a millisecond."""
        if self.message.model.size_bytes >= _WORTH_TRIMMING_BYTES:
            trim()

    def _run(self) -> fleet_pb2.UpdateHeader:
        path = self.store.model_path(self.message.model.digest)
        task = self.task
        header = fleet_pb2.UpdateHeader(
            task=self.message.key,
            client=self.name,
            model_digest=self.message.model.digest,
            weight=1.0,
        )
        self._prepare()
        if task.kind is Kind.MESSAGE:
            self._answer(header, path)
            return self._finished(header)
        may_evaluate = self.policy.runs.evaluate and self.policy.metrics
        if may_evaluate and self._asked.evaluates and self.client.can_evaluate():
            returned = self.client.evaluate(self._model(path, task.local.evaluated), task)
            num_examples, metrics = as_measured(returned)
            check(of_evaluation(num_examples, metrics))
            if num_examples >= self.policy.leaves.min_examples:
                _set_metrics(header.evaluation, num_examples, metrics)
            elif task.kind is Kind.EVALUATE:
                raise too_few(self.policy, num_examples, "metrics")
        if task.kind is Kind.TRAIN:
            self._check_any_may_leave()
            crossing("client.train.before")
            self.trains()
            if self.budgets.training_s is not None:
                task.limit(self.budgets.training_s)
            trained = self.client.train(self._model(path, task.local.own), task)
            crossing("client.train.after")
            self._trim()  # memory of the training
            if task.dropped:  # stopped: a partial result is no update
                raise StoppedError(f"Round {task.round} of {task.run} was stopped.")
            if task.out_of_time:
                self._check_partial()
            self._write(header, as_update(trained), path)
        else:
            with open(self.store.body_path(task.run, task.round), "wb", opener=private_opener):
                pass  # an update without a body
        return self._finished(header)

    def _finished(self, header: fleet_pb2.UpdateHeader) -> fleet_pb2.UpdateHeader:
        self.store.add_unsent(header)
        crossing("client.outbox.written")
        return header

    def _answer(self, header: fleet_pb2.UpdateHeader, path: Path) -> None:
        """Answer a message, and write the reply to the outbox."""
        self.trains()
        task, most = self.task, self.message.limits.max_bytes - flower_messages.OVERHEAD_BYTES
        if self.budgets.training_s is not None:
            task.limit(self.budgets.training_s)
        reply = self.client.answer(flower_messages.read(path), task)
        if task.dropped:
            raise StoppedError(f"Message {task.round} of {task.run} was withdrawn.")
        if len(reply) > most:
            raise UsageError(
                f"Expected a reply of at most {most} bytes, got {len(reply)}: raise "
                "flower.max_message_mb of the run."
            )
        values = np.frombuffer(reply, np.uint8)
        part = TensorPart(
            flower_messages.GROUP, flower_messages.TENSOR, Slice(((0, values.size),)), values
        )
        body = self.store.body_path(task.run, task.round)
        manifest = flower_messages.manifest(most)
        described, header.size_bytes, header.crc32c = write_body(body, [part], manifest)
        header.parts.extend(described)

    def _limit_thread(self) -> None:
        """Apply the device's limits of threads and priority to this thread."""
        budgets = self.budgets
        if budgets.nice or budgets.idle_io:
            machine.step_back(budgets.nice, idle_io=budgets.idle_io)
        if budgets.threads is not None:
            machine.use_threads(budgets.threads)

    def _check_partial(self) -> None:
        """Refuse a partial training if the client rule needs a complete one."""
        rule, local = self.task.rule, self.task.local
        if not (rule.is_elementary or local.steps is not None):
            raise OutOfTimeError(
                f"The training did not end within training_s = {self.budgets.training_s:g} s, and "
                f"client rule {rule.name} needs the number of steps, which was not set."
            )

    @staticmethod
    def _model(path: Path, own: Callable[[Params], Params]) -> Params:
        """The model with this client's own tensors; copies that its code may change."""
        params = read_params(path, writable=True)
        return params | own(params)

    def _prepare(self) -> None:
        """Load what the rule receives, and the memory of rule and compression."""
        rule, local = self.task.rule, self.task.local
        if rule.receives and self.message.received.digest:
            received = stored_params(self.store.model_path(self.message.received.digest))
            local.received = slots_from_arrays(received)
        if self._remembers:
            arrays = self.store.recall(self.task.run, self.message.memory_round)
            local.memory = slots_from_arrays(arrays)

    @property
    def _remembers(self) -> bool:
        scheme, task = self._asked.scheme, self.task
        of_codec = scheme is not None and scheme.remembers
        return of_codec or bool(task.rule.remembers) or task.local.personal.remembers

    def _write(self, header: fleet_pb2.UpdateHeader, update: Update, path: Path) -> None:
        check(of_update(update, self.task.weighting))
        if update.num_examples < self.policy.leaves.min_examples:
            raise too_few(self.policy, update.num_examples)
        header.weight = weight_of(update, self.task.weighting)
        if self._asked.privacy is None:  # metrics would reveal what the noise hides
            metrics = update.metrics if self.policy.metrics else {}
            _set_metrics(header.training, update.num_examples, metrics)
        manifest, task, scratch = self._manifest, self.task, self.store.scratch()
        settled = apply_rule(
            task.rule,
            differences(update.params, stored_params(path), task),
            task.local,
            task.settings,
            update.num_examples,
            scratch=scratch,
        )
        settled = self._protected(self._allowed(settled), manifest)
        parts, memory = settled.parts, dict(settled.memory)
        scheme = self._asked.scheme
        if scheme is not None:
            recalled = task.local.memory
            if self.policy.privacy.clip_norm:
                # Error feedback would add to what was clipped and may predate the policy, so
                # under an owner's bound it is off.
                scheme, recalled = replace(scheme, error_feedback=False), {}
            compressed = compress(scheme, parts, manifest, task.seed, recalled, scratch=scratch)
            parts = compressed.parts
            memory |= compressed.memory
            header.compression.CopyFrom(describe(scheme.codec))
        if self._remembers:
            before = self.message.memory_round
            self.store.remember(task.run, task.round, slots_to_arrays(memory), before=before)
        if parts:  # a server averages numbers only beside tensors
            header.scalars.update(settled.scalars)
        body = self.store.body_path(task.run, task.round)
        described, header.size_bytes, header.crc32c = write_body(body, parts, manifest)
        header.parts.extend(described)

    def _protected(self, settled: RuleOutput, manifest: Manifest) -> RuleOutput:
        """Clip and add noise, as the owner's policy and then the run ask.

        The owner's protection comes first, so that nothing the run does weakens it.
        """
        owners = self.policy.guard(self.message)
        if owners is not None and settled.scalars:
            raise PolicyError(
                "the device's policy cannot protect the numbers that this run sends beside "
                f"tensors: {', '.join(settled.scalars)}."
            )
        # Separate noise streams: one stream used twice would be the same noise, scaled.
        asked = Guard.of(self._asked.privacy)
        if asked is not None:
            _advise(self.task.run, *advice(part.tensor for part in settled.parts))
        for guard, run in ((owners, f"{self.task.run}\0policy"), (asked, "")):
            if guard is None:
                continue
            if guard is asked and owners is not None and owners.noise_multiplier:
                # Computed, so that noise is drawn once.
                settled = _materialised(settled, self.store.scratch())
            settled = guard.protect(
                settled,
                manifest,
                run=run or self.task.run,
                round=self.task.round,
                seed=self.task.seed,
                secret=self.store.noise_key,
            )
        return settled

    def _check_any_may_leave(self) -> None:
        names = self.task.tensors(self._manifest.specs)
        if not any(map(self.policy.may_leave, names)):
            raise PolicyError("the device's policy keeps every tensor of this model here.")

    def _allowed(self, settled: RuleOutput) -> RuleOutput:
        parts = [part for part in settled.parts if self.policy.may_leave(part.tensor)]
        if settled.parts and not parts:
            raise PolicyError("the device's policy keeps every tensor of this update here.")
        return replace(settled, parts=parts)


def _set_metrics(
    message: fleet_pb2.Metrics, num_examples: int, metrics: Mapping[str, float]
) -> None:
    message.num_examples = int(num_examples)
    for name, value in metrics.items():
        message.values[name] = float(value)


@lru_cache(maxsize=64)
def _advise(run: str, *texts: str) -> None:
    """Log advice on a private run, once in this process."""
    for text in texts:
        log.warning("run %s is private: %s", run, text)


def _materialised(settled: RuleOutput, scratch: Scratch) -> RuleOutput:
    """The same update with its lazy values computed and stored in `scratch`."""
    parts = [part._replace(values=scratch.keep(part.values)) for part in settled.parts]
    return replace(settled, parts=parts)


def differences(
    new: Mapping[str, Returned], received: Mapping[str, Values], task: Task
) -> Iterator[TensorPart]:
    """The parts to send: new values, each with the received one that is subtracted.

    Args:
        new: what `train` returned.
        received: the model by name.
        task: whose settings may select tensors.

    Raises:
        ReturnedError: the model lacks a tensor, or values have another shape.
    """
    wanted = task.tensors(received)
    for name, value in new.items():
        part = covered(name, value, received)
        if name in wanted:
            yield TensorPart(DELTA, name, *part)
