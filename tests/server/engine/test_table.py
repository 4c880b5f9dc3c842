"""The tables are complete: every state has an entry for every event."""

from typing import get_args

import pytest

from fedloom.server.engine import (
    IGNORE,
    REFUSE,
    Abort,
    Attended,
    Break,
    ChangeGoal,
    ClientFailed,
    CloseNow,
    CommitFailed,
    Committed,
    Done,
    ExtendDeadline,
    Left,
    OfferAccepted,
    OfferDeclined,
    OperatorRefused,
    Pause,
    Resume,
    RollBack,
    RolledBack,
    Round,
    RoundAbandoned,
    RoundCommitted,
    RoundConfig,
    RoundEvent,
    RoundKind,
    RoundState,
    Run,
    RunConfig,
    RunEvent,
    RunState,
    Started,
    Stop,
    UpdateAccepted,
    UpdateRefused,
    Verdict,
    Wake,
    Wanted,
    uniform,
)

STATES = [state for state in RoundState if state is not RoundState.MASKING]
"""Of a round that is not masked."""
ROUND_EVENTS = (
    Attended("a"),
    Left("a"),
    OfferAccepted("a"),
    OfferDeclined("a", "busy"),
    ClientFailed("a", "no disk"),
    UpdateAccepted("a"),
    UpdateRefused("a", "not_finite"),
    Wake(),
    Pause(),
    Resume(),
    Abort("enough"),
    CloseNow(),
    ExtendDeadline(1.0),
    ChangeGoal(1, 1),
    Committed(),
    CommitFailed("no disk"),
)
OPERATOR = {Pause, Resume, Abort, CloseNow, ExtendDeadline, ChangeGoal}
RUN_EVENTS = (
    Started(),
    RoundCommitted(RoundKind.TRAIN),
    RoundAbandoned("quorum"),
    Pause(),
    Resume(),
    Stop(),
    Break("no model"),
    Wanted(),
    Done(),
    RollBack("back to round 1"),
    RolledBack(1),
)


def round_in(state):
    """A round of two clients, driven to a state by events alone."""
    config = RoundConfig(goal=2, quorum=1, deadline_s=10.0, patience_s=5.0)
    round_ = Round(config, select=uniform(0, 1), now=0.0)
    if state is RoundState.SELECTING:
        return round_
    for client in ("a", "b"):
        round_.handle(Attended(client), 0.0)
    if state is RoundState.ABANDONED:
        round_.handle(Abort("enough"), 1.0)
    if state in (RoundState.CLOSING, RoundState.COMMITTED):
        round_.handle(UpdateAccepted("b"), 1.0)
        round_.handle(CloseNow(), 1.0)
    if state is RoundState.COMMITTED:
        round_.handle(Committed(), 1.0)
    assert round_.state is state
    return round_


def test_the_round_table_is_total():
    """Each state of a round has an entry for each event, and no others."""
    assert set(Round.TABLE) == set(STATES)
    for row in Round.TABLE.values():
        assert set(row) == set(get_args(RoundEvent))
        assert all(isinstance(entry, Verdict) or callable(entry) for entry in row.values())


def test_the_run_table_is_total():
    """Each state of a run has an entry for each event, and no others."""
    assert set(Run.TABLE) == set(RunState)
    for row in Run.TABLE.values():
        assert set(row) == set(get_args(RunEvent))
        assert all(isinstance(entry, Verdict) or callable(entry) for entry in row.values())


def test_the_samples_cover_every_event():
    assert {type(event) for event in ROUND_EVENTS} == set(get_args(RoundEvent))
    assert {type(event) for event in RUN_EVENTS} == set(get_args(RunEvent))


def test_only_operators_are_refused():
    """Events of clients, time and the driver have happened, so no state refuses them."""
    for row in Round.TABLE.values():
        assert {event for event, entry in row.items() if entry is REFUSE} <= OPERATOR


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", ROUND_EVENTS, ids=lambda event: type(event).__name__)
def test_a_round_follows_its_table(state, event):
    """An ignored event changes nothing, a refused one raises, and no other pair fails."""
    round_ = round_in(state)
    before = (round_.state, dict(round_.cohort.phases), round_.cohort.accepted, round_.wake_at)
    entry = Round.TABLE[state][type(event)]
    if entry is REFUSE:
        with pytest.raises(OperatorRefused, match=state):
            round_.handle(event, 2.0)
    else:
        try:
            effects = round_.handle(event, 2.0)
        except OperatorRefused:
            assert type(event) in OPERATOR
            effects = []
        if entry is not IGNORE:
            return
        assert effects == []
    fresh = state is RoundState.SELECTING  # the first event of all clears its wake_at of "now"
    after = (round_.state, dict(round_.cohort.phases), round_.cohort.accepted, round_.wake_at)
    assert after[:3] == before[:3]
    assert fresh or after[3] == before[3]


@pytest.mark.parametrize("state", [RoundState.COMMITTED, RoundState.ABANDONED])
@pytest.mark.parametrize("event", ROUND_EVENTS, ids=lambda event: type(event).__name__)
def test_a_round_that_is_over_does_not_change(state, event):
    round_ = round_in(state)
    try:
        round_.handle(event, 2.0)
    except OperatorRefused:
        assert type(event) in OPERATOR
    assert round_.state is state
    assert round_.wake_at is None


@pytest.mark.parametrize("state", RunState)
@pytest.mark.parametrize("event", RUN_EVENTS, ids=lambda event: type(event).__name__)
def test_a_run_follows_its_table(state, event):
    """An ignored event changes nothing, a refused one raises, and no other pair fails."""
    run = Run(RunConfig(rounds=2), state=state, reason="as stored")
    before = (run.state, run.reason, run.progress)
    entry = Run.TABLE[state][type(event)]
    if entry is REFUSE:
        with pytest.raises(OperatorRefused, match=state):
            run.handle(event)
    elif entry is IGNORE:
        assert run.handle(event) == []
    else:
        run.handle(event)
        return
    assert (run.state, run.reason, run.progress) == before
