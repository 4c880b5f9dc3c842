"""How far the masking sessions of a round are, in the four messages that each member sends.

Sources: `fedloom.server.engine.masking`, whose states these numbers and words describe.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fedloom.server.engine import SessionState
from fedloom.server.engine.masked_round import MaskedRound
from fedloom.server.engine.masking import MaskingSession

STEPS: Mapping[SessionState, int] = {
    SessionState.SHARING: 1,
    SessionState.MASKING: 2,
    SessionState.FREEZING: 2,
    SessionState.FROZEN: 2,
    SessionState.AGREEING: 3,
    SessionState.REVEALING: 4,
    SessionState.UNMASKING: 4,
}
"""State of a session that goes on → the number of the message that its members send."""

NUM_STEPS = 4

SESSION_WORDS: Mapping[SessionState, str] = {
    SessionState.SHARING: "waits for the shares of its members",
    SessionState.MASKING: "waits for masked updates",
    SessionState.FREEZING: "stops accepting masked updates",
    SessionState.FROZEN: "waits for the other sessions of the round",
    SessionState.AGREEING: "waits for signatures of its survivors",
    SessionState.REVEALING: "waits for the survivors to reveal one share of each member",
    SessionState.UNMASKING: "computes its sum",
    SessionState.DONE: "its sum is in the round",
    SessionState.ABANDONED: "nothing of it counts, and nothing more is revealed",
}
"""State of a session → what it does, for operators."""


def progress(round_: MaskedRound) -> dict[str, Any]:
    """The live state of a masked round's sessions, as plain values.

    `step` is that of the session that is furthest behind: 0 before they open, `NUM_STEPS` at their
    end. `sent` of `asked` members of the sessions in this step have sent its message.
    """
    sessions = round_.sessions
    going_on = [each for each in sessions if not each.state.is_over]
    step = min((STEPS[each.state] for each in going_on), default=NUM_STEPS if sessions else 0)
    here = [each for each in going_on if STEPS[each.state] == step]
    states = Counter(each.state for each in sessions)
    return {
        "step": step,
        "steps": NUM_STEPS,
        "sessions": len(sessions),
        "states": {state.value: states[state] for state in SessionState if states[state]},
        "sent": sum(map(_sent, here)),
        "asked": sum(len(_asked(each)) for each in here),
    }


def _asked(session: MaskingSession) -> frozenset[str]:
    """Members whose message the session waits for: the last set that is fixed."""
    return session.masked or session.shared or session.members


def _sent(session: MaskingSession) -> int:
    """Members that sent the message of this step; a frozen session has forgotten its bodies."""
    is_frozen = session.state in (SessionState.FROZEN, SessionState.UNMASKING)
    return len(_asked(session)) if is_frozen else len(session.heard)


def status(driver_status: Mapping[str, Any], engine: object) -> dict[str, Any]:
    """A run's live status, with `masking` in its round: None unless `engine` is a masked one."""
    round_ = driver_status.get("round")
    if round_ is None:
        return dict(driver_status)
    masking = progress(engine) if isinstance(engine, MaskedRound) else None
    return {**driver_status, "round": {**round_, "masking": masking}}
