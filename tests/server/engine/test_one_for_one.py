"""A failure and its replacement in one step are those of the events one by one."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedloom.server.engine import (
    Buffer,
    BufferConfig,
    ClientFailed,
    Left,
    Offer,
    OfferAccepted,
    OfferDeclined,
    Pause,
    Phase,
    Round,
    RoundConfig,
    UpdateAccepted,
    Wake,
    replace,
    uniform,
)
from fedloom.strategies.selection.roster import Attendance, Roster

NAMES = [f"client-{number:02}" for number in range(14)]


def engines(config, many):
    """Two equal engines whose cohort trains, with a roster of these many clients."""
    roster = Roster(NAMES[:many])

    def one():
        here = Attendance(roster, np.ones(many, np.bool_))
        more = {"number": 1} if isinstance(config, BufferConfig) else {}
        kind = Buffer if more else Round
        engine = kind(config, select=uniform(1, 1), now=0.0, available=here, **more)
        for effect in engine.handle(Wake(), 0.0):
            if isinstance(effect, Offer):
                engine.handle(OfferAccepted(effect.client), 0.0)
        return engine

    return one(), one()


def state(engine):
    """Everything that later decisions depend on."""
    cohort, clock = engine.cohort, engine.clock
    members = [(client, *cohort.contact(client), engine.origin(client)) for client in cohort.phases]
    return (
        engine.state, members, cohort.counts(), sorted(engine.candidates), engine.wake_at,
        clock.now, clock.give_up_at, clock.deadline, clock.paused_at,
    )  # fmt: skip


def by_events(engine, client, phase, now):
    """The same by events; the clients that were asked."""
    event = ClientFailed if phase is Phase.FAILED else OfferDeclined
    offers = [e.client for e in engine.handle(event(client), now) if isinstance(e, Offer)]
    for asked in offers:
        engine.handle(OfferAccepted(asked), now)
    return offers


CONFIGS = st.builds(
    lambda goal, more, quorum, **how: RoundConfig(
        goal=goal, over_selection=more, quorum=min(quorum, goal), **how
    ),
    goal=st.integers(2, 6),
    more=st.sampled_from([1.0, 1.5]),
    quorum=st.sampled_from([1, 6]),
    deadline_s=st.sampled_from([5.0, 500.0]),
    patience_s=st.sampled_from([0.0, 30.0]),
    replace=st.booleans(),
) | st.builds(
    lambda goal, at_work: BufferConfig(goal=goal, concurrency=at_work, quorum=goal),
    goal=st.integers(1, 6),
    at_work=st.integers(1, 6),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["fails", "fails", "declines", "reports", "leaves", "pauses", "set aside"]),
        st.integers(0, 11),
        st.sampled_from([0.0, 0.0, 0.1, 3.0, 40.0]),
    ),
    min_size=8,
    max_size=24,
)


@given(config=CONFIGS, many=st.integers(9, 14), steps=STEPS)
@example(
    config=BufferConfig(goal=6, concurrency=1, quorum=6),
    many=9,
    steps=[("fails", number, 0.1) for number in range(7)],
).via("the quorum gets out of reach")
@example(
    config=RoundConfig(goal=4, quorum=2),
    many=9,
    steps=[("set aside", 2, 0.0), ("fails", 0, 0.0), ("set aside", 0, 0.0), ("fails", 1, 0.0)],
).via("two places are free")
@settings(max_examples=200)
def test_a_replacement_in_one_step_is_that_of_the_events(config, many, steps):
    engine, witness = engines(config, many)
    now = 0.0
    for what, number, seconds in steps:
        now += seconds
        members = list(witness.cohort.phases)
        client = members[number % len(members)]
        if what in ("fails", "declines"):
            phase = Phase.FAILED if what == "fails" else Phase.DECLINED
            before = state(engine)
            asked = replace(engine, client, phase, now)
            if asked is None:
                assert state(engine) == before
                by_events(engine, client, phase, now)
                by_events(witness, client, phase, now)
            else:
                assert by_events(witness, client, phase, now) == [asked]
        elif what == "set aside":
            for each in (engine, witness):
                each.set_aside = lambda kept=number % 3 * 9: kept
        elif what == "pauses":
            if witness.clock.paused or not witness.state.is_open:
                continue
            for each in (engine, witness):
                each.handle(Pause(), now)
        else:
            event = UpdateAccepted(client) if what == "reports" else Left(client)
            for each in (engine, witness):
                each.handle(event, now)
        assert state(engine) == state(witness)


@pytest.mark.parametrize(
    "config", [RoundConfig(goal=4, quorum=2), BufferConfig(goal=4, concurrency=4, quorum=2)]
)
def test_an_idle_client_replaces_one_that_failed(config):
    engine, _ = engines(config, 9)
    client = next(iter(engine.cohort.phases))
    asked = replace(engine, client, Phase.FAILED, 1.0)
    assert engine.cohort.phases[client] is Phase.FAILED
    assert engine.cohort.phases[asked] is Phase.TRAINING
    assert len(engine.candidates) == 4


def test_nothing_happens_without_somebody_to_ask():
    engine, _ = engines(RoundConfig(goal=4, quorum=2), 4)
    client = next(iter(engine.cohort.phases))
    assert replace(engine, client, Phase.FAILED, 1.0) is None
    assert engine.cohort.phases[client] is Phase.TRAINING
