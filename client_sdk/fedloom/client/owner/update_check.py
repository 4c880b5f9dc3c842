"""The last check of an update against the policy, before it is sent.

`TaskRun` applies the policy when it makes an update. This checks the bytes that are sent, also of
an update that was made before a restart or under another policy.

Invariant: an update is sent only after `check_leaving` passed.
"""

import math
import os
from pathlib import Path

import numpy as np

from fedloom.client.owner.policy import Policy, PolicyError
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.tensors.container import read_layout
from fedloom.protocol.tensors.file_arrays import stored_params
from fedloom.protocol.updates.compression import weights_name
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies.exact.lazy_arrays import Values, pieces_of

_SLACK = 1e-5
"""Relative tolerance of a norm, which is summed in another order here."""


def check_leaving(
    policy: Policy, offer: fleet_pb2.Task, header: fleet_pb2.UpdateHeader, body: Path
) -> None:
    """Check that an update may leave.

    Raises:
        PolicyError: it may not; the message gives the reason.
    """
    if (objection := policy.objection(offer)) is not None:
        raise PolicyError(objection)
    for part in header.parts:
        if not policy.may_leave(part.tensor):
            raise PolicyError(f"the device's policy keeps {part.tensor!r} here.")
    _check_body(header, body)
    check_examples(policy, header)
    most = policy.leaves.max_bytes
    if most and header.size_bytes > most:
        raise PolicyError(
            f"the device's policy allows updates of at most {most} bytes; this one has "
            f"{header.size_bytes}."
        )
    if not policy.metrics and (header.training.values or header.evaluation.values):
        raise PolicyError("the device's policy lets no metrics leave.")
    if policy.privacy.clip_norm:
        _check_protection(policy, offer, header, body)


def check_examples(policy: Policy, header: fleet_pb2.UpdateHeader) -> None:
    """Check that an update and its metrics are of enough examples.

    Raises:
        PolicyError: one is not.
    """
    counted = header.training.num_examples
    if header.parts and header.HasField("training") and counted < policy.leaves.min_examples:
        raise too_few(policy, counted)
    measured = header.evaluation.num_examples
    if header.evaluation.values and measured < policy.leaves.min_examples:
        raise too_few(policy, measured, "metrics")


def too_few(policy: Policy, num_examples: int, what: str = "updates") -> PolicyError:
    """The error for updates or metrics of too few examples."""
    return PolicyError(
        f"the device's policy requires {policy.leaves.min_examples} examples for {what}, "
        f"got {num_examples}."
    )


def _check_body(header: fleet_pb2.UpdateHeader, body: Path) -> None:
    """Check that the body has the header's size, and no other tensors than the header names."""
    if os.path.getsize(body) != header.size_bytes:  # noqa: PTH202 - one stat is enough
        raise PolicyError("the size of the update on disk differs from its header.")
    named = {
        name
        for part in header.parts
        for name in (
            part.values,
            part.mask.bits,
            *(f"{part.values}.{role}" for role in part.encoding.arrays),
        )
    }
    if header.HasField("site"):
        every = zip(header.parts, header.site.tensors, strict=True)
        named |= {weights_name(part) for part, tensor in every if tensor.HasField("weights")}
    if not header.size_bytes:
        return
    try:
        with body.open("rb") as file:
            there = read_layout(file).tensors
    except IntegrityError as error:
        raise PolicyError(f"the update on disk cannot be read: {error}") from error
    if spare := sorted(set(there) - named):
        raise PolicyError(f"the update on disk holds {spare[0]!r}, which its header does not name.")


def _check_protection(
    policy: Policy, offer: fleet_pb2.Task, header: fleet_pb2.UpdateHeader, body: Path
) -> None:
    if policy.adds(offer) and header.scalars:
        names = ", ".join(sorted(header.scalars))
        raise PolicyError(
            f"the device's policy cannot protect the numbers that this run sends ({names})."
        )
    asked = offer.privacy.noise_multiplier if offer.HasField("privacy") else 0.0
    noisy = policy.privacy.noise or (asked and not offer.HasField("masking"))
    encoded = any(part.HasField("encoding") for part in header.parts)
    if noisy or encoded or not header.parts:
        return  # noise exceeds the clip norm, and a codec rounds
    arrays = stored_params(body)
    norm = math.sqrt(sum(_square(arrays[part.values]) for part in header.parts))
    if norm > policy.privacy.clip_norm * (1 + _SLACK):
        raise PolicyError(
            f"the device's policy requires a norm of at most {policy.privacy.clip_norm:g}; the "
            f"update has {norm:g}."
        )


def _square(values: Values) -> float:
    """The squared norm, computed piece by piece."""
    pieces = (np.asarray(piece, np.float64) for _, piece in pieces_of(values))
    return sum(float(np.dot(piece, piece)) for piece in pieces)
