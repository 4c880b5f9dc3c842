"""What fails in a run, why, and what to do: for alerts, the console, the API and the CLI.

One function decides the advice. It depends on how many clients fail: most of them point to the
code, the model or the settings of the run, a few to those devices.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.server.engine.failures import Failure, in_words
from fedloom.server.metrics.meters import STOPPED

SEVERAL = 3
"""Failures that point to the run rather than to a client, in a round without an update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """What fails in a run.

    Attributes:
        what: one sentence: what happens, and the commonest error.
        todo: what to do about it.
        stuck: the run, or its open round, cannot continue.
        number: of the round that shows it.
    """

    what: str
    todo: str
    stuck: bool
    number: int


_ADVICE: Mapping[str, str] = {
    r"MemoryError|OutOfMemory|out of memory|bad_alloc|SIGKILL|budgets\.memory_mb": (
        "The devices run out of memory: lower train.batch_size or use a smaller model."
    ),
    r"not_finite|norm_too_large|magnitude_too_large|\b(?:nan|infinity|infinite|finite)\b": (
        "The training diverges: lower train.learning_rate, clip the gradients, and check the data "
        "for missing values and its scale."
    ),
    r"wrong_shape|wrong_dtype|(?:unknown|duplicate)_tensor|wrong_model|state_dict"
    r"|Expected (?:shape|real numbers|the tensors?|a tensor)": (
        "The clients' code and the run's model do not fit: use the model that this code builds, or "
        "the code for this model. The error names the tensor, what was expected and what came."
    ),
    r"weight_out_of_range": (
        "The clients' numbers of examples exceed the run's max_weight: check what train returns, "
        "or submit the run with a larger max_weight."
    ),
    r"ModuleNotFoundError|ImportError": (
        "The clients lack a package that their code imports: install it on the devices."
    ),
    r"FileNotFoundError|No such file|PermissionError": (
        "The clients' code cannot read a file: check the paths and permissions on the devices."
    ),
}
"""Pattern of a failure's message to what to do; the first that matches."""


def advice(message: str, *, most: bool, client: str = "") -> str:
    """What to do about a failure.

    Args:
        message: an exception's type and text, or a refusal's code and text.
        most: whether most clients fail, not only a few.
        client: one that failed.

    >>> advice("not_finite: Expected finite values in 'w', got NaN.", most=True)[:24]
    'The training diverges: l'
    >>> advice("not_finite: Expected finite values in 'w', got NaN.", most=False, client="oak")[:58]
    'Most clients succeed: check data, code and device of oak, '
    """
    if not most and client:
        return (
            f"Most clients succeed: check data, code and device of {client}, or quarantine it if "
            "it keeps failing."
        )
    if not most:
        return (
            "Most clients succeed: check data, code and device of those that fail, or quarantine "
            "them if they keep failing."
        )
    found = (
        todo for pattern, todo in _ADVICE.items() if re.search(pattern, message, re.IGNORECASE)
    )
    usual = (
        "The clients' code does not work with this run: test it with `fedloom client test`, and "
        "check their log."
    )
    return next(found, usual)


def failing(run: Mapping[str, Any]) -> Failing | None:
    """What fails in an active run; None if nothing does, or only a few of many clients.

    Args:
        run: `id`, `state`, `reason`, `rounds` (the latest, newest first, each with its `failures`)
            and `live` (see `RunDriver.status`; None for none).
    """
    now = (run["live"] or {}).get("round")
    if now and run["state"] == "running" and now["state"] == "reporting" and not now["paused"]:
        kinds = _kinds(now)
        if kinds:
            return _in_open_round(run, now, kinds)
    return _in_last_round(run)


def _kinds(values: Mapping[str, Any]) -> list[Failure]:
    return [Failure(**each) for each in values.get("failures") or ()]


def _in_open_round(
    run: Mapping[str, Any], now: Mapping[str, Any], kinds: Sequence[Failure]
) -> Failing | None:
    counts, accepted, number = now["clients"], now["accepted"], now["number"]
    failed, selected = counts["failed"] + counts["refused"], sum(counts.values())
    words, of = in_words(list(kinds), failed), f"round {number} of {run['id']}"
    stuck = now["gives_up_in_s"] is not None
    if stuck:
        what = f"R{of[1:]} cannot reach its quorum of {now['quorum']}"
    elif not accepted:
        what = f"R{of[1:]} has only failures so far"
    elif failed > accepted:
        what = f"More clients fail than succeed in {of}"
    else:
        return None
    most = 2 * failed >= selected or (failed >= SEVERAL and failed > accepted)
    todo = advice(kinds[0].message, most=most, client=kinds[0].client if failed == 1 else "")
    return Failing(what=f"{what}: {words}.", todo=todo, stuck=stuck, number=number)


def _in_last_round(run: Mapping[str, Any]) -> Failing | None:
    """From the last rounds that an operator did not abort, if the latest had only failures."""
    over = [r for r in run["rounds"] if r["state"] in ("committed", "abandoned")]
    over = [r for r in over if r["cause"] != STOPPED][:5]
    if not over or not (kinds := _kinds(last := over[0])):
        return None
    lost = sum(r["state"] == "abandoned" for r in over)
    failed, accepted = sum(each.count for each in kinds), last["accepted"]
    why = last["reason"].rstrip(". ") or in_words(kinds, failed)
    if last["state"] == "committed":
        if accepted:
            return None
        what = f"Round {last['number']} of {run['id']} had only failures: {why}."
    elif run["state"] == "paused":
        if not why or why not in run["reason"]:  # by an operator, later
            return None
        what = f"{run['id']} cannot continue and is paused: {run['reason'].rstrip('. ')}."
    else:
        times = "1 round was" if lost == 1 else f"{lost} of the last {len(over)} rounds were"
        what = f"{times} abandoned in {run['id']}: {why}."
    todo = advice(
        kinds[0].message,
        most=failed >= max(accepted, 1),
        client=kinds[0].client if failed == 1 else "",
    )
    stuck = run["state"] == "paused"
    if stuck:
        todo += f" Then continue with `fedloom run resume {run['id']}`."
    return Failing(what=what, todo=todo, stuck=stuck, number=last["number"])
