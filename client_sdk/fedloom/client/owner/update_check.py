"""The last look at what is about to leave: against the policy, whatever made it.

The training shell keeps to the policy as it makes an update; this looks at the bytes that are
really sent, also at an update that was made before a restart and under another policy.

Invariant: nothing is sent that `check_leaving` has not passed.
"""

import math
import os
from pathlib import Path

import numpy as np

from fedloom.client.owner.policy import Policy, PolicyError
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.tensors.container import read_layout
from fedloom.protocol.tensors.file_arrays import stored_params
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies.exact.lazy_arrays import Values, pieces_of

_SLACK = 1e-5
"""By which a norm may be above its bound: it is summed in another order here."""


def check_leaving(
    policy: Policy, offer: fleet_pb2.Task, header: fleet_pb2.UpdateHeader, body: Path
) -> None:
    """May an update leave?

    Args:
        policy: the owner's.
        offer: that it answers.
        header: as it would be sent.
        body: likewise.

    Raises:
        PolicyError: it may not; says why.
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
            f"the device's policy lets at most {most} bytes leave, got an update of "
            f"{header.size_bytes}."
        )
    if not policy.metrics and (header.training.values or header.evaluation.values):
        raise PolicyError("the device's policy lets no measurements leave.")
    if policy.privacy.clip_norm:
        _check_protection(policy, offer, header, body)


def check_examples(policy: Policy, header: fleet_pb2.UpdateHeader) -> None:
    """Was an update trained on enough, and are measurements of enough?

    Raises:
        PolicyError: one is not.
    """
    counted = header.training.num_examples
    if header.parts and header.HasField("training") and counted < policy.leaves.min_examples:
        raise too_few(policy, counted)
    measured = header.evaluation.num_examples
    if header.evaluation.values and measured < policy.leaves.min_examples:
        raise too_few(policy, measured, "measurements")


def too_few(policy: Policy, num_examples: int, what: str = "updates") -> PolicyError:
    """Why something that was made of so many examples stays here."""
    return PolicyError(
        f"the device's policy wants {what} of at least {policy.leaves.min_examples} examples, "
        f"got {num_examples}."
    )


def _check_body(header: fleet_pb2.UpdateHeader, body: Path) -> None:
    """The body holds what the header says and nothing beside it."""
    if os.path.getsize(body) != header.size_bytes:  # noqa: PTH202 - one stat is enough
        raise PolicyError("the update on disk is not as long as its header says.")
    named = {
        name
        for part in header.parts
        for name in (
            part.values,
            part.mask.bits,
            *(f"{part.values}.{role}" for role in part.encoding.arrays),
        )
    }
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
        raise PolicyError(f"this run also sends numbers ({names}), which nothing here would hide.")
    noisy = policy.privacy.noise or (offer.HasField("privacy") and offer.privacy.noise_multiplier)
    encoded = any(part.HasField("encoding") for part in header.parts)
    if noisy or encoded or not header.parts:
        return  # noise is longer than the clip, and a codec rounds
    arrays = stored_params(body)
    norm = math.sqrt(sum(_square(arrays[part.values]) for part in header.parts))
    if norm > policy.privacy.clip_norm * (1 + _SLACK):
        raise PolicyError(
            f"the device's policy wants a norm of at most {policy.privacy.clip_norm:g}, got an "
            f"update of {norm:g}."
        )


def _square(values: Values) -> float:
    """The squared norm, a piece at a time."""
    pieces = (np.asarray(piece, np.float64) for _, piece in pieces_of(values))
    return sum(float(np.dot(piece, piece)) for piece in pieces)
