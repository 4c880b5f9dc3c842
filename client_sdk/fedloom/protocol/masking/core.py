"""The core of a task: what all members of a masking session must have been told alike.

A server that gave one client another learning rate, configuration or seed than the others could
read that client's update from the sum. So every field of the task enters the id of the session,
save those that tell no updates apart: devices with another core share no mask.

    core = H("core", task, terms)

A message is the frames of number and value of each field that is set, by number; a field without
presence is left out at its default. A repeated field is the frames of its values, a map the frames
of its keys and values by the bytes of the keys.

References:
    Pasquini, Francati, Ateniese, Eluding Secure Aggregation in Federated Learning via Model
    Inconsistency (2022).
"""

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking.encoding import digest, field_bytes, frames, metric_bounds
from fedloom.protocol.masking.terms import RoundTerms
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies.partial_work import PartialWork

UNCOVERED: Final = frozenset({"deadline_s", "seed", "memory_round", "differences"})
"""Fields of a task that differ between clients: `seed` follows from the run's seed and the name,
and the others change neither the data nor the rule."""


def task_core(
    task: fleet_pb2.Task,
    *,
    sum_bits: int,
    exponent: int,
    group: int,
    run_seed: int,
    metrics: Mapping[str, float],
) -> bytes:
    """The core of a task and of the terms of its sum, 32 bytes.

    Args:
        task: as the device received it.
        sum_bits: b, bits of a value in the sum.
        exponent: s of the sum's grid 2^-s.
        group: most members of a session.
        run_seed: from which the seed of each client follows, `task_description.task_seed`.
        metrics: name → bound, of the metrics that travel as masked words.

    Raises:
        Refusal: MASKING_REFUSED, the task has a field that this version does not know.
    """
    terms = frames(sum_bits, exponent, group, run_seed, metric_bounds(metrics))
    return digest("core", _message(task, UNCOVERED), terms)


def terms_of(task: fleet_pb2.Task, federation: str) -> RoundTerms:
    """The terms of a masked task, from what a device received; the server computes the same.

    Args:
        task: with `masking` set.
        federation: its name.

    Raises:
        Refusal: MASKING_REFUSED, the task has a field that this version does not know, or its
            `masking` is out of range.
    """
    masking = task.masking
    core = task_core(
        task,
        sum_bits=masking.sum_bits,
        exponent=masking.exponent,
        group=masking.group,
        run_seed=masking.run_seed,
        metrics=masking.metrics,
    )
    widths, trains = tuple(task.train.widths), task.kind == fleet_pb2.TASK_KIND_TRAIN
    try:
        return RoundTerms(
            federation=federation,
            run=task.key.run,
            round=task.key.round,
            attempt=masking.attempt,
            core=core,
            group=masking.group,
            widths=PartialWork(widths=widths) if widths and trains else None,
        )
    except ValueError as error:
        raise Refusal(Code.MASKING_REFUSED, str(error)) from error


def _message(message: Message, left_out: frozenset[str] = frozenset()) -> bytes:
    _check_known(message)
    return b"".join(
        frames(field.number, _value(field, value))
        for field, value in message.ListFields()
        if field.name not in left_out
    )


def _value(field: FieldDescriptor, value: Any) -> bytes:
    entries = field.message_type
    if entries is not None and entries.GetOptions().map_entry:
        kind = entries.fields_by_name["value"]
        pairs = sorted((field_bytes(key), _single(kind, value[key])) for key in value)
        return frames(*(part for pair in pairs for part in pair))
    if isinstance(value, bytes | str | int | float | Message):
        return _single(field, value)
    return frames(*(_single(field, each) for each in value))


def _single(field: FieldDescriptor, value: Any) -> bytes:
    return _message(value) if field.message_type is not None else field_bytes(value)


def _check_known(message: Message) -> None:
    fields = UnknownFieldSet(message)
    unknown = [fields[i].field_number for i in range(len(fields))]
    if unknown:
        raise Refusal(
            Code.MASKING_REFUSED,
            f"Expected a task of this version, got one with unknown fields {unknown[:8]} in "
            f"{message.DESCRIPTOR.name}: what they ask for could differ between members.",
        )
