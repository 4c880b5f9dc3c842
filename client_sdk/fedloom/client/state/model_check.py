"""Checks of a model that the server sent, before it is used: room on the disk, and its content.

Invariant: a model that training code receives has passed `check_model`.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fedloom.protocol.errors import FedloomError, IntegrityError, UsageError
from fedloom.protocol.manifest import read_manifest
from fedloom.protocol.tensors.container import PREFIX_BYTES, header_length
from fedloom.protocol.tensors.file_arrays import stored_params
from fedloom.strategies.exact.lazy_arrays import Values, pieces_of

MAX_NAME = 1024
MAX_HEADER_BYTES = 16 << 20
"""Limit of a model's header: parsing takes many times its size in memory."""


class UnfitError(FedloomError):
    """What the server sent cannot be used; a retry would not help."""


def check_room(directory: Path, size_bytes: int) -> None:
    """Check that the disk has room for a download.

    Raises:
        UnfitError: it has not.
    """
    free = shutil.disk_usage(directory).free
    if size_bytes > free:
        raise UnfitError(f"Expected room for {size_bytes} bytes in {directory}, got {free}.")


def check_model(path: Path, *, whole: bool = True) -> None:
    """Check that a file with the right digest is a usable model.

    Args:
        path: of the file.
        whole: a complete model, not tensors that accompany one.

    Raises:
        UnfitError: its list of tensors does not match its bytes, or it holds NaN.
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
    """Names are shown to the device's owner: printable, and of limited length."""
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
    """Checked piece by piece, without loading the whole tensor."""
    if values.dtype.kind != "f":
        return False
    return any(bool(np.isnan(np.min(piece))) for _, piece in pieces_of(values))
