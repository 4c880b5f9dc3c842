"""What a server gives is looked at before it is used: the offer's numbers, and the model's bytes.

A signature says who decided; this says whether it makes sense, whoever it was. The server may be
broken, or its key in wrong hands: nothing that it says may name a file of its choice, keep the
device busy for years, or end the agent.

Invariants: a name that becomes part of a path has passed `check_offer`; a model that training gets
to see has passed `check_model`.
"""

import math
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fedloom.protocol.errors import Code, FedloomError, IntegrityError, Refusal, UsageError
from fedloom.protocol.manifest import read_manifest
from fedloom.protocol.tensors.container import PREFIX_BYTES, header_length
from fedloom.protocol.tensors.file_arrays import stored_params
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies.exact.lazy_arrays import Values, pieces_of

_RUN = re.compile(r"[\w-]{1,128}")
_DIGEST = re.compile(r"[0-9a-f]{64}")

MAX_RUN_BYTES = 200
"""Of a run's id: with what comes after it a file may have such a name."""
MAX_MODEL_BYTES = 1 << 42
MAX_DIFFERENCES = 64
MAX_EPOCHS = 100_000
MAX_STEPS = 100_000_000
MAX_BATCH = 1 << 24
MAX_NAME = 1024
MAX_HEADER_BYTES = 16 << 20
"""Of a model's list of tensors: parsing it takes many times its size in memory."""


class UnfitError(FedloomError):
    """What the server gave cannot be used; asking again would give the same."""


def is_run(run: str) -> bool:
    """Can this be a run's id? It becomes part of file names."""
    return _RUN.fullmatch(run) is not None and len(run.encode()) <= MAX_RUN_BYTES


def check_offer(offer: fleet_pb2.Task) -> None:
    """Are an offer's names and numbers ones that a sane server gives?

    Raises:
        Refusal: MALFORMED or TOO_LARGE; says which.
    """
    if not is_run(offer.key.run):
        raise _malformed("a run's id of letters, digits, - and _", repr(offer.key.run[:80]))
    _check_number("round", offer.key.round, 1, 1 << 31)
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
    if offer.HasField("privacy"):
        _check_finite("privacy.clip", offer.privacy.clip)
        _check_finite("privacy.noise_multiplier", offer.privacy.noise_multiplier)
        if not offer.privacy.clip:
            raise _malformed("privacy.clip > 0", "0")


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


def check_room(directory: Path, size_bytes: int) -> None:
    """Is there room on the disk for so many bytes more?

    Raises:
        UnfitError: there is not.
    """
    free = shutil.disk_usage(directory).free
    if size_bytes > free:
        raise UnfitError(f"Expected room for {size_bytes} bytes in {directory}, got {free}.")


def check_model(path: Path, *, whole: bool = True) -> None:
    """Is a file that has the right digest a model that can be trained?

    Args:
        path: of the file.
        whole: of a model, and not what comes beside one.

    Raises:
        UnfitError: its list of tensors does not fit its bytes, or it holds NaN.
    """
    try:
        _check_header(path)
        if whole:
            read_manifest(path)
        params = stored_params(path)
    except (IntegrityError, UsageError) as error:
        raise _unusable(f"{error}") from error
    _check_names(params)
    nan = next((name for name, array in params.items() if _has_nan(array)), None)
    if nan is not None:
        raise _unusable(f"expected numbers in {nan[:80]!r}, got NaN.")


def _check_names(names: Iterable[str]) -> None:
    """They are shown to the device's owner: no escape sequence, and nothing without end."""
    for name in names:
        if len(name) > MAX_NAME or not name.isprintable():
            raise _unusable(
                f"expected names of tensors of at most {MAX_NAME} printable characters, got "
                f"{name[:80]!r}."
            )


def _check_header(path: Path) -> None:
    with path.open("rb") as file:
        length = header_length(file.read(PREFIX_BYTES))
    if length > MAX_HEADER_BYTES:
        raise _unusable(f"expected a header of at most {MAX_HEADER_BYTES} bytes, got {length}.")


def _unusable(why: str) -> UnfitError:
    return UnfitError(f"the server's model cannot be used: {why}")


def _has_nan(values: Values) -> bool:
    """Piece by piece: a model must not come into memory at once."""
    if values.dtype.kind != "f":
        return False
    return any(bool(np.isnan(np.min(piece))) for _, piece in pieces_of(values))
