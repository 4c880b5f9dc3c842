"""Counts and session shapes of a round's members: pure functions of the ledger's rows.

Source of the shapes: Bonawitz et al. 2019, "Towards Federated Learning at Scale: System Design",
Table 1: `-` checked in, `v` downloaded plan, `[` training started, `]` training completed, `+`
upload started, `^` upload completed, `#` upload rejected, `*` error, `!` interrupted.

Invariant: a shape is a path through `-v[]+` with one end at most.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fedloom.server.engine.failures import FAILED, REFUSED, commonest
from fedloom.server.ledger.rows import CohortRow, MemberRow, SessionRow

LATE, LOST = "late", "lost"
"""Phases of members that a round ended without: in contact, and out of it."""

_FAILURES = frozenset({FAILED, REFUSED})
_ENDS = {"reported": "^", "refused": "#", "failed": "*", LATE: "!", LOST: "!"}


def shape(member: CohortRow) -> str:
    """A member's session in the notation of Bonawitz et al. 2019, Table 1.

    >>> from functools import partial
    >>> member = partial(CohortRow, run="r", round=1, client="a")
    >>> shape(member(phase="offered"))
    '-'
    >>> shape(member(phase="reported", took_at=1.0, training_began_at=2.0, upload_began_at=3.0))
    '-v[]+^'
    >>> shape(member(phase="late", took_at=1.0, download_began_at=2.0))
    '-!'
    >>> shape(member(phase="late", took_at=1.0, training_began_at=2.0))
    '-v[!'
    >>> shape(member(phase="late", took_at=1.0, upload_began_at=3.0, code="round_closed"))
    '-v[]+#'
    """
    sent, trains = _sent(member), _trained(member)
    text = "-" + "v" * trains + "[" * trains + "]+" * sent
    end = _ENDS.get(member.phase, "")
    if end == "!" and sent and member.code:
        end = "#"
    return text + end


def measured(member: MemberRow, kind: str) -> dict[str, Any]:
    """The metrics of a member's update, and the number of examples.

    Args:
        member: with its update or None.
        kind: of the round; in an evaluation round there are no training metrics and no norm.

    >>> measurement = {"num_examples": 8, "values": {"loss": 0.5}}
    >>> member = MemberRow(run="r", round=1, client="a", phase="reported", evaluation=measurement)
    >>> measured(member, "evaluate")
    {'training': None, 'evaluation': {'loss': 0.5}, 'num_examples': 8, 'norm': None}
    """
    trains = kind == "train"
    training, evaluation = member.training or {}, member.evaluation or {}
    return {
        "training": training.get("values") or None,
        "evaluation": evaluation.get("values") or None,
        "num_examples": (training if trains else evaluation).get("num_examples"),
        "norm": member.norm if trains else None,
    }


def summarize(members: Iterable[SessionRow], *, over: bool) -> dict[str, Any]:
    """Counts of a round's members: a funnel from `selected` to `counted`.

    Args:
        members: of the round.
        over: whether the round is over; members that had not ended were late.
    """
    rows = [
        replace(m, phase=LATE) if over and m.phase in {"offered", "training"} else m
        for m in members
    ]
    phases = Counter(row.phase for row in rows)
    errors = [(row.client, row.phase, error_of(row)) for row in rows if row.phase in _FAILURES]
    seconds = sorted(
        max(0.0, row.accepted_at - row.offered_at)
        for row in rows
        if row.accepted_at is not None and row.offered_at is not None
    )
    uploaded = sum(bool(row.upload_ended_at or row.accepted_at) for row in rows)
    return {
        "selected": len(rows),
        "took": sum(_took(row) for row in rows),
        "training": sum(_trained(row) for row in rows),
        "uploaded": uploaded,
        "counted": phases["reported"],
        **{name: phases[name] for name in ("declined", "failed", "refused", LATE, LOST)},
        "p50_s": quantile(seconds, 0.5),
        "p95_s": quantile(seconds, 0.95),
        "bytes_down": sum(row.bytes_down or 0 for row in rows),
        "bytes_up": sum(row.bytes_up or 0 for row in rows),
        "retries": sum(row.retries or 0 for row in rows),
        "failures": [each.view() for each in commonest(errors)],
        "shapes": dict(Counter(shape(row) for row in rows).most_common()),
    }


def error_of(row: CohortRow) -> str:
    """The message of a member that failed; that of a refused one begins with the code.

    >>> row = CohortRow(run="r", round=1, client="a", phase="refused", reason="Expected 1.")
    >>> error_of(replace(row, code="not_finite")), error_of(replace(row, phase="failed"))
    ('not_finite: Expected 1.', 'Expected 1.')
    """
    lacks = row.phase == REFUSED and row.code and not row.reason.startswith(f"{row.code}:")
    return f"{row.code}: {row.reason}" if lacks else row.reason


def _sent(row: CohortRow) -> bool:
    """Whether the member began to send its update."""
    return bool(row.upload_began_at) or row.phase in {"reported", "refused"}


def _trained(row: CohortRow) -> bool:
    """Whether the member began to train; without a download it already had the model."""
    cached = row.took_at and not row.download_began_at
    return bool(_sent(row) or row.training_began_at or cached)


def _took(row: SessionRow) -> bool:
    """Whether the server saw the member accept its offer."""
    return any(at is not None for at in (row.took_at, row.upload_began_at, row.accepted_at))


def quantile(ordered: list[float], share: float) -> float | None:
    """The smallest value that at least this share does not exceed; None without values.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5), quantile([1.0, 2.0], 0.95), quantile([], 0.5)
    (2.0, 2.0, None)
    """
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None
