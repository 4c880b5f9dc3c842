"""The steps that the tables of rounds and buffers share.

A step takes an engine and the event of its row in the engine's table, and returns the effects. The
tables in `round` and `buffer` name these steps beside methods of their own class.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from . import events
from .clock import AT_ONCE
from .cohort import Phase
from .effects import Abandon, Close, Recruited, RoundEffect, Withdraw
from .errors import OperatorRefused
from .failures import are_alike, commonest, in_words
from .round_engine import RoundEngine
from .states import IGNORE, REFUSE, RoundState

NO_QUORUM = "quorum not reached"
"""The start of the reason of a round that was abandoned at its deadline."""

OUT_OF_REACH = "quorum out of reach"
"""The start of the reason of a round that was abandoned because too many members failed."""

CLOSED = "the round has closed"

LOOK_S = 1.0
"""Interval at which a round whose failures put its quorum out of reach looks for clients that other
runs keep from it, seconds."""

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
        if clock.look_at <= clock.now:
            clock.look_at = inf
        return settle(engine)
    if cohort.accepted >= engine.config.quorum:
        return engine.complete()
    return abandon(
        engine,
        f"{NO_QUORUM}: expected at least {engine.config.quorum} updates by the deadline, "
        f"got {cohort.accepted}{_ended_without(engine)}",
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
    ended = engine.cohort.end(event.client, _ENDED[type(event)], event.reason)
    return settle(engine) if ended else []


def decline_all(engine: RoundEngine, clients: Sequence[str], now: float) -> list[RoundEffect]:
    """Handle an `OfferDeclined` of each of these members, if the quorum `bears` it."""
    engine.clock.now = max(now, engine.clock.now)
    for client in clients:
        engine.cohort.end(client, Phase.DECLINED)
    return settle(engine)


def ended_in_commit(
    engine: RoundEngine, event: events.OfferDeclined | events.ClientFailed | events.UpdateRefused
) -> list[RoundEffect]:
    """End a member's part; nobody is recruited during a commit."""
    engine.cohort.end(event.client, _ENDED[type(event)], event.reason)
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
    """Close at the goal; else recruit; else close with a quorum if nobody is at work.

    A round whose failures put its quorum out of reach is abandoned after `give_up_s`, unless
    another client comes.
    """
    if engine.clock.paused:
        return []
    cohort, config = engine.cohort, engine.config
    if cohort.accepted >= config.enough:
        return engine.complete()
    effects = recruit(engine)
    if not cohort.at_work and cohort.accepted >= config.quorum:
        return effects + engine.complete()
    missing = lacking(engine)
    if effects or missing <= 0:
        engine.clock.hope()  # another client came
    return effects + _give_up(engine, missing) if missing > 0 else effects


def lacking(engine: RoundEngine) -> int:
    """Clients that the quorum lacks, if members failed: the others and all candidates are too few.

    Lost members may return. Clients that decline do so for a time, so they alone end no round.
    """
    cohort, config = engine.cohort, engine.config
    others = engine.spare if config.replace else 0
    return config.quorum - cohort.possible - others if cohort.failed else 0


def bears(engine: RoundEngine, count: int, now: float) -> bool:
    """Whether the quorum stays in reach if so many members end at this time, before others can."""
    cohort, config = engine.cohort, engine.config
    others = len(engine.candidates) if config.replace else 0
    return (
        engine.state is RoundState.REPORTING
        and now < engine.clock.check_at
        and cohort.possible + others - count >= config.quorum
    )


def replace(engine: RoundEngine, client: str, phase: Phase, now: float) -> str | None:
    """Handle the end of a member's part, and the `OfferAccepted` of the client that replaces it.

    Args:
        engine: of the round.
        client: a member at work.
        phase: FAILED, without a reason, or DECLINED.
        now: monotonic seconds.

    Returns:
        The replacement; None if more than this may happen: then nothing is done.
    """
    cohort, clock, candidates = engine.cohort, engine.clock, engine.candidates
    config, others = engine.config, len(candidates)
    one_for_one = (
        engine.state is RoundState.REPORTING
        and now < clock.check_at
        and not clock.paused
        and clock.give_up_at == inf
        and config.replace
        and engine.free == 0
        and cohort.is_at_work(client)
        and cohort.possible + others > config.quorum
        and others > engine.set_aside()
    )
    if not one_for_one:
        return None
    clock.now = max(now, clock.now)
    cohort.end(client, phase)
    asked = candidates.pop()
    assert asked is not None  # there are others
    engine.ask(asked)
    cohort.start_training(asked)
    return asked


def is_calm(engine: RoundEngine) -> bool:
    """Whether clients outside the cohort that come and leave change the candidates alone.

    However many leave: the quorum stays in reach without them, or no failure counts against it.
    """
    clock, cohort = engine.clock, engine.cohort
    return (
        engine.state is RoundState.REPORTING
        and clock.now < clock.check_at
        and clock.give_up_at == inf
        and engine.free <= 0
        and (cohort.possible >= engine.config.quorum or not cohort.failed)
    )


def _give_up(engine: RoundEngine, missing: int) -> list[RoundEffect]:
    clock, cohort, config = engine.clock, engine.cohort, engine.config
    if clock.give_up_at == inf:
        if clock.now < clock.look_at < inf:
            return []
        clock.look_at = inf
        # Not with every event: it takes time that is linear in the connected clients.
        if config.replace and engine.elsewhere() >= missing:
            clock.look_at = clock.grace_until(LOOK_S)
            return []
        clock.give_up_at = clock.grace_until(min(config.give_up_s, config.patience_s))
    if clock.now < clock.give_up_at:
        return []
    nobody_left = not (cohort.possible or engine.candidates or engine.elsewhere())
    return abandon(
        engine,
        f"{OUT_OF_REACH}: {cohort.possible} of {config.quorum} updates are possible"
        f"{_ended_without(engine)}",
        # Those that declined might have succeeded.
        fault=nobody_left and cohort.failed == len(cohort) and are_alike(cohort.failures()),
    )


def _ended_without(engine: RoundEngine) -> str:
    """How members ended without an update, with the commonest reasons."""
    found = (engine.cohort.failures(), engine.cohort.declines())
    return "".join(f"; {in_words(commonest(each), len(each))}" for each in found if each)


def recruit(engine: RoundEngine) -> list[RoundEffect]:
    """Offer free places to candidates."""
    effects: list[RoundEffect] = []
    free, usable = engine.free, 0
    if free > 0 and len(engine.candidates):
        usable = len(engine.candidates) - engine.set_aside()
    while free > 0 and usable > 0 and (client := engine.candidates.pop()) is not None:
        effects += (Recruited(client), engine.ask(client))
        free -= engine.cohort.places_of(client)
        usable -= 1
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


def abandon(engine: RoundEngine, reason: str, *, fault: bool = False) -> list[RoundEffect]:
    """End the round without a result; `fault` as in `Abandon`."""
    engine.state, engine.reason = RoundState.ABANDONED, reason
    engine.clock.stop()
    return [Abandon(reason, fault), *withdrawals(engine, reason)]


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
    return engine.complete()


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
