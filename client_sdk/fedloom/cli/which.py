"""Which run a command means when none is named."""

from collections.abc import Sequence
from typing import Any

from fedloom.protocol.errors import UsageError

ACTIVE = ("running", "paused")


def newest(runs: Sequence[dict[str, Any]]) -> str:
    """The run submitted last.

    Raises:
        UsageError: there is none.
    """
    if not runs:
        raise UsageError("Expected a run, got none yet: submit one with `fedloom run submit`.")
    return str(runs[-1]["id"])


def only_active(runs: Sequence[dict[str, Any]]) -> str:
    """The one run that is under way: what is to be steered is never guessed.

    Raises:
        UsageError: there is none, or there are several.
    """
    active = [str(run["id"]) for run in runs if run["state"] in ACTIVE]
    if len(active) != 1:
        raise UsageError(
            f"Expected the name of a run, as {len(active)} are active"
            f"{': ' + ', '.join(active) if active else ''}."
        )
    return active[0]
