"""Timelines of a round's members, as bars that the template draws as SVG."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedloom.server.queries.round_views import MemberView, RoundView

WIDTH = 1000.0
THINNEST = 3.0

LEGEND = (
    ("wait", "waits"),
    ("down", "downloads"),
    ("train", "trains"),
    ("up", "uploads"),
    ("end", "does not count"),
)
"""Class and meaning of each piece."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a bar.

    Attributes:
        kind: its CSS class.
        x: its left edge, of `WIDTH`.
        width: of `WIDTH`.
        seconds: how long it took.
    """

    kind: str
    x: float
    width: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Line:
    """A member's bar and its description."""

    pieces: list[Piece]
    words: str


def timelines(found: RoundView, members: Sequence[MemberView]) -> dict[str, Line]:
    """The bars of some of a round's members by name, on a common scale."""
    now = time.time()
    start = min((m.offered_at for m in members if m.offered_at), default=found.opened_at)
    end = max([found.opened_at, *(_end(m, found, now) for m in members)])
    scale = WIDTH / max(end - start, 1e-3)
    return {m.client: _line(m, _end(m, found, now), start, scale) for m in members}


def _end(member: MemberView, found: RoundView, now: float) -> float:
    over = found.closed_at or now
    return member.ended_at or member.accepted_at or max(over, member.offered_at or 0.0)


def _line(member: MemberView, end: float, start: float, scale: float) -> Line:
    pieces = []
    for kind, begun, ended in _spans(member, end):
        width = max(THINNEST, (ended - begun) * scale)
        x = min((begun - start) * scale, WIDTH - width)
        pieces.append(Piece(kind, round(x, 1), round(width, 1), ended - begun))
    if member.phase in ("refused", "failed", "lost", "late", "declined"):
        x = min(max(0.0, (end - start) * scale), WIDTH - 8)
        pieces.append(Piece("end", round(x, 1), 8.0, 0.0))
    names = dict(LEGEND)
    phases = [f"{names[p.kind]} {p.seconds:.2g} s" for p in pieces if p.kind != "end"]
    return Line(pieces, f"{member.client}: {', '.join(phases) or 'nothing yet'}; {member.phase}")


def _spans(member: MemberView, end: float) -> Iterator[tuple[str, float, float]]:
    """Kind, begin and end of each phase; a phase without a time belongs to the one before."""
    begins = [
        ("wait", member.offered_at),
        ("down", member.download_began_at),
        ("train", member.training_began_at),
        ("up", member.upload_began_at),
    ]
    known = [(kind, at) for kind, at in begins if at is not None and at <= end]
    for (kind, at), (_, until) in zip(known, [*known[1:], ("", end)], strict=True):
        if until > at:
            yield kind, at, until
