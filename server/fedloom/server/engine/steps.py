"""What rounds and buffers have in common: what their driver sees of them, and the steps they share.

A step takes an engine and the event of its row in the engine's table, and returns the effects. The
tables in `round` and `buffer` name these steps beside the methods that only one of them has.
"""

from collections.abc import Mapping
from math import inf
from typing import Any, Protocol

from fedloom.protocol.errors import Code

from .clock import AT_ONCE, RoundClock
from .cohort import Cohort, Phase
from .config import RoundConfig
from .effects import Abandon, Close, Offer, Recruited, RoundEffect, Withdraw
from .errors import OperatorRefused
from .events import (
    Abort,
    Attended,
    ChangeGoal,
    ClientFailed,
    CloseNow,
    CommitFailed,
    Committed,
    ExtendDeadline,
    Left,
    OfferAccepted,
    OfferDeclined,
    Pause,
    Resume,
    RoundEvent,
    UpdateAccepted,
    UpdateRefused,
    Wake,
)
from .selection import CandidatePool
from .states import IGNORE, REFUSE, RoundState, Verdict

NO_QUORUM = "quorum not reached"
"""How the reason of a round begins that was abandoned at its deadline."""

CLOSED = "the round has closed"

_WAKE = Wake()

_ENDED: Mapping[type[Any], Phase] = {
    OfferDeclined: Phase.DECLINED,
    ClientFailed: Phase.FAILED,
    UpdateRefused: Phase.REFUSED,
}


class RoundEngine(Protocol):
    """Decides what happens in a round: events and their time go in, effects come out.

    Ask `wake_at` after building an engine and after every event, and handle `Wake` at that time.

    Attributes:
        state: of the round.
        reason: why it was abandoned.
    """

    state: RoundState
    reason: str

    @property
    def config(self) -> RoundConfig:
        """The settings of the round."""

    @property
    def cohort(self) -> Cohort:
        """Its members and the phase of each."""

    @property
    def candidates(self) -> CandidatePool:
        """Idle clients outside the cohort."""

    @property
    def clock(self) -> RoundClock:
        """Its deadline and its pause."""

    @property
    def wake_at(self) -> float | None:
        """Monotonic seconds of the next `Wake` that is needed, or None."""

    @property
    def continues(self) -> bool:
        """Whether members keep working after a commit, for the next round of this engine."""

    def handle(self, event: RoundEvent, now: float) -> list[RoundEffect]:
        """Take note of an event and say what is to be done, in order.

        Raises:
            OperatorRefused: an operator's command does not fit; nothing has changed.
        """

    def origin(self, client: str) -> int | None:
        """The round that a member was asked in; None where that is the open one."""

    def waits_for(self, client: str) -> bool:
        """Whether an update of this client is still expected."""

    def refusal_for(self, client: str, origin: int) -> Code | None:
        """Why an update of this client for the task of round `origin` is not admitted now."""


class Engine(RoundEngine, Protocol):
    """What the shared steps need of an engine beside what its driver sees."""

    @property
    def free(self) -> int:
        """Members that may be recruited now."""

    def ask(self, client: str) -> Offer:
        """Let a client join the cohort."""


# ---- time ------------------------------------------------------------------------------------


def next_due(engine: RoundEngine) -> float:
    """When something is due without an event; infinity for never."""
    if engine.clock.paused_at is not None or engine.state is not RoundState.REPORTING:
        return inf
    return min(engine.clock.deadline, engine.cohort.next_loss())


def wake_at(engine: RoundEngine) -> float | None:
    """When an engine must be woken; see `RoundEngine.wake_at`."""
    if engine.clock.check_at == AT_ONCE:
        return engine.clock.now
    at = next_due(engine)
    return None if at == inf else at


def do_what_is_due(
    engine: RoundEngine, table: Mapping[RoundState, Mapping[type[Any], Any]]
) -> list[RoundEffect]:
    """Handle `Wake` by the table after another event; `check_at` has been reached."""
    due = table[engine.state][Wake]
    effects: list[RoundEffect] = [] if isinstance(due, Verdict) else due(engine, _WAKE)
    engine.clock.check_at = next_due(engine)
    return effects


def time_passed(engine: Engine, _: Wake) -> list[RoundEffect]:
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


def candidate_left(engine: Engine, event: Left) -> list[RoundEffect]:
    """Forget a candidate."""
    engine.candidates.discard(event.client)
    return []


def left(engine: Engine, event: Left) -> list[RoundEffect]:
    """Start the grace period of a member, or forget a candidate."""
    engine.candidates.discard(event.client)
    until = engine.clock.grace_until(engine.config.patience_s)
    engine.cohort.leave(event.client, until)
    return []


def started(engine: Engine, event: OfferAccepted) -> list[RoundEffect]:
    """Note that a member trains."""
    engine.cohort.start_training(event.client)
    return []


def ended(engine: Engine, event: OfferDeclined | ClientFailed | UpdateRefused) -> list[RoundEffect]:
    """End a member's part without an update; another client takes its place."""
    return settle(engine) if engine.cohort.end(event.client, _ENDED[type(event)]) else []


def ended_in_commit(
    engine: Engine, event: OfferDeclined | ClientFailed | UpdateRefused
) -> list[RoundEffect]:
    """End a member's part while nobody is recruited."""
    engine.cohort.end(event.client, _ENDED[type(event)])
    return []


def reported_in_commit(engine: Engine, event: UpdateAccepted) -> list[RoundEffect]:
    """Count an update that became durable while the round closed; the driver waits for those."""
    engine.cohort.report(event.client)
    return []


def came_too_late(engine: Engine, event: Attended) -> list[RoundEffect]:
    """Withdraw the task of a member that comes back after the round."""
    client = event.client
    if not engine.cohort.is_unfinished(client):
        return []
    return [Withdraw(client, engine.reason or CLOSED, engine.origin(client))]


def settle(engine: Engine) -> list[RoundEffect]:
    """Close if the goal is reached, else fill free places, else close if nobody is left."""
    if engine.clock.paused:
        return []
    cohort, config = engine.cohort, engine.config
    if cohort.accepted >= config.goal:
        return close(engine)
    effects = recruit(engine)
    if not cohort.at_work and cohort.accepted >= config.quorum:
        effects += close(engine)
    return effects


def recruit(engine: Engine) -> list[RoundEffect]:
    """Give free places to candidates."""
    effects: list[RoundEffect] = []
    free = engine.free
    while free > 0 and (client := engine.candidates.pop()) is not None:
        effects += (Recruited(client), engine.ask(client))
        free -= 1
    return effects


# ---- the end ---------------------------------------------------------------------------------


def close(engine: Engine) -> list[RoundEffect]:
    """Close the round; who is still at work is told so, unless its update may count later."""
    engine.state = RoundState.CLOSING
    engine.clock.stop()
    return [Close(), *([] if engine.continues else withdrawals(engine, CLOSED))]


def close_again(engine: Engine, _: Wake) -> list[RoundEffect]:
    """Ask for the commit again, once, after a round was restored as closing."""
    if engine.clock.check_at != AT_ONCE:
        return []
    engine.clock.check_at = inf
    return [Close()]


def committed(engine: Engine, _: Committed) -> list[RoundEffect]:
    """Note that the result is durable."""
    engine.state = RoundState.COMMITTED
    return []


def commit_failed(engine: Engine, event: CommitFailed) -> list[RoundEffect]:
    """Abandon the round; who still works does so for a round without a result."""
    unfinished = withdrawals(engine, event.reason) if engine.continues else []
    engine.state, engine.reason = RoundState.ABANDONED, event.reason
    return [Abandon(event.reason), *unfinished]


def abandon(engine: Engine, reason: str) -> list[RoundEffect]:
    """End the round without a result."""
    engine.state, engine.reason = RoundState.ABANDONED, reason
    engine.clock.stop()
    return [Abandon(reason), *withdrawals(engine, reason)]


def withdrawals(engine: RoundEngine, reason: str) -> list[RoundEffect]:
    """Tell every member that may still be at work that its task is withdrawn."""
    unfinished = engine.cohort.unfinished()
    return [Withdraw(client, reason, engine.origin(client)) for client in unfinished]


# ---- commands of the operator ----------------------------------------------------------------


def abort(engine: Engine, event: Abort) -> list[RoundEffect]:
    """End the round without a result, as the operator asks."""
    return abandon(engine, event.reason)


def close_now(engine: Engine, _: CloseNow) -> list[RoundEffect]:
    """Close with what there is.

    Raises:
        OperatorRefused: there is no update.
    """
    if not engine.cohort.accepted:
        raise OperatorRefused(
            "Expected at least 1 accepted update to close with, got 0; "
            "wait for one or abort the round."
        )
    return close(engine)


def nothing_to_close(_: Engine, __: CloseNow) -> list[RoundEffect]:
    """Refuse to close a round that has not opened.

    Raises:
        OperatorRefused: always.
    """
    raise OperatorRefused(
        "Expected a round that is reporting, got one that waits for clients; abort it instead."
    )


def extend(engine: Engine, event: ExtendDeadline) -> list[RoundEffect]:
    """Move the deadline.

    Raises:
        OperatorRefused: not by a positive, finite number of seconds.
    """
    engine.clock.extend(event.seconds)
    return []


def no_deadline(_: Engine, __: ExtendDeadline) -> list[RoundEffect]:
    """Refuse to move a deadline that is not set yet.

    Raises:
        OperatorRefused: always.
    """
    raise OperatorRefused(
        "Expected a round that is reporting, got one that waits for clients: "
        "its deadline is set when it opens."
    )


def pause(engine: Engine, _: Pause) -> list[RoundEffect]:
    """Stop the time of the round.

    Raises:
        OperatorRefused: it is stopped already.
    """
    engine.clock.pause()
    return []


def resume(engine: Engine, _: Resume) -> list[RoundEffect]:
    """Let the time run again; the deadline and every grace period move by the pause.

    Raises:
        OperatorRefused: the time runs.
    """
    engine.cohort.delay(engine.clock.resume())
    return []


def too_late(event: object, state: RoundState) -> OperatorRefused:
    """The error for a command that the table refuses in this state."""
    return OperatorRefused(
        f"Expected a round that is still open to {type(event).__name__}, got one {state}."
    )


OVER: Mapping[type[Any], Any] = {
    Attended: came_too_late,
    Left: IGNORE,
    OfferAccepted: IGNORE,
    OfferDeclined: IGNORE,
    ClientFailed: IGNORE,
    UpdateAccepted: IGNORE,
    UpdateRefused: IGNORE,
    Wake: IGNORE,
    Pause: REFUSE,
    Resume: REFUSE,
    Abort: REFUSE,
    CloseNow: REFUSE,
    ExtendDeadline: REFUSE,
    ChangeGoal: REFUSE,
    Committed: IGNORE,
    CommitFailed: IGNORE,
}
"""The row of a table for an engine that is over for good."""
