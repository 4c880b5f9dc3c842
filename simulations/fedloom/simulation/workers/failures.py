"""A failure in code that is not ours, such as a model or a training loop, in words.

Invariant: an explained error crosses a process: its note carries the traceback that pickling loses.
"""

import traceback
from errno import EDQUOT, ENOSPC

import torch

import fedloom
from fedloom.protocol.errors import FedloomError, UnavailableError, UsageError

NO_ROOM = (ENOSPC, EDQUOT)


def explained(error: Exception, who: str) -> FedloomError:
    """What a person can do about an error from a client's training or an evaluation.

    Args:
        error: as it was raised.
        who: did not get done what, such as "client-003 to train".
    """
    if isinstance(error, FedloomError):
        # Subclasses whose constructors take more than a text do not survive pickling.
        plain = isinstance(error, UsageError) and type(error) is not UsageError
        return UsageError(str(error)) if plain else error
    first = str(error).partition("\n")[0]
    found: FedloomError
    if _is_memory(error, first):
        found = UnavailableError(
            f"Expected room for a client's training, got: {first or 'no memory'}. Lower "
            "engine.workers, engine.group or train.batch_size, or take a smaller model."
        )
    elif isinstance(error, OSError) and error.errno in NO_ROOM:
        found = UnavailableError(f"Expected {who}, got: {error}. Free some room; --resume goes on.")
    else:
        found = UsageError(
            f"Expected {who}, got {told(error)}. Mend the code, the model or the data "
            "(FEDLOOM_TRACEBACK=1 shows more); --resume goes on from the last whole round."
        )
    found.add_note("".join(traceback.format_exception(error)))
    return found


def told(error: BaseException) -> str:
    """An error in a line: its kind, the innermost place in the user's own code, what it says."""
    frames = traceback.extract_tb(error.__traceback__)
    others = ("site-packages", "<", *map(str, fedloom.__path__))
    own = [frame for frame in frames if not any(part in frame.filename for part in others)]
    where = f" in {own[-1].filename}, line {own[-1].lineno}" if own else ""
    first = str(error).partition("\n")[0].rstrip(".")
    return f"{type(error).__name__}{where}{first and ': '}{first}"


def _is_memory(error: Exception, first: str) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    of_torch = "not enough memory" in first or "can't allocate memory" in first
    return isinstance(error, RuntimeError) and of_torch
