"""Checks of an offer: its names and numbers must be within limits before they are used.

The signature proves who made an offer, not that it is valid: the server may be faulty, or its key
stolen. An offer must not choose file paths, keep the device busy for years, or crash the agent.

Invariant: a name that becomes part of a path has passed `check_offer`.
"""

import math
import re

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies.masking.sessions import LEAST_GROUP, MAX_GROUP

_RUN = re.compile(r"[\w-]{1,128}")
_DIGEST = re.compile(r"[0-9a-f]{64}")

MAX_RUN_BYTES = 200
"""Longest run id, bytes: file names append a suffix to it."""
MAX_MODEL_BYTES = 1 << 42
MAX_DIFFERENCES = 64
MAX_EPOCHS = 100_000
MAX_STEPS = 100_000_000
MAX_BATCH = 1 << 24


def is_run(run: str) -> bool:
    """Whether this is a valid run id, which becomes part of file names."""
    return _RUN.fullmatch(run) is not None and len(run.encode()) <= MAX_RUN_BYTES


def check_offer(offer: fleet_pb2.Task) -> None:
    """Check that an offer's names and numbers are within limits.

    Raises:
        Refusal: MALFORMED or TOO_LARGE; the message names the field.
    """
    if not is_run(offer.key.run):
        raise _malformed("a run's id of letters, digits, - and _", repr(offer.key.run[:80]))
    _check_number("round", offer.key.round, 1, 1 << 31)
    _check_number("the length of run_name", len(offer.run_name), 0, MAX_RUN_BYTES)
    _check_ref("model", offer.model)
    if offer.received.digest:
        _check_ref("received", offer.received)
    _check_number("differences", len(offer.differences), 0, MAX_DIFFERENCES)
    for step in offer.differences:
        _check_digest("a difference's base", step.base)
        _check_ref("difference", step.difference)
    _check_train(offer.train)
    _check_number("head_epochs", offer.personal.head_epochs, 0, MAX_EPOCHS)
    _check_number("memory_round", offer.memory_round, 0, 1 << 31)
    if not offer.deadline_s >= 0:
        raise _malformed("deadline_s >= 0", f"{offer.deadline_s}")
    if offer.HasField("masking"):
        _check_number("masking.group", offer.masking.group, LEAST_GROUP, MAX_GROUP)
    if offer.HasField("privacy"):
        _check_finite("privacy.clip", offer.privacy.clip)
        _check_finite("privacy.noise_multiplier", offer.privacy.noise_multiplier)
        if not offer.privacy.clip:
            raise _malformed("privacy.clip > 0", "0")
        if offer.HasField("masking") and offer.privacy.seeded:
            raise _malformed("noise of the device's own in a masked task", "noise from a seed")


def _check_train(train: fleet_pb2.TrainSettings) -> None:
    _check_number("epochs", train.epochs, 0, MAX_EPOCHS)
    _check_number("steps", train.steps, 0, MAX_STEPS)
    _check_number("batch_size", train.batch_size, 0, MAX_BATCH)
    _check_number("patience", train.patience, 0, MAX_EPOCHS)
    for name in ("learning_rate", "clip_norm", "tensor_share", "time_budget_s"):
        _check_finite(name, getattr(train, name))
    for width in train.widths:
        _check_finite("widths", width)


def _check_ref(name: str, model: fleet_pb2.ModelRef) -> None:
    _check_digest(name, model.digest)
    if model.size_bytes > MAX_MODEL_BYTES:
        raise Refusal(
            Code.TOO_LARGE,
            f"Expected at most {MAX_MODEL_BYTES} bytes of {name}, got {model.size_bytes}.",
        )


def _check_digest(name: str, digest: str) -> None:
    if not _DIGEST.fullmatch(digest):
        raise _malformed(f"{name} by a digest of 64 hex digits", repr(digest[:80]))


def _check_number(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise _malformed(f"{name} from {least} to {most}", f"{value}")


def _check_finite(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise _malformed(f"{name} as a finite number of at least 0", f"{value}")


def _malformed(expected: str, got: str) -> Refusal:
    return Refusal(Code.MALFORMED, f"Expected {expected} in an offer, got {got}.")
