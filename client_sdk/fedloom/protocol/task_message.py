"""Encodes `TaskDescription` as a protobuf message, and decodes it.

Invariant: `from_message(to_message(task)) == task`.
"""

from typing import Any

from fedloom.protocol.errors import UsageError
from fedloom.protocol.task_description import (
    DevicePrivacy,
    DifferenceRef,
    FileRef,
    Scalar,
    TaskDescription,
    TaskMasking,
    UpdateBounds,
    check_config,
    task_seed,
)
from fedloom.protocol.task_kind import Kind
from fedloom.protocol.updates.compression import scheme_of
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import Adapters, ClientRule, Personal, RoundSettings, client_rule

_WEIGHTINGS = {
    "examples": fleet_pb2.WEIGHTING_EXAMPLES,
    "client": fleet_pb2.WEIGHTING_CLIENT,
    "uniform": fleet_pb2.WEIGHTING_UNIFORM,
}
_WEIGHTING_NAMES = {value: name for name, value in _WEIGHTINGS.items()}
_KINDS = {
    Kind.TRAIN: fleet_pb2.TASK_KIND_TRAIN,
    Kind.EVALUATE: fleet_pb2.TASK_KIND_EVALUATE,
    Kind.MESSAGE: fleet_pb2.TASK_KIND_MESSAGE,
}
_KIND_NAMES = {value: kind for kind, value in _KINDS.items()}


# ---- encoding --------------------------------------------------------------------------------


def to_message(task: TaskDescription) -> fleet_pb2.Task:
    """Return the message of a task."""
    rule, personal = task.rule, task.personal
    return fleet_pb2.Task(
        key=fleet_pb2.TaskKey(run=task.run, round=task.round),
        kind=_KINDS[task.kind],
        model=_reference(task.model),
        differences=[
            fleet_pb2.Difference(base=each.base, difference=_reference(each.file))
            for each in task.differences
        ],
        train=_train_message(task.settings),
        rule=fleet_pb2.ClientRule(name=rule.name, settings=rule.settings()),
        evaluate=task.evaluate,
        weighting=_WEIGHTINGS[task.weighting],
        limits=None
        if task.bounds is None
        else fleet_pb2.UpdateLimits(
            max_abs=task.bounds.max_abs,
            max_weight=task.bounds.max_weight,
            max_bytes=task.bounds.max_bytes,
            max_norm=task.bounds.max_norm or 0.0,
        ),
        config={name: _scalar_message(value) for name, value in task.config.items()},
        deadline_s=task.deadline_s,
        seed=task.seed,
        received=_reference(task.received),
        memory_round=task.memory_round,
        compression=None if task.scheme is None else task.scheme.message(),
        personal=_personal_message(personal) if personal.remembers else None,
        privacy=None
        if task.privacy is None
        else fleet_pb2.Privacy(
            clip=task.privacy.clip,
            count_within=task.privacy.count_within,
            noise_multiplier=task.privacy.noise_multiplier,
            seeded=task.privacy.seeded,
        ),
        run_name=task.run_name,
        adapters=_adapters_message(task.adapters),
        training_round=task.training_round,
        masking=None if task.masking is None else _masking_message(task.masking),
    )


def for_client(
    common: fleet_pb2.Task,
    client: str,
    seed: int,
    memory_round: int | None,
    own: FileRef | None = None,
) -> fleet_pb2.Task:
    """Return a round's task with the values that differ between its clients.

    Args:
        common: the part that is the same for all clients.
        client: the recipient.
        seed: of the run.
        memory_round: the last round that counted an update of this client; None if clients
            have no memory.
        own: the file that this client gets in place of the model; None for the model.
    """
    task = fleet_pb2.Task()
    task.CopyFrom(common)
    if memory_round is not None:
        task.memory_round = memory_round
    if own is not None:
        task.model.digest, task.model.size_bytes = own.digest, own.size_bytes
    task.seed = task_seed(seed, task.key.round, client)
    return task


def offered(task: fleet_pb2.Task) -> dict[str, int]:
    """Return the files that a client with this task may download: bytes by digest."""
    files = (task.received, task.model, *(each.difference for each in task.differences))
    return {file.digest: file.size_bytes for file in files if file.digest}


def _reference(file: FileRef | None) -> fleet_pb2.ModelRef | None:
    if file is None:
        return None
    return fleet_pb2.ModelRef(digest=file.digest, size_bytes=file.size_bytes)


def _train_message(settings: RoundSettings) -> fleet_pb2.TrainSettings:
    return fleet_pb2.TrainSettings(
        epochs=settings.epochs,
        steps=settings.steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        clip_norm=settings.clip_norm or 0.0,
        only=settings.only,
        tensor_share=settings.tensor_share if settings.tensor_share < 1 else 0.0,
        widths=settings.widths,
        patience=settings.patience or 0,
        time_budget_s=settings.time_budget_s or 0.0,
    )


def _personal_message(personal: Personal) -> fleet_pb2.Personal:
    return fleet_pb2.Personal(
        keep=personal.keep,
        head_epochs=personal.head_epochs,
        name="" if personal.own_model is None else personal.name,
        settings=personal.numbers(),
    )


def _adapters_message(adapters: Adapters) -> fleet_pb2.Adapters | None:
    """What a client does about adapters; None for what a task without them asks."""
    if adapters == Adapters():
        return None
    return fleet_pb2.Adapters(
        aggregate=adapters.aggregate, scale=adapters.scale or 0.0, rest=adapters.rest
    )


def _masking_message(masking: TaskMasking) -> fleet_pb2.Masking:
    return fleet_pb2.Masking(
        attempt=masking.attempt,
        sum_bits=masking.sum_bits,
        exponent=masking.exponent,
        group=masking.group,
        run_seed=masking.run_seed,
        metrics=masking.metrics,
        max_examples=masking.max_examples,
        session_s=masking.session_s,
        site=masking.site,
    )


def _scalar_message(value: Scalar) -> fleet_pb2.Scalar:
    match value:
        case bool():
            return fleet_pb2.Scalar(bool_value=value)
        case int():
            return fleet_pb2.Scalar(int_value=value)
        case float():
            return fleet_pb2.Scalar(double_value=value)
        case str():
            return fleet_pb2.Scalar(string_value=value)


# ---- decoding --------------------------------------------------------------------------------


def from_message(message: fleet_pb2.Task) -> TaskDescription:
    """Return the task of a message.

    Raises:
        UsageError: this version does not support its kind, weighting, rule, codec or personal
            model, or one of their settings.
    """
    try:
        config = {name: _scalar(value) for name, value in message.config.items()}
        check_config(config)
        return TaskDescription(
            run=message.key.run,
            round=message.key.round,
            kind=_KIND_NAMES[message.kind],
            model=_file(message.model),
            differences=tuple(
                DifferenceRef(base=each.base, file=_file(each.difference) or FileRef(digest=""))
                for each in message.differences
            ),
            settings=_settings(message.train),
            rule=rule_of(message.rule),
            evaluate=message.evaluate,
            weighting=_WEIGHTING_NAMES[message.weighting],
            bounds=_bounds(message),
            config=config,
            deadline_s=message.deadline_s,
            seed=message.seed,
            received=_file(message.received),
            memory_round=message.memory_round,
            scheme=scheme_of(message.compression),
            personal=_personal(message.personal),
            privacy=_privacy(message),
            run_name=message.run_name,
            adapters=_adapters(message.adapters),
            training_round=message.training_round,
            masking=_masking(message),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise UsageError(f"Expected a task that this version knows, got: {error}.") from error


def rule_of(message: fleet_pb2.ClientRule) -> ClientRule:
    """Return the client rule of a message; its settings travel as doubles, whole numbers too.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: the rule or a setting is unknown, missing or out of range.
    """
    settings = {name: int(v) if v.is_integer() else v for name, v in message.settings.items()}
    return client_rule(message.name, settings)


def _file(message: fleet_pb2.ModelRef) -> FileRef | None:
    if not message.digest:
        return None
    return FileRef(digest=message.digest, size_bytes=message.size_bytes)


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


def _bounds(message: fleet_pb2.Task) -> UpdateBounds | None:
    if not message.HasField("limits"):
        return None
    limits = message.limits
    return UpdateBounds(
        max_abs=limits.max_abs,
        max_weight=limits.max_weight,
        max_bytes=limits.max_bytes,
        max_norm=limits.max_norm or None,
    )


def _personal(message: fleet_pb2.Personal) -> Personal:
    settings: dict[str, Any] = dict(message.settings)
    if message.name:
        settings["name"] = message.name
    return Personal(keep=tuple(message.keep), head_epochs=message.head_epochs, **settings)


def _adapters(message: fleet_pb2.Adapters) -> Adapters:
    return Adapters(
        aggregate=message.aggregate or "factors",
        rest=message.rest or "drop",
        scale=message.scale or None,
    )


def _privacy(message: fleet_pb2.Task) -> DevicePrivacy | None:
    if not message.HasField("privacy"):
        return None
    asked = message.privacy
    return DevicePrivacy(
        clip=asked.clip,
        count_within=asked.count_within,
        noise_multiplier=asked.noise_multiplier,
        seeded=asked.seeded,
        in_session=message.HasField("masking"),
    )


def _masking(message: fleet_pb2.Task) -> TaskMasking | None:
    if not message.HasField("masking"):
        return None
    asked = message.masking
    return TaskMasking(
        attempt=asked.attempt,
        sum_bits=asked.sum_bits,
        exponent=asked.exponent,
        group=asked.group,
        run_seed=asked.run_seed,
        metrics=dict(asked.metrics),
        max_examples=asked.max_examples,
        session_s=asked.session_s,
        site=asked.site,
    )


def _scalar(value: fleet_pb2.Scalar) -> Scalar:
    kind = value.WhichOneof("kind")
    found: Scalar = getattr(value, kind) if kind else ""
    return found
