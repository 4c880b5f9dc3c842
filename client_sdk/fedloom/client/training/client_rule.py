"""A client rule on a device: its inputs, and its application to the trained tensors.

Agent and simulator share this, so that the same training sends the same bits.

Invariants: memory belongs to one round and is never changed; a repeated task starts from the same
memory and produces the same.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.client.training.length import num_steps
from fedloom.protocol.errors import UsageError
from fedloom.protocol.tensors.file_arrays import FileArray, Scratch
from fedloom.protocol.updates.message import TensorPart
from fedloom.strategies import (
    Adapters,
    ClientRule,
    Full,
    LocalWork,
    Params,
    Personal,
    RoundSettings,
    TrainedTensor,
)
from fedloom.strategies.exact.lazy_arrays import Held, Values, changed, piece_of, pieces_of
from fedloom.strategies.personal.settings import KEPT, MIX, OWN, OWN_BUFFERS

Slots: TypeAlias = Mapping[str, Mapping[str, Values]]
"""slot → tensor → its values, which `np.asarray` converts to an array."""
_BLOCK = 1 << 16


@dataclass(slots=True, kw_only=True)
class RuleContext:
    """Inputs of a client rule on this device in one round, and facts about the training.

    Attributes:
        received: slots from the server, beside the model.
        memory: slots from this client's last accepted round.
        personal: which tensors or models stay on this device.
        adapters: what the run averages of low-rank adapters.
        trainable: tensors that were trained by their gradients; None for all float tensors.
        steps: optimizer steps taken; None for the number that the settings give. With momentum, or
            at other learning rates than the task's, the sum of the gradients' weights: see
            `fedloom.strategies.local_optimizers`.
        initial_loss: mean loss over the local examples before training.
        full_gradient: gradient of that loss, by tensor.
        cluster: number of the trained model, if the rule has several; 0 is the run's own.
        own_model: slots of the client's own model after its training, if it trains one.
    """

    received: Slots = field(default_factory=dict)
    memory: Slots = field(default_factory=dict)
    personal: Personal = Personal()  # noqa: RUF009 - immutable
    adapters: Adapters = Adapters()  # noqa: RUF009 - immutable
    trainable: frozenset[str] | None = None
    steps: float | None = None
    initial_loss: float = 0.0
    full_gradient: Params = field(default_factory=dict)
    cluster: int | None = None
    own_model: Slots | None = None

    def own(self, params: Params) -> dict[str, NDArray[Any]]:
        """Copies of this client's personal tensors, for those of a received model."""
        mine = self.memory.get(KEPT, {})
        return {n: np.array(mine[n]) for n in self.personal.kept(params) if n in mine}

    def models(self, params: Params, rule: ClientRule) -> list[dict[str, NDArray[Any]]]:
        """All models of the rule: the received one, and those beside it."""
        return [self.model(number, params, rule) for number in range(len(rule.groups))]

    def model(self, number: int, params: Params, rule: ClientRule) -> dict[str, NDArray[Any]]:
        """One of the rule's models; 0 is the received one."""
        beside = self.received.get(rule.groups[number], {}) if number else {}
        model = {n: _like(np.asarray(beside.get(n, a)), a.dtype) for n, a in params.items()}
        return {**model, **self.own(params)}

    @property
    def extra_metrics(self) -> dict[str, float]:
        """Metrics that a rule adds to those of the training."""
        return {} if self.cluster is None else {"cluster": float(self.cluster)}

    @property
    def mix(self) -> float:
        """Share of its own model that this client mixes in."""
        method = self.personal.own_model
        assert method is not None
        return float(np.asarray(self.memory[MIX][MIX])) if MIX in self.memory else method.start

    def evaluated(self, params: Params) -> dict[str, NDArray[Any]]:
        """Tensors that replace a received model's when this client evaluates."""
        method = self.personal.own_model
        if method is None:
            return self.own(params)
        own = {n: np.asarray(a) for n, a in self.memory.get(OWN, {}).items() if n in params}
        found = {n: method.point(own[n], params[n], self.mix) for n in own}
        buffers = {n: a for n, a in self.memory.get(OWN_BUFFERS, {}).items() if n in params}
        return {n: np.array(array) for n, array in (found | buffers).items()}

    def slots_of(
        self, rule: ClientRule, tensor: str, shape: tuple[int, ...]
    ) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """What the rule receives and remembers of one tensor; zeros before the first round."""

        def whole(found: Mapping[str, Values | None]) -> dict[str, NDArray[Any]]:
            return {
                n: np.zeros(shape, np.float32) if a is None else np.asarray(a)
                for n, a in found.items()
            }

        received, memory = self.found(rule, tensor)
        return whole(received), whole(memory)

    def found(
        self, rule: ClientRule, tensor: str
    ) -> tuple[dict[str, Values | None], dict[str, Values | None]]:
        """As `slots_of`, in the stored form; None before the first round."""
        return (
            {slot: self.received.get(slot, {}).get(tensor) for slot in rule.receives},
            {slot: self.memory.get(slot, {}).get(tensor) for slot in rule.remembers},
        )


@dataclass(frozen=True, slots=True)
class RuleOutput:
    """An update after the client rule.

    Attributes:
        parts: to send.
        scalars: to send.
        memory: slot → tensor → array, to store for this client's next round.
    """

    parts: Sequence[TensorPart]
    scalars: Mapping[str, float] = field(default_factory=dict)
    memory: Slots = field(default_factory=dict)


def apply_rule(
    rule: ClientRule,
    parts: Iterable[TensorPart],
    local: RuleContext,
    settings: RoundSettings,
    num_examples: int,
    *,
    scratch: Scratch | None = None,
) -> RuleOutput:
    """Apply a client rule to trained values. The result shares their arrays.

    Args:
        rule: of the round.
        parts: trained values beside received ones.
        local: the rule's inputs.
        settings: of the training.
        num_examples: trained on.
        scratch: for the rule's results, computed piece by piece if the rule is elementwise; None:
            results stay in memory.

    Raises:
        UsageError: the rule needs whole tensors and got a part of one.
    """
    listed, memory = _without_personal(list(parts), local)
    if rule.is_elementary:
        return RuleOutput(listed, memory=memory)
    if rule.picks:
        return RuleOutput([_of_cluster(rule, part, local) for part in listed], memory=memory)
    ours = [part for part in listed if _is_trained(part, local)]
    steps = num_steps(num_examples, settings) if local.steps is None else local.steps
    work = LocalWork(
        steps=steps or 1,  # without a step the update is zero
        learning_rate=settings.learning_rate,
        num_examples=num_examples,
        initial_loss=local.initial_loss,
        norm=_norm(ours) if rule.scalars else 0.0,
    )
    sent: list[TensorPart] = [part for part in listed if not _is_trained(part, local)]
    memory |= {slot: {} for slot in rule.remembers}
    for part in ours:
        _check_whole(rule, part, local)
        groups, kept = _made(rule, part, local, work, scratch)
        sent += [
            TensorPart(group, part.tensor, part.coverage, values)
            for group, values in groups.items()
        ]
        for slot, values in kept.items():
            memory[slot][part.tensor] = values
    return RuleOutput(sent, rule.numbers(work), memory)


def _without_personal(
    parts: list[TensorPart], local: RuleContext
) -> tuple[list[TensorPart], dict[str, dict[str, Values]]]:
    """The parts to send, and the memory of personal tensors or of the client's own model."""
    if local.personal.own_model is not None:
        if local.own_model is None:
            raise UsageError(
                f"Expected this client's own model from train, as personal.name = "
                f"{local.personal.name!r} needs it, got none. Use TorchClient, or set "
                "task.local.own_model."
            )
        return parts, {slot: dict(arrays) for slot, arrays in local.own_model.items()}
    if not local.personal.keep:
        return parts, {}
    kept = local.personal.kept(part.tensor for part in parts)
    memory = dict(local.memory.get(KEPT, {}))
    for part in parts:
        if part.tensor in kept:
            if not isinstance(part.coverage, Full):
                raise UsageError(
                    f"Expected {part.tensor!r} whole from train, as personal.keep lists it, got a "
                    "part of it. Return the whole tensor."
                )
            memory[part.tensor] = part.values
    return [part for part in parts if part.tensor not in kept], {KEPT: memory}


def _of_cluster(rule: ClientRule, part: TensorPart, local: RuleContext) -> TensorPart:
    """A part in the group of the trained model, as the difference to that model."""
    if local.cluster is None or not isinstance(part.coverage, Full):
        raise UsageError(
            f"Expected whole tensors of one of {len(rule.groups)} models from train, as the client "
            f"rule {rule.name} needs, got {part.tensor!r}. Use TorchClient, or train one of "
            "task.local.models(params, task.rule) and set task.local.cluster to its number."
        )
    if not local.cluster:
        return part
    group = rule.groups[local.cluster]
    base = local.received.get(group, {}).get(part.tensor)
    if base is None or part.less is None:
        return part._replace(group=group)
    alike = partial(_like, dtype=part.less.dtype)
    less = changed(lambda of, _: alike(of[0]), base, dtype=part.less.dtype)
    return part._replace(group=group, less=less)


def _like(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array in another dtype; rounded for an integer dtype."""
    whole = dtype.kind in "iu" and array.dtype.kind == "f"
    return (np.rint(array) if whole else array).astype(dtype, copy=False)


def _is_trained(part: TensorPart, local: RuleContext) -> bool:
    named = local.trainable is None or part.tensor in local.trainable
    return named and part.values.dtype.kind == "f"


def _check_whole(rule: ClientRule, part: TensorPart, local: RuleContext) -> None:
    if not isinstance(part.coverage, Full):
        raise UsageError(
            f"Expected {part.tensor!r} whole from train, as the client rule {rule.name} needs it, "
            "got a part of it. Return the whole tensor, or run with another strategy."
        )
    if rule.needs_gradient and part.tensor not in local.full_gradient:
        raise UsageError(
            f"Expected the gradient of {part.tensor!r} over all examples, as the client rule "
            f"{rule.name} needs it, got none. Set task.local.full_gradient in train."
        )


_Made: TypeAlias = tuple[Mapping[str, Values], Mapping[str, Values]]
"""Sent values by group, and remembered values by slot."""


def _made(
    rule: ClientRule, part: TensorPart, local: RuleContext, work: LocalWork, scratch: Scratch | None
) -> _Made:
    if scratch is not None and rule.elementwise and part.values.size:
        return _made_by_pieces(rule, part, local, work, scratch)
    received, memory = local.slots_of(rule, part.tensor, part.values.shape)
    after = rule.after(
        TrainedTensor(
            delta=np.asarray(_delta(part)),
            received=received,
            memory=memory,
            full_gradient=local.full_gradient.get(part.tensor),
            work=work,
        )
    )
    if scratch is None:
        return after.groups, after.memory
    return (
        {group: scratch.keep(values) for group, values in after.groups.items()},
        {slot: scratch.keep(values) for slot, values in after.memory.items()},
    )


def _made_by_pieces(
    rule: ClientRule, part: TensorPart, local: RuleContext, work: LocalWork, scratch: Scratch
) -> _Made:
    """Apply an elementwise rule to one tensor, without loading all of it into memory.

    An input that the rule returns unchanged takes no room: it is computed again when read.
    """
    delta, gradient = _delta(part), local.full_gradient.get(part.tensor)
    rooms: dict[tuple[str, str], Values] = {}
    for start, values in pieces_of(delta):
        stop = start + values.size

        def of(slots: Slots, names: tuple[str, ...], start: int = start, stop: int = stop) -> Any:
            found = {slot: slots.get(slot, {}).get(part.tensor) for slot in names}
            return {
                slot: np.zeros(stop - start, np.float32)
                if array is None
                else piece_of(array, start, stop)
                for slot, array in found.items()
            }

        at = TrainedTensor(
            delta=values,
            received=of(local.received, rule.receives),
            memory=of(local.memory, rule.remembers),
            full_gradient=None if gradient is None else piece_of(gradient, start, stop),
            work=work,
        )
        after = rule.after(at)
        made = {("group", name): array for name, array in after.groups.items()}
        made |= {("memory", name): array for name, array in after.memory.items()}
        for key, array in made.items():
            if key not in rooms:
                rooms[key] = _room(array, at, delta, gradient, scratch)
            room = rooms[key]
            if isinstance(room, FileArray):
                room.put(start, array)
    return (
        {name: room for (kind, name), room in rooms.items() if kind == "group"},
        {name: room for (kind, name), room in rooms.items() if kind == "memory"},
    )


def _room(
    array: NDArray[Any],
    at: TrainedTensor,
    delta: Values,
    gradient: NDArray[Any] | None,
    scratch: Scratch,
) -> Values:
    """Storage for pieces like this one; the input itself if the rule returned it unchanged."""
    if array is at.delta:
        return delta
    if array is at.full_gradient and gradient is not None:
        return Held(gradient)
    return scratch.room(delta.shape, array.dtype)


def _delta(part: TensorPart) -> Values:
    if part.less is None:
        return part.values
    return part.sent(np.result_type(part.values.dtype, np.float32))


def _norm(parts: Sequence[TensorPart]) -> float:
    """The Euclidean norm of all differences, in float64, block by block in a fixed order."""
    total = 0.0
    for part in parts:
        for _, piece in pieces_of(_delta(part), _BLOCK):
            block = piece.astype(np.float64)
            total += float(np.square(block, out=block).sum())
    return math.sqrt(total)
