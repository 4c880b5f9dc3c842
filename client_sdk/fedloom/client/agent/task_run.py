"""From a task to an update on disk: the author's code runs, and what it returns is checked here.

Only differences leave the device: new values less the received ones, for the coordinates that the
author returned. A mistake in what `train` returns is the author's to mend and is said in words
that name the tensor.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedloom.client.agent.trim_memory import trim
from fedloom.client.api import Client, Kind, Task, Update, Weighting
from fedloom.client.budgets import Budgets, machine
from fedloom.client.owner.policy import Policy, PolicyError
from fedloom.client.owner.update_check import too_few
from fedloom.client.state.store import ClientStore
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
from fedloom.protocol.crash_points import crossing
from fedloom.protocol.manifest import Manifest, read_manifest
from fedloom.protocol.task_description import TaskDescription
from fedloom.protocol.task_message import from_message
from fedloom.protocol.tensors.container import DTYPES, read_params
from fedloom.protocol.tensors.file_arrays import Scratch, stored_params
from fedloom.protocol.updates.compression import describe
from fedloom.protocol.updates.message import TensorPart, write_body
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import (
    DELTA,
)
from fedloom.strategies.exact.lazy_arrays import Values
from fedloom.strategies.state import slots_from_arrays, slots_to_arrays

_WORTH_TRIMMING_BYTES = 4 << 20
"""A model of this size or more leaves memory behind that is worth giving back."""


def task_from_message(message: fleet_pb2.Task, client: str = "") -> Task:
    """Return a task as the author's code sees it.

    Args:
        message: the offer.
        client: this client's name.

    Raises:
        UsageError: this version of the client knows no such kind, weighting, rule or codec.
    """
    asked = from_message(message)
    return Task(
        run=asked.run,
        round=asked.round,
        client=client,
        kind=Kind.TRAIN if asked.train else Kind.EVALUATE,
        settings=asked.settings,
        rule=asked.rule,
        config=dict(asked.config),
        seed=asked.seed,
        deadline_s=asked.deadline_s,
        weighting=Weighting(asked.weighting),
        local=RuleContext(personal=asked.personal),
    )


class OutOfTimeError(Exception):
    """The training took longer than this device allows, and what there is does not count."""


class StoppedError(Exception):
    """The author's code returned because it was asked to: there is no update."""


@dataclass(frozen=True, slots=True)
class TaskRun:
    """A task to be done by an author's client.

    Attributes:
        client: the author's.
        task: what the author sees.
        message: what the server sent.
        name: of this client.
        store: where the model is and the update goes.
        policy: what the device's owner lets leave.
        budgets: of the device.
    """

    client: Client
    task: Task
    message: fleet_pb2.Task
    name: str
    store: ClientStore
    policy: Policy = field(default_factory=Policy)
    budgets: Budgets = field(default_factory=Budgets)

    @property
    def _asked(self) -> TaskDescription:
        return from_message(self.message)

    def run(self) -> fleet_pb2.UpdateHeader:
        """Evaluate and train, and leave the update in the outbox. Blocks; runs in a thread.

        Raises:
            UsageError: what the author's code returned does not do.
            PolicyError: the device's owner keeps it here.
            StoppedError: it was stopped.
            OutOfTimeError: it took too long, and what there is of it cannot be sent.
        """
        self._step_back()
        self._trim()  # of what the transfers had needed
        try:
            return self._run()
        finally:
            self._trim()

    def _trim(self) -> None:
        """Give memory back, where the model is so large that it is worth the millisecond."""
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
        wants_evaluation = self._may_evaluate and self._asked.evaluates
        if wants_evaluation and self.client.can_evaluate():
            num_examples, metrics = as_measured(self.client.evaluate(self._evaluated(path), task))
            check(of_evaluation(num_examples, metrics))
            if num_examples >= self.policy.leaves.min_examples:
                _set_metrics(header.evaluation, num_examples, metrics)
            elif task.kind is Kind.EVALUATE:
                raise too_few(self.policy, num_examples, "measurements")
        if task.kind is Kind.TRAIN:
            self._check_any_may_leave(path)
            crossing("client.train.before")
            if self.budgets.training_s is not None:
                task.limit(self.budgets.training_s)
            trained = self.client.train(self._received(path), task)
            crossing("client.train.after")
            self._trim()  # of what only the training had needed
            if task.dropped:  # cut short: what there is of it is no update
                raise StoppedError(f"Round {task.round} of {task.run} was stopped.")
            if task.out_of_time:
                self._check_partial()
            self._write(header, as_update(trained), path)
        else:
            self.store.body_path(task.run, task.round).write_bytes(b"")
        self.store.owe(header)
        crossing("client.outbox.written")
        return header

    def _step_back(self) -> None:
        """Keep to the device's threads and priority, in the thread that this is."""
        budgets = self.budgets
        if budgets.nice or budgets.idle_io:
            machine.step_back(budgets.nice, idle_io=budgets.idle_io)
        if budgets.threads is not None:
            machine.use_threads(budgets.threads)

    def _check_partial(self) -> None:
        """Refuse a training without its end, where the rule would take it for a whole one."""
        rule, local = self.task.rule, self.task.local
        if not (rule.is_elementary or local.steps is not None):
            raise OutOfTimeError(
                f"Expected the training to end within training_s = {self.budgets.training_s:g} s, "
                f"as the client rule {rule.name} was not told how many steps there were."
            )

    def _received(self, path: Path) -> dict[str, NDArray[Any]]:
        """The model, with this client's own tensors in their places; for the author to change."""
        params = read_params(path, writable=True)
        return {**params, **self.task.local.own(params)}

    def _evaluated(self, path: Path) -> dict[str, NDArray[Any]]:
        """What this client is evaluated by; for the author to change."""
        params = read_params(path, writable=True)
        return {**params, **self.task.local.evaluated(params)}

    def _prepare(self) -> None:
        """Get what the rule receives, and what it and the compression remember."""
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
        if self._asked.privacy is None:  # else metrics would tell what the noise hides
            metrics = update.metrics if self.policy.metrics else {}
            _set_metrics(header.training, update.num_examples, metrics)
        manifest = read_manifest(path)
        task, scratch = self.task, self.store.scratch()
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
                # What earlier updates left out would come on top of what was clipped to the norm,
                # and may be older than the policy: an owner's bound holds without it.
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
        """The update as it may leave the device.

        What the owner wants comes first: whatever the run then does to it takes nothing back.
        """
        owners = self.policy.guard(self.message)
        if owners is not None and settled.scalars:
            raise PolicyError(
                "the device's policy has no way to hide the numbers that this run sends beside "
                f"tensors: {', '.join(settled.scalars)}."
            )
        # A noise of its own: the same stream twice would be one noise, only larger.
        asked = Guard.of(self._asked.privacy)
        for guard, run in ((owners, f"{self.task.run}\0policy"), (asked, "")):
            if guard is None:
                continue
            if guard is asked and owners is not None and owners.noise_multiplier:
                settled = _rested(settled, self.store.scratch())  # noise is made once
            settled = guard.protect(
                settled,
                lambda tensor: DTYPES[manifest.wire_dtype(tensor)],
                run=run or self.task.run,
                round=self.task.round,
                seed=self.task.seed,
                secret=self.store.noise_key,
            )
        return settled

    @property
    def _may_evaluate(self) -> bool:
        return self.policy.runs.evaluate and self.policy.metrics

    def _check_any_may_leave(self, path: Path) -> None:
        """Training for nothing is not begun."""
        names = self.task.tensors(read_manifest(path).specs)
        if not any(map(self.policy.may_leave, names)):
            raise PolicyError("the device's policy keeps every tensor of this model here.")

    def _allowed(self, settled: RuleOutput) -> RuleOutput:
        """The parts that may leave."""
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


def _rested(settled: RuleOutput, scratch: Scratch) -> RuleOutput:
    """The same update, with what is made when it is asked for made now."""
    parts = [replace(part, values=scratch.keep(part.values)) for part in settled.parts]
    return replace(settled, parts=parts)


def differences(
    new: Mapping[str, Returned], received: Mapping[str, Values], task: Task
) -> Iterator[TensorPart]:
    """The parts to send: new values, beside the received ones that they are sent less of.

    Args:
        new: what `train` returned.
        received: the model by name.
        task: whose settings leave tensors out.

    Raises:
        ReturnedError: a tensor that the model lacks, or values of another shape; says which.
    """
    wanted = task.tensors(received)
    for name, value in new.items():
        part = covered(name, value, received)
        if name in wanted:
            yield TensorPart(DELTA, name, *part)
