"""Errors of the operating system in plain words."""

import errno
import os
from pathlib import Path

from fedloom.protocol.errors import FedloomError, UnavailableError, UsageError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_WRONG_PATH = (errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.ENAMETOOLONG)


def described(error: OSError) -> FedloomError:
    """What went wrong, with which path, and what to do.

    Returns:
        A `UsageError` where another path or another user helps, else an `UnavailableError`.
    """
    of = f" ({error.filename})" if error.filename else ""
    why = error.strerror or str(error)
    if error.errno in _FULL:
        return UnavailableError(f"The disk is full{of}: free some space, and try again. [{why}]")
    if error.errno == errno.EROFS:
        return UsageError(f"Cannot write{of}: the file system is read-only. Choose another folder.")
    if isinstance(error, PermissionError):
        return UsageError(
            f"This user has no permission for it{of}: run the command as the owner, or choose "
            f"another path. [{why}]"
        )
    if error.errno == errno.ENOENT and error.filename:
        folder = Path(os.fsdecode(error.filename)).parent
        if not folder.exists():
            return UsageError(f"There is no folder {folder}: create it, or correct the path.")
    if error.errno in _WRONG_PATH and error.filename:
        return UsageError(f"The path {error.filename} cannot be used: {why}. Correct it.")
    return UnavailableError(f"{error}")
