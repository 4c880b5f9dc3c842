"""Explain errors of users' code, such as a model or a training loop.

Invariant: an explained error can be sent between processes; its note has the traceback, which
pickling loses.
"""

import traceback
from errno import EDQUOT, ENOSPC

import torch

from fedloom.protocol.errors import FedloomError, UnavailableError, UsageError
from fedloom.protocol.user_code import summarised
from fedloom.simulation.output import words

NO_ROOM = (ENOSPC, EDQUOT)


def explained(error: Exception, task: str) -> FedloomError:
    """An error of a client's training or an evaluation, with advice.

    Args:
        error: as it was raised.
        task: that failed, such as "The training of client-003".
    """
    if isinstance(error, FedloomError):
        # Subclasses whose constructors need more than a text cannot be unpickled.
        plain = isinstance(error, UsageError) and type(error) is not UsageError
        return UsageError(str(error)) if plain else error
    first = str(error).partition("\n")[0]
    found: FedloomError
    if _is_memory(error, first):
        found = UnavailableError(
            f"Out of memory in a client's training: {first or 'no memory'}. Lower engine.workers, "
            "engine.group or train.batch_size, or use a smaller model."
        )
    elif isinstance(error, OSError) and error.errno in NO_ROOM:
        found = UnavailableError(
            f"{task} failed: {error}. Free disk space; {words.RESUME} continues."
        )
    else:
        found = UsageError(
            f"{task} failed: {summarised(error)}. Fix the code, the model or the data "
            f"(FEDLOOM_TRACEBACK=1 shows more); {words.RESUME} with {words.ACCEPT} continues after "
            "the last finished round."
        )
    found.add_note("".join(traceback.format_exception(error)))
    return found


def _is_memory(error: Exception, first: str) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    of_torch = "not enough memory" in first or "can't allocate memory" in first
    return isinstance(error, RuntimeError) and of_torch
