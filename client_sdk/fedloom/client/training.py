"""From a task to an update on disk: the author's code runs, and what it returns is checked here.

Only differences leave the device: new values less the received ones, for the coordinates that the
author returned. A mistake in what `train` returns is the author's to mend and is said in words
that name the tensor.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.client.api import Client, Kind, MaskOf, SliceOf, Task, Update, Weighting
from fedloom.client.budgets import Budgets, machine
from fedloom.client.compress import compress
from fedloom.client.leaving import too_few
from fedloom.client.local import Local, Settled, settle
from fedloom.client.policy import Policy, PolicyError
from fedloom.client.private import Guard
from fedloom.client.returned import check_dtype, check_measured, check_update
from fedloom.client.store import ClientStore
from fedloom.protocol.compression import describe, scheme_of
from fedloom.protocol.container import DTYPES, read_params
from fedloom.protocol.errors import UsageError
from fedloom.protocol.faults import crossing
from fedloom.protocol.manifest import Manifest, read_manifest
from fedloom.protocol.updates import TensorPart, write_body
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import (
    DELTA,
    Coverage,
    Full,
    Mask,
    Personal,
    RoundSettings,
    Slice,
    client_rule,
    slots_from_arrays,
    slots_to_arrays,
)

_KINDS = {fleet_pb2.TASK_KIND_TRAIN: Kind.TRAIN, fleet_pb2.TASK_KIND_EVALUATE: Kind.EVALUATE}
_WEIGHTINGS = {
    fleet_pb2.WEIGHTING_EXAMPLES: Weighting.EXAMPLES,
    fleet_pb2.WEIGHTING_CLIENT: Weighting.CLIENT,
    fleet_pb2.WEIGHTING_UNIFORM: Weighting.UNIFORM,
}

Returned: TypeAlias = "NDArray[Any] | SliceOf | MaskOf"


def task_from_message(message: fleet_pb2.Task, client: str = "") -> Task:
    """What an offer asks, as the author's code sees it.

    Args:
        message: the offer.
        client: this client's name.

    Raises:
        UsageError: this version of the client knows no such kind, weighting, rule or codec.
    """
    try:
        scheme_of(message.compression)
        return Task(
            run=message.key.run,
            round=message.key.round,
            client=client,
            kind=_KINDS[message.kind],
            settings=_settings(message.train),
            rule=client_rule(message.rule.name, dict(message.rule.settings)),
            config={name: _scalar(value) for name, value in message.config.items()},
            seed=message.seed,
            deadline_s=message.deadline_s,
            weighting=_WEIGHTINGS[message.weighting],
            local=Local(personal=_personal(message.personal)),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise UsageError(f"Expected a task that this version knows, got: {error}.") from error


def _settings(train: fleet_pb2.TrainSettings) -> RoundSettings:
    length = train.WhichOneof("length")
    return RoundSettings(
        epochs=train.epochs if length == "epochs" else None,
        steps=train.steps if length == "steps" else None,
        batch_size=train.batch_size,
        learning_rate=train.learning_rate,
        clip_norm=train.clip_norm or None,
        only=tuple(train.only),
        tensor_share=train.tensor_share or 1.0,
        widths=tuple(train.widths),
        patience=train.patience or None,
        time_budget_s=train.time_budget_s or None,
    )


def _personal(message: fleet_pb2.Personal) -> Personal:
    settings: dict[str, Any] = dict(message.settings)
    if message.name:
        settings["name"] = message.name
    return Personal(keep=tuple(message.keep), head_epochs=message.head_epochs, **settings)


def _scalar(value: fleet_pb2.Scalar) -> bool | int | float | str:
    kind = value.WhichOneof("kind")
    found: bool | int | float | str = getattr(value, kind) if kind else ""
    return found


class OutOfTimeError(Exception):
    """The training took longer than this device allows, and what there is does not count."""


class StoppedError(Exception):
    """The author's code returned because it was asked to: there is no update."""


@dataclass(frozen=True, slots=True)
class Work:
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

    def run(self) -> fleet_pb2.UpdateHeader:
        """Evaluate and train, and leave the update in the outbox. Blocks; runs in a thread.

        Raises:
            UsageError: what the author's code returned does not do.
            PolicyError: the device's owner keeps it here.
            StoppedError: it was stopped.
            OutOfTimeError: it took too long, and what there is of it cannot be sent.
        """
        self._step_back()
        path = self.store.model_path(self.message.model.digest)
        task = self.task
        header = fleet_pb2.UpdateHeader(
            task=self.message.key,
            client=self.name,
            model_digest=self.message.model.digest,
            weight=1.0,
        )
        self._prepare()
        wants_evaluation = self._may_evaluate and (
            self.message.evaluate or task.kind is Kind.EVALUATE
        )
        if wants_evaluation and self.client.can_evaluate():
            num_examples, metrics = self.client.evaluate(self._evaluated(path), task)
            check_measured(num_examples, metrics, by="evaluate")
            _set_metrics(header.evaluation, num_examples, metrics)
        if task.kind is Kind.TRAIN:
            self._check_any_may_leave(path)
            crossing("client.train.before")
            task = self._limited()
            trained = self.client.train(self._received(path), task)
            crossing("client.train.after")
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

    def _limited(self) -> Task:
        """The task, with as much time as this device allows from now on."""
        longest_s = self.budgets.training_s
        if longest_s is None:
            return self.task
        return replace(self.task, _ends_at=time.monotonic() + longest_s)

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
            received = read_params(self.store.model_path(self.message.received.digest))
            local.received = slots_from_arrays(received)
        if self._remembers:
            arrays = self.store.recall(self.task.run, self.message.memory_round)
            local.memory = slots_from_arrays(arrays)

    @property
    def _remembers(self) -> bool:
        scheme, task = scheme_of(self.message.compression), self.task
        of_codec = scheme is not None and scheme.remembers
        return of_codec or bool(task.rule.remembers) or task.local.personal.remembers

    def _write(self, header: fleet_pb2.UpdateHeader, update: Update, path: Path) -> None:
        check_update(update)
        if update.num_examples < self.policy.leaves.min_examples:
            raise too_few(self.policy, update.num_examples)
        header.weight = weight_of(update, self.task.weighting)
        if not self.message.HasField("privacy"):  # else metrics would tell what the noise hides
            metrics = update.metrics if self.policy.metrics else {}
            _set_metrics(header.training, update.num_examples, metrics)
        manifest = read_manifest(path)
        body = self.store.body_path(self.task.run, self.task.round)
        task = self.task
        settled = settle(
            task.rule,
            differences(update.params, read_params(path), task),
            task.local,
            task.settings,
            update.num_examples,
        )
        settled = self._protected(self._allowed(settled), manifest)
        parts, memory = settled.parts, dict(settled.memory)
        scheme = scheme_of(self.message.compression)
        if scheme is not None:
            compressed = compress(scheme, parts, manifest, task.seed, task.local.memory)
            parts = compressed.parts
            memory |= compressed.memory
            header.compression.CopyFrom(describe(scheme.codec))
        if self._remembers:
            before = self.message.memory_round
            self.store.remember(task.run, task.round, slots_to_arrays(memory), before=before)
        for name, value in settled.scalars.items():
            header.scalars[name] = value
        described, header.size_bytes, header.crc32c = write_body(body, parts, manifest)
        header.parts.extend(described)

    def _protected(self, settled: Settled, manifest: Manifest) -> Settled:
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
        for guard, run in ((owners, f"{self.task.run}\0policy"), (Guard.of(self.message), "")):
            if guard is not None:
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

    def _allowed(self, settled: Settled) -> Settled:
        """The parts that may leave."""
        parts = [part for part in settled.parts if self.policy.may_leave(part.tensor)]
        if settled.parts and not parts:
            raise PolicyError("the device's policy keeps every tensor of this update here.")
        return replace(settled, parts=parts)


def as_update(trained: object) -> Update:
    """What `train` returned, in one form.

    Raises:
        UsageError: it is neither an `Update` nor the three parts of one.
    """
    if isinstance(trained, tuple) and len(trained) == 3:
        trained = Update(*trained)
    if not isinstance(trained, Update):
        raise UsageError(
            "Expected train to return (params, num_examples, metrics) or an Update, "
            f"got {type(trained).__name__}."
        )
    return trained


def weight_of(update: Update, weighting: Weighting) -> float:
    """What an update counts for.

    Raises:
        UsageError: the run weights by client and the update says no weight.
    """
    match weighting:
        case Weighting.EXAMPLES:
            return float(update.num_examples)
        case Weighting.UNIFORM:
            return 1.0
        case Weighting.CLIENT:
            if update.weight is None:
                raise UsageError(
                    "Expected train to return an Update with a weight: this run weights by client."
                )
            return float(update.weight)


def _set_metrics(
    message: fleet_pb2.Metrics, num_examples: int, metrics: Mapping[str, float]
) -> None:
    message.num_examples = int(num_examples)
    for name, value in metrics.items():
        message.values[name] = float(value)


def differences(
    new: Mapping[str, Returned], received: Mapping[str, NDArray[Any]], task: Task
) -> Iterator[TensorPart]:
    """The parts to send: new values, beside the received ones that they are sent less of.

    Args:
        new: what `train` returned.
        received: the model by name.
        task: whose settings leave tensors out.

    Raises:
        UsageError: a tensor that the model lacks, or values of another shape; says which.
    """
    wanted = task.tensors(received)
    for name, value in new.items():
        if name not in received:
            raise UsageError(
                f"Expected tensors of the model ({', '.join(list(received)[:8])}, …), "
                f"got {name!r} from train."
            )
        if name not in wanted:
            continue
        old = received[name]
        yield TensorPart(DELTA, name, *_covered(name, value, old))


def _covered(
    name: str, value: Returned, old: NDArray[Any]
) -> tuple[Coverage, NDArray[Any], NDArray[Any]]:
    """The coverage of a returned value, its new values and the received ones under it."""
    match value:
        case SliceOf(values, ranges):
            covered = Slice(tuple((int(a), int(b)) for a, b in ranges))
            try:
                covered.check(old.shape)
            except ValueError as error:
                raise UsageError(f"{name}: {error}") from None
            values = np.asarray(values)
            _check_shape(name, values.shape, covered.shape)
            check_dtype(name, values)
            return covered, values, old[tuple(slice(a, b) for a, b in covered.ranges)]
        case MaskOf(values, mask):
            values = np.asarray(values)
            _check_shape(name, values.shape, old.shape)
            _check_shape(f"{name} (mask)", mask.shape, old.shape)
            check_dtype(name, values)
            bits = np.ascontiguousarray(mask, dtype=np.bool_)
            return Mask(bits.reshape(-1)), values[bits], old[bits]
        case _:
            values = np.asarray(value)
            _check_shape(name, values.shape, old.shape)
            check_dtype(name, values)
            return Full(), values, old


def _check_shape(name: str, got: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if got != expected:
        raise UsageError(f"Expected shape {expected} for {name!r} from train, got {got}.")
