"""The run or model that a command uses when none is named, and parsing of their names."""

from collections.abc import Sequence
from typing import Any

from fedloom.cli.connection.api_client import Control
from fedloom.protocol.errors import UsageError

ACTIVE = ("running", "paused")


def newest(runs: Sequence[dict[str, Any]]) -> str:
    """The run submitted last.

    Raises:
        UsageError: there is none.
    """
    if not runs:
        raise UsageError("There are no runs yet: submit one with `fedloom run submit`.")
    return str(runs[-1]["id"])


def only_active(runs: Sequence[dict[str, Any]]) -> str:
    """The only active run: an action never guesses which run is meant.

    Raises:
        UsageError: there is none, or there are several.
    """
    active = [str(run["id"]) for run in runs if run["state"] in ACTIVE]
    if len(active) != 1:
        raise UsageError(
            f"Name a run: {len(active)} are active{': ' + ', '.join(active) if active else ''}."
        )
    return active[0]


def run_and_number(words: Sequence[str]) -> tuple[str | None, int | None]:
    """What `[RUN] [NUMBER]` means; a single word of digits is the number.

    >>> run_and_number(("digits", "7")), run_and_number(("7",)), run_and_number(("digits",))
    (('digits', 7), (None, 7), ('digits', None))

    Raises:
        UsageError: there are too many words, or the second is no number.
    """
    match list(words):
        case []:
            return None, None
        case [one]:
            return (None, int(one)) if one.isdecimal() else (one, None)
        case [run, number] if number.isdecimal():
            return run, int(number)
    raise UsageError(f"Expected [RUN] [NUMBER], got {' '.join(words)!r}.")


def digest_of(control: Control, which: str | None, number: int | None) -> str:
    """The digest of a model that is named by a run or by (a prefix of) its digest."""
    runs: list[dict[str, Any]] = control.get("runs")["runs"]
    which = which or newest(runs)
    matches = [r for r in runs if r["id"] == which] or [
        r for r in runs if r["id"].startswith(which)
    ]
    if len(matches) > 1:
        several = ", ".join(r["id"] for r in matches[:5])
        raise UsageError(f"Expected one run that begins with {which!r}, got {several}.")
    if not matches and number is not None:
        raise UsageError(f"Expected a run with --round, got {which!r}: see `fedloom run list`.")
    if not matches:
        return which
    run = matches[0]
    return str(run["model"]) if number is None else _of_round(control, run["id"], number)


def _of_round(control: Control, run: str, number: int) -> str:
    models = control.get("models", run=run)["models"]
    for found in models:
        if found["round"] == number:
            return str(found["digest"])
    known = ", ".join(str(m["round"]) for m in models)
    raise UsageError(f"Expected a round of {run} with a model ({known}), got {number}.")
