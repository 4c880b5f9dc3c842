"""The steps that the tables of rounds and buffers share.

A step takes an engine and the event of its row in the engine's table, and returns the effects. The
tables in `round` and `buffer` name these steps beside methods of their own class.
"""

from collections.abc import Mapping
from math import inf
from typing import Any

from . import events
from .clock import AT_ONCE
from .cohort import Phase
from .effects import Abandon, Close, Recruited, RoundEffect, Withdraw
from .errors import OperatorRefused
from .round_engine import RoundEngine
from .states import IGNORE, REFUSE, RoundState

NO_QUORUM = "quorum not reached"
"""The start of the reason of a round that was abandoned at its deadline."""

CLOSED = "the round has closed"

_ENDED: Mapping[type[Any], Phase] = {
    events.OfferDeclined: Phase.DECLINED,
    events.ClientFailed: Phase.FAILED,
    events.UpdateRefused: Phase.REFUSED,
}


# ---- time ------------------------------------------------------------------------------------


def time_passed(engine: RoundEngine, _: events.Wake) -> list[RoundEffect]:
    """Act on the deadline, or on grace periods that have ended."""
    clock, cohort = engine.clock, engine.cohort
    if clock.paused:
        return []
    if clock.now < clock.deadline:
        cohort.lose_until(clock.now)
        return settle(engine)
    if cohort.accepted >= engine.config.quorum:
        return close(engine)
    return abandon(
        engine,
        f"{NO_QUORUM}: expected at least {engine.config.quorum} updates by the deadline, "
        f"got {cohort.accepted}",
    )


# ---- candidates and members ------------------------------------------------------------------


def candidate_left(engine: RoundEngine, event: events.Left) -> list[RoundEffect]:
    """Forget a candidate."""
    engine.candidates.discard(event.client)
    return []


def left(engine: RoundEngine, event: events.Left) -> list[RoundEffect]:
    """Start the grace period of a member, or forget a candidate."""
    engine.candidates.discard(event.client)
    until = engine.clock.grace_until(engine.config.patience_s)
    engine.cohort.leave(event.client, until)
    return []


def started(engine: RoundEngine, event: events.OfferAccepted) -> list[RoundEffect]:
    """Record that a member trains."""
    engine.cohort.start_training(event.client)
    return []


def ended(
    engine: RoundEngine, event: events.OfferDeclined | events.ClientFailed | events.UpdateRefused
) -> list[RoundEffect]:
    """End a member's part without an update; an idle client replaces it."""
    return settle(engine) if engine.cohort.end(event.client, _ENDED[type(event)]) else []


def ended_in_commit(
    engine: RoundEngine, event: events.OfferDeclined | events.ClientFailed | events.UpdateRefused
) -> list[RoundEffect]:
    """End a member's part; nobody is recruited during a commit."""
    engine.cohort.end(event.client, _ENDED[type(event)])
    return []


def reported_in_commit(engine: RoundEngine, event: events.UpdateAccepted) -> list[RoundEffect]:
    """Count an update that became durable while the round closed; the driver waits for it."""
    engine.cohort.report(event.client)
    return []


def came_too_late(engine: RoundEngine, event: events.Attended) -> list[RoundEffect]:
    """Withdraw the task of a member that reconnects after the round."""
    client = event.client
    if not engine.cohort.is_unfinished(client):
        return []
    return [Withdraw(client, engine.reason or CLOSED, engine.origin(client))]


def settle(engine: RoundEngine) -> list[RoundEffect]:
    """Close at the goal; else recruit; else close with a quorum if nobody is at work."""
    if engine.clock.paused:
        return []
    cohort, config = engine.cohort, engine.config
    if cohort.accepted >= config.enough:
        return close(engine)
    effects = recruit(engine)
    if not cohort.at_work and cohort.accepted >= config.quorum:
        effects += close(engine)
    return effects


def recruit(engine: RoundEngine) -> list[RoundEffect]:
    """Offer free places to candidates."""
    effects: list[RoundEffect] = []
    free = engine.free
    while free > 0 and (client := engine.candidates.pop()) is not None:
        effects += (Recruited(client), engine.ask(client))
        free -= 1
    return effects


# ---- the end ---------------------------------------------------------------------------------


def close(engine: RoundEngine) -> list[RoundEffect]:
    """Close the round and withdraw open tasks, unless their updates may count later."""
    engine.state = RoundState.CLOSING
    engine.clock.stop()
    return [Close(), *([] if engine.continues else withdrawals(engine, CLOSED))]


def close_again(engine: RoundEngine, _: events.Wake) -> list[RoundEffect]:
    """Request the commit again, once, after a round was restored as closing."""
    if engine.clock.check_at != AT_ONCE:
        return []
    engine.clock.check_at = inf
    return [Close()]


def committed(engine: RoundEngine, _: events.Committed) -> list[RoundEffect]:
    """The result is durable: the round is over."""
    engine.state = RoundState.COMMITTED
    return []


def commit_failed(engine: RoundEngine, event: events.CommitFailed) -> list[RoundEffect]:
    """Abandon the round and withdraw the tasks that are still open."""
    unfinished = withdrawals(engine, event.reason) if engine.continues else []
    engine.state, engine.reason = RoundState.ABANDONED, event.reason
    return [Abandon(event.reason), *unfinished]


def abandon(engine: RoundEngine, reason: str) -> list[RoundEffect]:
    """End the round without a result."""
    engine.state, engine.reason = RoundState.ABANDONED, reason
    engine.clock.stop()
    return [Abandon(reason), *withdrawals(engine, reason)]


def withdrawals(engine: RoundEngine, reason: str) -> list[RoundEffect]:
    """Withdraw the task of every member that may still be at work."""
    unfinished = engine.cohort.unfinished()
    return [Withdraw(client, reason, engine.origin(client)) for client in unfinished]


# ---- commands of the operator ----------------------------------------------------------------


def abort(engine: RoundEngine, event: events.Abort) -> list[RoundEffect]:
    """End the round without a result, as the operator asks."""
    return abandon(engine, event.reason)


def close_now(engine: RoundEngine, _: events.CloseNow) -> list[RoundEffect]:
    """Close with the accepted updates.

    Raises:
        OperatorRefused: no update is accepted, and the quorum is above 0.
    """
    if engine.cohort.accepted < min(1, engine.config.quorum):
        raise OperatorRefused(
            "Expected at least 1 accepted update to close with, got 0; "
            "wait for one or abort the round."
        )
    return close(engine)


def nothing_to_close(_: RoundEngine, __: events.CloseNow) -> list[RoundEffect]:
    """Refuse to close a round that has not opened."""
    raise OperatorRefused(
        "Expected a round that is reporting, got one that waits for clients; abort it instead."
    )


def extend(engine: RoundEngine, event: events.ExtendDeadline) -> list[RoundEffect]:
    """Move the deadline.

    Raises:
        OperatorRefused: not by a positive, finite number of seconds.
    """
    engine.clock.extend(event.seconds)
    return []


def no_deadline(_: RoundEngine, __: events.ExtendDeadline) -> list[RoundEffect]:
    """Refuse to move a deadline that is not set yet."""
    raise OperatorRefused(
        "Expected a round that is reporting, got one that waits for clients: "
        "its deadline is set when it opens."
    )


def pause(engine: RoundEngine, _: events.Pause) -> list[RoundEffect]:
    """Pause the clock.

    Raises:
        OperatorRefused: it is paused already.
    """
    engine.clock.pause()
    return []


def resume(engine: RoundEngine, _: events.Resume) -> list[RoundEffect]:
    """Resume the clock; the deadline and every grace period move by the pause.

    Raises:
        OperatorRefused: it is not paused.
    """
    engine.cohort.delay(engine.clock.resume())
    return []


OVER: Mapping[type[Any], Any] = {
    events.Attended: came_too_late,
    events.Left: IGNORE,
    events.OfferAccepted: IGNORE,
    events.OfferDeclined: IGNORE,
    events.ClientFailed: IGNORE,
    events.UpdateAccepted: IGNORE,
    events.UpdateRefused: IGNORE,
    events.Wake: IGNORE,
    events.Pause: REFUSE,
    events.Resume: REFUSE,
    events.Abort: REFUSE,
    events.CloseNow: REFUSE,
    events.ExtendDeadline: REFUSE,
    events.ChangeGoal: REFUSE,
    events.Committed: IGNORE,
    events.CommitFailed: IGNORE,
}
"""The row of a table for a state that does not change any more."""
