"""What a masked update consists of, and the checks of a server's admission, made on the device.

A server sees only sums, so it cannot check an update; the device does, with the same code. It
reports `unfit` alone: which check failed, and by how much, would tell about the update.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from fedloom.client.update.clip_and_noise import Guard
from fedloom.protocol.errors import Code, Refusal, UsageError
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.masking import BodyLayout, Slices, width_class, write_body
from fedloom.protocol.masking.body import Bytes
from fedloom.protocol.task_description import TaskDescription, TaskMasking
from fedloom.protocol.task_words import words_of
from fedloom.protocol.updates.addends import masked_addends
from fedloom.protocol.updates.body import BodyChecker
from fedloom.protocol.updates.header import PlannedPart, check_header
from fedloom.protocol.updates.masked_parts import narrowed
from fedloom.protocol.updates.message import Limits
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import Adapters
from fedloom.strategies.exact.fixed_point import masked_weight, weight_units
from fedloom.strategies.exact.partial import SCALAR, Full, Key, TensorSpec
from fedloom.strategies.masking.noise import MemberNoise
from fedloom.strategies.masking.words import MaskedWords
from fedloom.strategies.privacy.release import WITHIN

_CHUNK_BYTES: Final = 1 << 20
_SCALAR_SPEC: Final = TensorSpec(shape=(), dtype=np.dtype(np.float64))


class UnfitUpdateError(Exception):
    """The update would be refused by a server that could see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatePlan:
    """What the update of a masked task consists of; the server has the same.

    Attributes:
        masking: of the task.
        seed: of the task.
        manifest: of the model.
        limits: of the run.
        specs: tensors and scalars of an update, each with the shape that it covers.
        width: that this client's name draws; None: every update has all of all tensors.
        slices: of the tensors that an update covers in part.
        words: after them.
        guard: of the run's privacy; None for none.
        round: its number.
    """

    masking: TaskMasking
    seed: int
    manifest: Manifest
    limits: Limits
    specs: Mapping[Key, TensorSpec]
    width: float | None
    slices: Slices
    words: MaskedWords
    guard: Guard | None
    round: int

    @property
    def layout(self) -> BodyLayout:
        """Of the body."""
        return BodyLayout(
            sum_bits=self.masking.sum_bits,
            num_values=sum(spec.size for spec in self.specs.values()),
            num_words=len(self.words.names),
        )

    @property
    def coverage(self) -> str:
        """The class of the update."""
        return "" if self.width is None else width_class(self.width, self.slices)


def plan_of(asked: TaskDescription, manifest: Manifest, width: float | None = None) -> UpdatePlan:
    """Return the plan of a masked task whose update covers whole tensors.

    Args:
        asked: the task.
        manifest: of the model.
        width: that this client's name draws, `RoundTerms.width`.

    Raises:
        UsageError: the task does not fit the model.
    """
    masking = asked.masking
    if masking is None or asked.bounds is None:
        raise UsageError("Expected a masked task with limits, got another.")
    try:
        limits = _limits(asked, manifest)
    except ValueError as error:
        raise UsageError(str(error)) from None
    outside = limits.kept | limits.fixed | limits.unasked
    sent = [name for name in manifest.specs if name not in outside]
    tensors = {(group, name): manifest.specs[name] for group in limits.groups for name in sent}
    scalars = {(SCALAR, name): _SCALAR_SPEC for name in limits.scalars}
    specs = tensors | scalars if asked.train else {}
    return UpdatePlan(
        masking=masking,
        seed=asked.seed,
        manifest=manifest,
        limits=limits,
        specs=specs,
        width=width,
        slices={},
        words=words_of(asked),
        guard=Guard.of(asked.privacy if asked.train else None),
        round=asked.round,
    )


def _limits(asked: TaskDescription, manifest: Manifest) -> Limits:
    """The limits of the run, from the task alone."""
    bounds, names = asked.bounds, manifest.specs.keys()
    assert bounds is not None
    private = asked.privacy
    kept = asked.personal.kept(manifest.specs)
    fixed = frozenset(name for name in names if private is not None and not manifest.is_float(name))
    frozen = asked.adapters.frozen(manifest.specs)
    trained = asked.settings.matching(names - kept - frozen) - fixed
    counted = (WITHIN,) if private is not None and private.count_within else ()
    return Limits(
        max_abs=bounds.max_abs,
        max_norm=bounds.max_norm,
        max_weight=bounds.max_weight,
        weighting=asked.weighting,
        groups=asked.rule.groups,
        max_bytes=bounds.max_bytes,
        scalars=(*asked.rule.scalars, *counted),
        kept=kept,
        fixed=fixed,
        unasked=frozenset(names) - trained - kept - fixed,
        adapters=None if asked.adapters == Adapters() else asked.adapters,
    )


def fitted(plan: UpdatePlan, header: fleet_pb2.UpdateHeader, body: Path) -> UpdatePlan:
    """Check an update as a server would, before anything of it is masked.

    Args:
        plan: of the task.
        header: of the update.
        body: its file.

    Returns:
        The plan of this update, which covers slices where the client has a narrow model.

    Raises:
        UnfitUpdateError: a server would refuse it; the message says why.
    """
    try:
        planned = check_header(header, plan.limits, plan.manifest)
        slices = _slices(plan, planned)
        specs = narrowed(plan.specs, slices)
        checker = BodyChecker(header, planned, plan.limits, plan.manifest)
        with body.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                checker.feed(chunk)
        if header.parts:
            checker.finish()
            masked_weight(header.weight)
        _words(plan, header)
    except (Refusal, ValueError) as error:
        code = f"{error.code}: " if isinstance(error, Refusal) else ""
        raise UnfitUpdateError(f"{code}{error}") from error
    return replace(plan, specs=specs, slices=slices)


def _slices(plan: UpdatePlan, planned: Sequence[PlannedPart]) -> Slices:
    """Check that an update covers each tensor; returns those of which it covers a slice."""
    narrow = plan.width is not None and plan.width < 1
    slices = {(p.group, p.tensor): p.slice for p in planned if p.slice is not None and narrow}
    covered = {(part.group, part.tensor) for part in planned if part.coverage == Full()}
    covered |= slices.keys()
    wanted = {key for key in plan.specs if key[0] != SCALAR}
    if len(planned) != len(covered) or covered != wanted:
        odd = min(wanted ^ covered, default=("", "a slice"))[1]
        raise Refusal(
            Code.UNKNOWN_TENSOR,
            f"Expected {'values' if narrow else 'whole values'} of each of the {len(wanted)} "
            f"tensors of a masked update, as all members of its session send them, got "
            f"{len(planned)} parts, which differ in {odd!r}.",
        )
    return slices


def integers(plan: UpdatePlan, header: fleet_pb2.UpdateHeader, body: Path, members: int) -> Bytes:
    """Return the body of a checked update before it is masked, with the device's share of noise.

    Args:
        plan: of the update.
        header: of the update.
        body: its file.
        members: on the roster that this device saw.

    Raises:
        UsageError: the noise is out of range.
        ValueError: an integer does not fit its word: the run's bounds are wrong.
    """
    units = weight_units(masked_weight(header.weight)) if plan.specs else 0
    addends = masked_addends(
        body,
        header,
        plan.specs,
        units=units,
        exponent=plan.masking.exponent,
        sum_bits=plan.masking.sum_bits,
        seed=plan.seed,
        noise=None if plan.guard is None else _share(plan, plan.guard, members),
    )
    return write_body(plan.layout, addends, _words(plan, header))


def _share(plan: UpdatePlan, guard: Guard, members: int) -> MemberNoise | None:
    """This device's share of the noise, which nothing but this body has."""
    return guard.share(
        members=members,
        exponent=plan.masking.exponent,
        size=plan.layout.num_values,
        round=plan.round,
        key=os.urandom(32),
    )


def _words(plan: UpdatePlan, header: fleet_pb2.UpdateHeader) -> list[int]:
    reports = {
        kind: (each.num_examples, dict(each.values))
        for kind, each in (("training", header.training), ("evaluation", header.evaluation))
    }
    words = plan.words.of(header.weight if header.parts else 0.0, reports)
    return [words[name] for name in plan.words.names]
