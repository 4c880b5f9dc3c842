"""The run or model that a command uses by default, and parsing of their names."""

from collections.abc import Sequence
from typing import Any

from fedloom.cli.connection.api_client import Control
from fedloom.protocol.errors import UsageError

ACTIVE = ("queued", "running", "paused")


def run_or_newest(control: Control, run: str | None) -> str:
    """The named run, or the run that was submitted last.

    Raises:
        UsageError: there are no runs.
    """
    return run or _newest(control.get("runs")["runs"])


def _newest(runs: Sequence[dict[str, Any]]) -> str:
    if not runs:
        raise UsageError("There are no runs yet. Submit one with `fedloom run submit`.")
    return str(runs[-1]["id"])


def run_or_only(control: Control, run: str | None) -> str:
    """The named run, or the only active one: actions do not choose among several runs.

    Raises:
        UsageError: no run is named, and not exactly one is active.
    """
    if run:
        return run
    active = [str(each["id"]) for each in control.get("runs")["runs"] if each["state"] in ACTIVE]
    if len(active) != 1:
        raise UsageError(
            f"Name a run: {len(active)} are active{': ' + ', '.join(active) if active else ''}."
        )
    return active[0]


def run_and_number(words: Sequence[str]) -> tuple[str | None, int | None]:
    """Parse `[RUN] [NUMBER]`; a single word of digits is the number.

    >>> run_and_number(("digits", "7")), run_and_number(("7",)), run_and_number(("digits",))
    (('digits', 7), (None, 7), ('digits', None))

    Raises:
        UsageError: there are too many words, or the second is not a number.
    """
    match list(words):
        case []:
            return None, None
        case [one]:
            return (None, int(one)) if one.isdecimal() else (one, None)
        case [run, number] if number.isdecimal():
            return run, int(number)
    raise UsageError(f"Expected [RUN] [NUMBER], got {' '.join(words)!r}.")


def digest_of(
    control: Control, which: str | None, number: int | None, *, best: bool = False
) -> str:
    """The digest of a model that is named by a run, or by its digest or a prefix of it.

    Args:
        control: of the server.
        which: run, or digest; None for the newest run.
        number: of the round that committed it; None for the run's newest model.
        best: take the run's best model instead.

    Raises:
        UsageError: there is no such model.
    """
    if best and number is not None:
        raise UsageError("Expected either --round or --best, got both.")
    runs: list[dict[str, Any]] = control.get("runs")["runs"]
    which = which or _newest(runs)
    matches = [r for r in runs if r["id"] == which] or [
        r for r in runs if r["id"].startswith(which)
    ]
    if len(matches) > 1:
        several = ", ".join(r["id"] for r in matches[:5])
        raise UsageError(f"Several runs begin with {which!r}: {several}. Name one of them.")
    if not matches and (best or number is not None):
        raise UsageError(f"No run begins with {which!r}. See `fedloom run list`.")
    if not matches:
        return which
    run = matches[0]
    if best:
        return _best(run)
    return str(run["model"]) if number is None else _of_round(control, run["id"], number)


def _best(run: dict[str, Any]) -> str:
    """The digest of a run's best model."""
    best = run["best"]
    if best is None:
        raise UsageError(
            f"Expected a run with a best model, got {run['id']}: no round has evaluated one. Set "
            "evaluate = true in its run.toml, or name a round with --round."
        )
    if best["model"] is None:
        raise UsageError(
            f"Expected a run with a best model, got {run['id']}: {best['metric']} was missing or "
            "not finite in every evaluation. Set best.metric to a metric that its clients report, "
            "or name a round with --round."
        )
    return str(best["model"])


def _of_round(control: Control, run: str, number: int) -> str:
    models = control.get("models", run=run)["models"]
    for found in models:
        if found["round"] == number:
            return str(found["digest"])
    known = ", ".join(str(m["round"]) for m in models)
    raise UsageError(f"Round {number} of {run} has no model. Rounds with one: {known}.")
