"""Observes the masking sessions of a round: how they end, who drops out, how long phases take.

The driver of a round calls `saw` after each event that it fed. What happened is read from the
states and sets of the sessions, so nothing is counted twice, and no name gets into a metric.

Invariant: what was fixed before the first look is not counted: another process did so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedloom.protocol.tracing import NO_SPAN, Span, Tracer
from fedloom.server.engine import SessionState
from fedloom.server.engine.masking import THRESHOLD, MaskingSession
from fedloom.server.metrics.meters import AGREEMENT, BODY, REVEAL, SHARES, Meters


@dataclass(slots=True)
class _Seen:
    """What was seen of a session.

    Attributes:
        state: the last one.
        since: when it began, in monotonic seconds; None if that was not seen.
        fixed: phases whose drop-outs are counted.
        whole: span of the session.
        phase: span of the state.
    """

    state: SessionState
    since: float | None
    fixed: set[str] = field(default_factory=set)
    whole: Span = NO_SPAN
    phase: Span = NO_SPAN


class SessionWatch:
    """Counts and traces the sessions of one round.

    Args:
        meters: to count in.
        tracer: of the server.
    """

    def __init__(self, meters: Meters, tracer: Tracer) -> None:
        self._meters = meters
        self._tracer = tracer
        self._seen: dict[int, _Seen] = {}

    def saw(self, sessions: Sequence[MaskingSession], now: float, parent: str = "") -> bool:
        """Look at the sessions of the round; returns whether a state has changed.

        Args:
            sessions: by number; none before they open.
            now: monotonic seconds.
            parent: traceparent of the round's span; empty if tracing is off.
        """
        changed = [self._look(each, now, parent) for each in sessions]
        return any(changed)

    def end(self, error: str = "") -> None:
        """End the spans: the round is over, or the server stops."""
        for seen in self._seen.values():
            seen.phase.end(error)
            seen.whole.end(error)
            seen.phase = seen.whole = NO_SPAN

    def _look(self, session: MaskingSession, now: float, parent: str) -> bool:
        seen = self._seen.get(session.number)
        if seen is None:
            seen = self._seen[session.number] = self._first(session, now, parent)
            return True
        was = seen.state
        self._count_fixed(session, seen)
        if session.state is was:
            return False
        if session.state is SessionState.ABANDONED:
            self._count_silent(session, was)
        if seen.since is not None:
            self._meters.session_phase_s.labels(was.value).observe(now - seen.since)
        seen.phase.end()
        seen.state, seen.since = session.state, now
        if session.state.is_over:
            self._meters.sessions.labels(session.state.value, was.value).inc()
            seen.whole.set(outcome=session.state.value, survivors=len(session.masked))
            seen.whole.end("abandoned" if session.state is SessionState.ABANDONED else "")
            seen.phase = seen.whole = NO_SPAN
        else:
            seen.phase = self._tracer.span(session.state.value, seen.whole.traceparent)
        return True

    def _first(self, session: MaskingSession, now: float, parent: str) -> _Seen:
        """Begin to watch a session; one that is past its first state was begun elsewhere."""
        is_new = session.state is SessionState.SHARING
        seen = _Seen(session.state, now if is_new else None)
        seen.fixed = {phase for phase, is_fixed, _ in _sets(session) if is_fixed}
        if not session.state.is_over:
            seen.whole = self._tracer.span(
                "session", parent, session=session.number, members=len(session.members)
            )
            seen.phase = self._tracer.span(session.state.value, seen.whole.traceparent)
        return seen

    def _count_fixed(self, session: MaskingSession, seen: _Seen) -> None:
        for phase, is_fixed, dropped in _sets(session):
            if is_fixed and phase not in seen.fixed:
                seen.fixed.add(phase)
                self._meters.drop_outs.labels(phase).inc(dropped)

    def _count_silent(self, session: MaskingSession, was: SessionState) -> None:
        """Count whom a session missed that was abandoned for too few messages."""
        phase, asked = {
            SessionState.SHARING: (SHARES, session.members),
            SessionState.MASKING: (BODY, session.shared),
            SessionState.AGREEING: (AGREEMENT, session.masked),
            SessionState.REVEALING: (REVEAL, session.masked),
        }.get(was, ("", frozenset()))
        if phase and session.reason.startswith(THRESHOLD):
            self._meters.drop_outs.labels(phase).inc(len(asked - session.heard))


def _sets(session: MaskingSession) -> list[tuple[str, bool, int]]:
    """Phase of a message, whether its senders are fixed, and how many that were asked are not.

    Those that do not reveal have not dropped out: nobody waits for more than the threshold. The
    signatures of a session that was abandoned are no fixed set.
    """
    signed = session.state not in (SessionState.AGREEING, SessionState.ABANDONED)
    return [
        (SHARES, bool(session.shared), len(session.members - session.shared)),
        (BODY, bool(session.masked), len(session.shared - session.masked)),
        (AGREEMENT, bool(session.signed) and signed, len(session.masked - session.signed)),
    ]
