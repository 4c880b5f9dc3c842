"""A round keeps its invariants for any events in any order at any time.

A `Witness` feeds a round events under simulated time and checks every answer against an independent
model, which consists of a few sets.
"""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.protocol.errors import Code
from fedloom.server.engine import (
    Abandon,
    Abort,
    Attended,
    ChangeGoal,
    ClientFailed,
    Close,
    CloseNow,
    CommitFailed,
    Committed,
    ExtendDeadline,
    Left,
    Offer,
    OfferAccepted,
    OfferDeclined,
    Opened,
    OperatorRefused,
    Pause,
    Phase,
    Recruited,
    Resume,
    Round,
    RoundConfig,
    RoundState,
    UpdateAccepted,
    UpdateRefused,
    Wake,
    Withdraw,
    uniform,
)

OUT_OF_REACH = "quorum out of reach"
CLIENTS = [f"c{number}" for number in range(9)]
MOVES = {
    RoundState.SELECTING: {RoundState.SELECTING, RoundState.REPORTING, RoundState.ABANDONED},
    RoundState.REPORTING: {RoundState.REPORTING, RoundState.CLOSING, RoundState.ABANDONED},
    RoundState.CLOSING: {RoundState.CLOSING, RoundState.COMMITTED, RoundState.ABANDONED},
    RoundState.COMMITTED: {RoundState.COMMITTED},
    RoundState.ABANDONED: {RoundState.ABANDONED},
}
OPERATOR = (Pause, Resume, Abort, CloseNow, ExtendDeadline, ChangeGoal)
OUT = (OfferDeclined, ClientFailed, UpdateRefused)
AT_WORK = (Phase.OFFERED, Phase.TRAINING)
UNFINISHED = (*AT_WORK, Phase.LOST)


class Witness:
    """Feeds one round and checks its effects."""

    def __init__(self, round_, now):
        self.round = round_
        self.now = now
        self.cohort = set(round_.cohort.phases)
        self.offered = set(round_.cohort.phases)  # first offers seen, or sent before a restart
        self.reported = {c for c, phase in round_.cohort.phases.items() if phase is Phase.REPORTED}
        self.out = {c for c, phase in round_.cohort.phases.items() if phase not in UNFINISHED}
        failures = (Phase.FAILED, Phase.REFUSED)
        self.failed = {c for c, phase in round_.cohort.phases.items() if phase in failures}
        self.closed = 0
        self.abandoned = 0
        self.reopened = round_.state is RoundState.CLOSING

    def feed(self, event, after_s=0.0):
        """Let time pass, handle the event, and check everything."""
        self.now += after_s
        before, frozen = self.round.state, self._snapshot()
        self._expect(event, before)
        try:
            effects = self.round.handle(event, self.now)
        except OperatorRefused:
            assert isinstance(event, OPERATOR)
            assert self._snapshot() == frozen
            return []
        for position, effect in enumerate(effects):
            self._note(effect, position, effects, event)
        assert self.round.state in self._reachable(before)
        self._check_standing()
        return effects

    def _expect(self, event, state):
        counting = state in (RoundState.REPORTING, RoundState.CLOSING)
        if isinstance(event, UpdateAccepted) and counting and event.client in self.cohort:
            self.reported.add(event.client)
            self.out.add(event.client)
            self.failed.discard(event.client)
        if isinstance(event, OUT[1:]) and state is RoundState.REPORTING:
            self.failed |= {event.client} & self.cohort - self.out
        if isinstance(event, OUT) and state is RoundState.REPORTING:
            self.out |= {event.client} & self.cohort
        if isinstance(event, Committed) and self.reopened:
            self.closed = 1  # its driver found the commit complete; no second one is requested

    def _snapshot(self):
        return (
            self.round.state,
            dict(self.round.cohort.phases),
            self.round.cohort.accepted,
            self.round.clock.paused,
        )

    def _reachable(self, state):
        # One late event may open a round and also end it.
        return MOVES[state] | {s for reached in MOVES[state] for s in MOVES[reached]}

    def _note(self, effect, position, effects, event):
        match effect:
            case Opened(cohort):
                assert position == 0
                self._note_cohort(cohort)
            case Recruited(client):
                assert client not in self.cohort
                self.cohort.add(client)
            case Offer(client, again=True):
                assert event == Attended(client)
                assert client in self.offered - self.out
            case Offer(client):
                assert client in self.cohort - self.offered
                self.offered.add(client)
            case Close():
                self._note_close(effects[position + 1 :], event)
            case Abandon(reason):
                self.abandoned += 1
                assert reason == self.round.reason
                if reason.startswith(OUT_OF_REACH):
                    assert self._is_out_of_reach()
                if not isinstance(event, CommitFailed):
                    self._check_withdrawn(effects[position + 1 :])
            case Withdraw(client, reason):
                assert reason
                assert client in self.cohort - self.out

    def _is_out_of_reach(self):
        """By sets alone: the failures leave too few clients for the quorum."""
        hopes = self.reported | (self.cohort - self.out) | set(self.round.candidates)
        return bool(self.failed) and len(hopes) < self.round.config.quorum

    def _note_cohort(self, cohort):
        config = self.round.config
        assert not self.cohort
        assert config.goal <= len(cohort) <= config.cohort_size
        self.cohort = set(cohort)
        assert len(self.cohort) == len(cohort)

    def _note_close(self, following, event):
        self.closed += 1
        by_command = self.reopened or isinstance(event, CloseNow)
        assert len(self.reported) >= (1 if by_command else self.round.config.quorum)
        if not self.reopened:
            self._check_withdrawn(following)

    def _check_withdrawn(self, effects):
        assert all(isinstance(effect, Withdraw) for effect in effects)
        clients = [effect.client for effect in effects]
        assert len(set(clients)) == len(clients)
        assert set(clients) == self.cohort - self.out

    def _check_standing(self):
        round_, config = self.round, self.round.config
        assert set(round_.cohort.phases) == self.cohort == self.offered
        assert (
            round_.cohort.accepted == len(self.reported) == round_.cohort.counts()[Phase.REPORTED]
        )
        assert sum(round_.cohort.counts().values()) == len(self.cohort)
        assert {
            c for c, phase in round_.cohort.phases.items() if phase not in UNFINISHED
        } == self.out
        assert self.closed <= 1
        assert self.closed == (round_.state in (RoundState.CLOSING, RoundState.COMMITTED)) or (
            round_.state is RoundState.ABANDONED
        )
        assert self.abandoned == (round_.state is RoundState.ABANDONED)
        ticking = round_.state is RoundState.REPORTING and not round_.clock.paused
        assert (round_.wake_at is not None) == ticking
        assert round_.wake_at is None or round_.wake_at > self.now
        if ticking:
            at_work = sum(round_.cohort.counts()[phase] for phase in AT_WORK)
            assert round_.cohort.accepted < config.goal
            assert at_work or round_.cohort.accepted < config.quorum
            assert not round_.candidates or round_.cohort.accepted + at_work >= config.goal
            grace_s = min(config.give_up_s, config.patience_s)
            assert not self._is_out_of_reach() or round_.wake_at <= self.now + grace_s
        if round_.state is RoundState.SELECTING and not round_.clock.paused:
            assert len(round_.candidates) < config.goal
        for client in CLIENTS:
            if client not in self.cohort:
                assert round_.refusal_for(client) is Code.NOT_IN_COHORT
            elif round_.state is RoundState.REPORTING:
                assert round_.refusal_for(client) is None
            else:
                assert round_.refusal_for(client) is Code.ROUND_CLOSED

    def run_out(self):
        """Follow only `wake_at` until there is none."""
        wakes = 0
        while (at := self.round.wake_at) is not None:
            self.now = at
            self.feed(Wake())
            wakes += 1
            assert wakes <= len(self.cohort) + 3


clients = st.sampled_from(CLIENTS)
from_clients = st.one_of(
    *(st.builds(kind, clients) for kind in (Attended, Attended, Left, OfferAccepted)),
    *(st.builds(kind, clients) for kind in (UpdateAccepted, *OUT)),
)
from_driver = st.one_of(
    st.builds(Wake), st.builds(Committed), st.builds(CommitFailed, st.just("no disk"))
)
from_operators = st.one_of(
    st.builds(Pause),
    st.builds(Resume),
    st.builds(CloseNow),
    st.builds(ExtendDeadline, st.floats(-1, 30)),
    st.builds(ChangeGoal, st.integers(0, 6), st.integers(0, 4)),
    st.builds(Abort, st.just("enough")),
)
gaps = st.one_of(st.just(0.0), st.floats(0, 4), st.floats(0, 1e-9), st.just(40.0))
# Mostly events of clients: frequent aborts would end most rounds at once.
steps = st.lists(
    st.tuples(
        st.one_of(from_clients, from_clients, from_clients, from_driver, from_operators), gaps
    ),
    max_size=40,
)
phases = st.sampled_from([phase for phase in Phase if phase is not Phase.READY])


@st.composite
def configs(draw):
    """Small rounds with all settings varied."""
    goal = draw(st.integers(1, 5))
    return RoundConfig(
        goal=goal,
        over_selection=draw(st.sampled_from([1.0, 1.1, 1.5, 2.0])),
        quorum=draw(st.integers(1, goal)),
        deadline_s=draw(st.sampled_from([5.0, 33.3, 1e6])),
        patience_s=draw(st.sampled_from([0.0, 0.1, 2.0])),
        give_up_s=draw(st.sampled_from([0.0, 1.0, 3.0])),
    )


@st.composite
def rounds(draw, start):
    """A new or restored round at some time."""
    config, select = draw(configs()), uniform(draw(st.integers(0, 9)), 1)
    available = draw(st.sets(clients))
    if draw(st.booleans()):
        return Round(config, select=select, now=start, available=available)
    cohort = draw(st.dictionaries(clients, phases, min_size=1))
    state = draw(st.sampled_from([RoundState.REPORTING, RoundState.CLOSING]))
    fewest = 1 if state is RoundState.CLOSING else 0
    return Round.restore(
        config,
        select=select,
        state=state,
        cohort=cohort,
        accepted=draw(st.sets(st.sampled_from(sorted(cohort)), min_size=fewest)),
        deadline_left_s=draw(st.floats(-5, 50)),
        now=start,
        available=available,
        paused=draw(st.booleans()),
    )


starts = st.floats(0, 1e7)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(st.data(), starts, steps)
def test_a_round_keeps_its_invariants(data, start, steps):
    """After every event of any sequence, from a new or a restored round."""
    witness = Witness(data.draw(rounds(start)), start)
    for event, after_s in steps:
        witness.feed(event, after_s)
    witness.run_out()
    assert witness.round.clock.paused or witness.round.state is not RoundState.REPORTING


KINDS = (Attended, Left, OfferAccepted, UpdateAccepted, *OUT)
WEIGHTS = (8, 6, 3, 3, 1, 1, 1)


def a_step(draw):
    """An event of a bad day: clients leave and return, few finish, an operator acts."""
    dice = draw.random()
    if dice < 0.05:
        return Wake()
    if dice < 0.08:
        return draw.choice([Pause(), Resume(), Resume(), ExtendDeadline(5.0)])
    if dice < 0.082:
        return draw.choice([CloseNow(), Abort("enough"), Committed(), CommitFailed("no disk")])
    return draw.choices(KINDS, WEIGHTS)[0](draw.choice(CLIENTS))


@pytest.mark.parametrize("seed", range(150))
def test_a_long_round_keeps_its_invariants(seed):
    """Three hundred events, more than in short sequences."""
    draw = Random(seed)
    config = RoundConfig(
        goal=draw.randint(2, 6),
        over_selection=draw.choice([1.0, 1.5]),
        quorum=draw.randint(1, 2),
        deadline_s=draw.choice([100.0, 1000.0]),
        patience_s=draw.choice([0.0, 1.0, 5.0]),
    )
    witness = Witness(Round(config, select=uniform(seed, 1), now=0.0), 0.0)
    for _ in range(300):
        witness.feed(a_step(draw), draw.expovariate(2.0))
    witness.run_out()


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(configs(), starts, steps, st.integers(0, 3))
def test_a_restart_loses_nothing(config, start, steps, seed):
    """A restored round has the same counts and waits as long."""
    witness = Witness(Round(config, select=uniform(seed, 1), now=start), start)
    witness.feed(Wake())
    for event, after_s in steps:
        witness.feed(event, after_s)
    old = witness.round
    if old.state not in (RoundState.REPORTING, RoundState.CLOSING):
        return
    left = old.clock.deadline_left_s(witness.now)
    new = Round.restore(
        config,
        select=uniform(seed, 1),
        state=old.state,
        cohort=old.cohort.phases,
        accepted={c for c, phase in old.cohort.phases.items() if phase is Phase.REPORTED},
        deadline_left_s=left,
        now=0.0,
        paused=old.clock.paused,
    )
    assert (new.state, new.cohort.accepted, dict(new.cohort.phases)) == (
        old.state,
        old.cohort.accepted,
        dict(old.cohort.phases),
    )
    assert (new.clock.paused, new.clock.deadline_left_s(0.0)) == (old.clock.paused, left)
    again = Witness(new, 0.0)
    again.closed = 0
    again.feed(Wake())
    again.run_out()
    assert new.clock.paused or new.state is not RoundState.REPORTING


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(configs(), steps, st.floats(1, 1e4))
def test_a_pause_only_shifts_time(config, steps, pause_s):
    """Pausing and resuming leads to the same effects, later by the pause."""
    steps = [step for step in steps if not isinstance(step[0], (Pause, Resume, ExtendDeadline))]
    config = RoundConfig(
        goal=config.goal,
        over_selection=config.over_selection,
        quorum=config.quorum,
        deadline_s=round(config.deadline_s),
        patience_s=round(config.patience_s),
        give_up_s=config.give_up_s,
    )
    half = len(steps) // 2
    pause_s = float(round(pause_s))

    def play(pause_s):
        round_ = Round(config, select=uniform(0, 1), now=0.0, available=CLIENTS[:6])
        effects, now = round_.handle(Wake(), 0.0), 0.0
        for place, (event, after_s) in enumerate(steps):
            now += round(after_s)  # integer seconds, so that a shift by the pause is exact
            if place == half:
                effects += round_.handle(Wake(), now)
            if place == half and pause_s and round_.state.is_open:
                effects += round_.handle(Pause(), now)
                now += pause_s
                effects += round_.handle(Resume(), now)
            try:
                effects += round_.handle(event, now)
            except OperatorRefused:
                effects.append("refused")
        return effects, round_.state, dict(round_.cohort.phases)

    assert play(pause_s) == play(0.0)
