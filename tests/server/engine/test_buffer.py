"""Buffers of a run: which clients are asked, where updates count, and their staleness."""

from random import Random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.protocol.errors import Code, UsageError
from fedloom.server.engine import (
    REFUSE,
    Abandon,
    Abort,
    Attended,
    Buffer,
    BufferConfig,
    BufferEvent,
    ChangeGoal,
    ClientFailed,
    Close,
    CloseNow,
    CommitFailed,
    Committed,
    Disband,
    ExtendDeadline,
    Left,
    MemberSnapshot,
    NextBuffer,
    Offer,
    OfferAccepted,
    OfferDeclined,
    Opened,
    OperatorRefused,
    Pause,
    Phase,
    Recruited,
    Resume,
    RoundState,
    UpdateAccepted,
    UpdateRefused,
    Verdict,
    Wake,
    Withdraw,
    uniform,
)

AT_WORK = (Phase.OFFERED, Phase.TRAINING)
OPERATOR = (Pause, Resume, Abort, CloseNow, ExtendDeadline, ChangeGoal)


def first(candidates, count):
    """Select in alphabetical order, so that the draws are predictable."""
    return list(candidates[:count])


def config(**changes):
    """Three at work at a time, two updates to a buffer."""
    settings = {"goal": 2, "concurrency": 3, "deadline_s": 100.0, "patience_s": 10.0}
    return BufferConfig(**(settings | changes))


def opened(available="abcde", **changes):
    """The first buffer, open at time 0; its offers are accepted."""
    buffer = asked(available, **changes)
    for client in list(buffer.cohort.phases):
        assert buffer.handle(OfferAccepted(client), 0.0) == []
    return buffer


def asked(available="abcde", **changes):
    """The first buffer, open at time 0; no offer is answered yet."""
    buffer = Buffer(config(**changes), number=1, select=first, now=0.0, available=available)
    buffer.handle(Wake(), 0.0)
    assert buffer.state is RoundState.REPORTING
    return buffer


def commit(buffer, now, **changes):
    """Commit a buffer that is closing, and open the next."""
    assert buffer.state is RoundState.CLOSING
    buffer.handle(Committed(), now)
    return buffer.handle(NextBuffer(buffer.number + 1, first, **changes), now)


def at_work(buffer):
    """Origin by client of the members at work."""
    return {c: buffer.origin(c) for c, p in buffer.cohort.phases.items() if p in AT_WORK}


# ---- selection and counting ----------------------------------------------------------------------


def test_a_report_frees_a_place_which_is_filled_at_once():
    """The concurrency is kept, with the newest model."""
    buffer = opened()
    assert at_work(buffer) == {"a": 1, "b": 1, "c": 1}
    assert buffer.handle(UpdateAccepted("a"), 1.0) == [Recruited("d"), Offer("d", origin=1)]
    assert at_work(buffer) == {"b": 1, "c": 1, "d": 1}


def test_work_continues_over_a_commit_and_counts_in_the_next_buffer():
    """Members keep their origin; the staleness is the number of models since."""
    buffer = opened()
    buffer.handle(UpdateAccepted("a"), 1.0)
    assert buffer.handle(UpdateAccepted("b"), 2.0) == [Close()]
    assert commit(buffer, 3.0) == [Opened(("e",)), Offer("e", origin=2)]
    assert at_work(buffer) == {"c": 1, "d": 1, "e": 2}
    buffer.handle(UpdateAccepted("c"), 4.0)
    assert buffer.number - buffer.origin("c") == 1
    assert buffer.cohort.accepted == 1


def test_staleness_with_constant_speeds():
    """Two fast devices and one that takes 3.5 times as long: 0, 0 and then 3 models behind."""
    buffer = opened("fgs")  # f and g report every second, s every 3.5
    seen, due = [], [(1.0, "f"), (1.0, "g"), (3.5, "s")]
    while len(seen) < 9:
        due.sort()
        now, client = due.pop(0)
        seen.append((client, buffer.number - buffer.origin(client)))
        effects = buffer.handle(UpdateAccepted(client), now)
        effects += buffer.handle(Attended(client), now)
        if buffer.state is RoundState.CLOSING:
            effects += commit(buffer, now)
        asked = [effect.client for effect in effects if isinstance(effect, Offer)]
        due += [(now + (3.5 if name == "s" else 1.0), name) for name in asked]
    wanted = ["f0", "g0"] * 3 + ["s3", "f0"]  # f and g begin at 3, s ends at 3.5, f at 4
    assert [f"{client}{staleness}" for client, staleness in seen[:8]] == wanted
    assert seen[8] == ("g", 1)  # g was asked with f for model 3; f closed the buffer with s


def test_a_client_counts_once_per_buffer_and_is_asked_once_per_model():
    """A client that has reported waits for the next model."""
    buffer = opened("abc")
    assert buffer.handle(UpdateAccepted("a"), 1.0) == []
    assert buffer.handle(UpdateAccepted("a"), 1.0) == []
    assert buffer.handle(Attended("a"), 1.0) == []
    assert buffer.cohort.accepted == 1
    assert at_work(buffer) == {"b": 1, "c": 1}
    buffer.handle(UpdateAccepted("b"), 2.0)
    assert commit(buffer, 2.0) == [Opened(("a",)), Offer("a", origin=2)]


def test_fedasync_is_a_buffer_of_one():
    """With a goal of 1 each update makes a model, and the others grow staler by one."""
    buffer = opened("abc", goal=1)
    seen = []
    for client in "abcabc":
        seen.append(buffer.number - buffer.origin(client))
        buffer.handle(UpdateAccepted(client), 1.0)
        buffer.handle(Attended(client), 1.0)
        commit(buffer, 1.0)
    assert seen == [0, 1, 2, 2, 2, 2]


def test_tasks_past_max_staleness_are_withdrawn():
    """Their updates are refused as stale."""
    buffer = opened("abc", goal=1, max_staleness=1)
    for number in (1, 2):
        buffer.handle(UpdateAccepted("a"), number)
        buffer.handle(Attended("a"), number)
        effects = commit(buffer, number)
    assert Withdraw("b", "its update would be 2 models behind", 1) in effects
    assert Withdraw("c", "its update would be 2 models behind", 1) in effects
    assert effects[0] == Opened(("a",))
    assert buffer.refusal_for("b", 1) is Code.STALE_ROUND
    assert buffer.handle(Attended("b"), 3.0) == [Recruited("b"), Offer("b", origin=3)]
    assert buffer.refusal_for("b", 3) is None
    assert buffer.refusal_for("b", 2) is Code.NOT_IN_COHORT
    assert buffer.refusal_for("nobody", 3) is Code.NOT_IN_COHORT


def test_a_client_that_drops_out_is_replaced():
    """Whether it declines, fails, is refused or loses contact."""
    for event in (OfferDeclined("a"), ClientFailed("a"), UpdateRefused("a")):
        buffer = opened("abcd")
        assert buffer.handle(event, 1.0) == [Recruited("d"), Offer("d", origin=1)]
    buffer = opened("abcd")
    buffer.handle(Left("a"), 1.0)
    assert buffer.wake_at == 11.0
    assert buffer.handle(Wake(), 11.0) == [Recruited("d"), Offer("d", origin=1)]
    assert buffer.handle(Attended("a"), 12.0) == [Offer("a", again=True, origin=1)]


def test_an_unanswered_offer_frees_its_place():
    """The concurrency is of clients that are at work; a rebuilt buffer waits as long."""
    buffer = asked("abcd", goal=1)
    for client in "ab":
        buffer.handle(OfferAccepted(client), 1.0)
    assert buffer.handle(UpdateAccepted("a"), 2.0) == [Close()]
    buffer.handle(Committed(), 3.0)
    members = buffer.snapshot(3.0)
    assert members == {
        "b": MemberSnapshot(1, Phase.TRAINING),
        "c": MemberSnapshot(1, Phase.OFFERED, 7.0),
    }
    rebuilt = Buffer.rebuild(
        buffer.config, number=1, select=first, state=buffer.state, members=members, now=3.0,
        available="ad",
    )  # fmt: skip
    for each in (buffer, rebuilt):
        each.handle(NextBuffer(2, first), 4.0)
        assert at_work(each).keys() >= {"b", "c"}
        assert each.wake_at == 10.0
        each.handle(Wake(), 10.0)
        assert each.cohort.phases["c"] is Phase.LOST
        each.handle(OfferAccepted("c"), 11.0)
        assert each.cohort.phases["c"] is Phase.TRAINING


def test_events_during_a_commit_take_effect_after_it():
    """Nobody is asked between two models; free places are filled with the next."""
    buffer = opened("abcde", goal=1)
    assert buffer.handle(UpdateAccepted("a"), 1.0) == [Close()]
    assert buffer.handle(ClientFailed("b"), 2.0) == []
    assert buffer.handle(Left("c"), 2.0) == []
    assert buffer.handle(Attended("f"), 2.0) == []
    assert buffer.handle(Left("d"), 2.0) == []
    assert buffer.refusal_for("c", 1) is None
    buffer.handle(Committed(), 3.0)
    assert buffer.handle(Attended("c"), 4.0) == [Offer("c", again=True, origin=1)]
    assert buffer.handle(OfferAccepted("c"), 5.0) == []
    assert buffer.wake_at is None
    effects = buffer.handle(NextBuffer(2, first), 30.0)
    assert effects == [Opened(("e", "f")), Offer("e", origin=2), Offer("f", origin=2)]
    assert at_work(buffer) == {"c": 1, "e": 2, "f": 2}


def test_a_buffer_without_working_members_closes_with_its_quorum():
    """All members have reported; with a new model they are asked again."""
    buffer = opened("abc", goal=3, concurrency=3, quorum=2)
    buffer.handle(ClientFailed("c"), 1.0)
    buffer.handle(UpdateAccepted("a"), 2.0)
    assert buffer.handle(UpdateAccepted("b"), 3.0) == [Close()]


def test_the_last_buffer_withdraws_open_tasks():
    buffer = opened("abc", goal=1)
    buffer.handle(UpdateAccepted("a"), 1.0)
    buffer.handle(Attended("a"), 1.0)
    commit(buffer, 1.0, last=True)
    assert buffer.handle(UpdateAccepted("b"), 2.0) == [
        Close(),
        Withdraw("c", "the round has closed", 1),
        Withdraw("a", "the round has closed", 2),
    ]
    assert buffer.refusal_for("c", 1) is Code.ROUND_CLOSED
    assert buffer.handle(Attended("c"), 3.0) == [Withdraw("c", "the run needs no more updates", 1)]
    buffer.handle(Committed(), 4.0)
    assert buffer.handle(Disband("stopped"), 5.0) == []


# ---- deadline, operators and faults --------------------------------------------------------------


def test_a_deadline_closes_a_buffer_or_abandons_it_and_withdraws_tasks():
    """Silent members of an abandoned buffer lose their places."""
    buffer = opened("abc")
    buffer.handle(UpdateAccepted("a"), 1.0)
    assert buffer.handle(Wake(), 100.0) == [Close()]
    buffer = opened("abc")
    effects = buffer.handle(Wake(), 100.0)
    assert isinstance(effects[0], Abandon)
    assert [e.client for e in effects[1:]] == ["a", "b", "c"]
    assert all(isinstance(e, Withdraw) and e.origin == 1 for e in effects[1:])


def test_each_buffer_has_its_own_deadline():
    """It is counted from the opening of the buffer."""
    buffer = opened("abcd", goal=1)
    buffer.handle(UpdateAccepted("a"), 60.0)
    commit(buffer, 61.0)
    assert buffer.clock.deadline_left_s(61.0) == 100.0
    buffer.handle(ExtendDeadline(5.0), 62.0)
    assert buffer.clock.deadline_left_s(62.0) == 104.0


def test_updates_count_in_a_paused_buffer():
    """Nobody is asked and nothing closes until it is resumed."""
    buffer = opened("abcd")
    buffer.handle(Pause(), 1.0)
    assert buffer.handle(UpdateAccepted("a"), 2.0) == []
    assert buffer.handle(UpdateAccepted("b"), 3.0) == []
    assert buffer.handle(Resume(), 4.0) == [Close()]


def test_operators_abort_and_close_a_buffer():
    """Abort withdraws all tasks; close now needs one update."""
    buffer = opened("abc")
    with pytest.raises(OperatorRefused, match="at least 1"):
        buffer.handle(CloseNow(), 1.0)
    buffer.handle(UpdateAccepted("b"), 1.0)
    assert buffer.handle(CloseNow(), 1.0) == [Close()]
    assert set(at_work(buffer)) == {"a", "c"}
    with pytest.raises(OperatorRefused, match="closing"):
        buffer.handle(Abort("no"), 1.0)
    commit(buffer, 2.0)
    effects = buffer.handle(Abort("wrong data"), 3.0)
    assert effects[0] == Abandon("wrong data")
    assert {(e.client, e.origin) for e in effects[1:]} == {("a", 1), ("c", 1)}
    assert buffer.handle(Attended("a"), 4.0) == [Withdraw("a", "wrong data", 1)]


def test_a_failed_commit_withdraws_open_tasks():
    """Their models depend on a round without a result."""
    buffer = opened("abc", goal=1)
    buffer.handle(UpdateAccepted("a"), 1.0)
    assert buffer.handle(CommitFailed("it raised"), 2.0) == [
        Abandon("it raised"),
        Withdraw("b", "it raised", 1),
        Withdraw("c", "it raised", 1),
    ]


def test_disbanding_between_two_buffers_withdraws_open_tasks():
    buffer = opened("abc", goal=1)
    buffer.handle(UpdateAccepted("a"), 1.0)
    buffer.handle(Committed(), 1.0)
    assert buffer.handle(Disband("stopped"), 2.0) == [
        Withdraw("b", "stopped", 1),
        Withdraw("c", "stopped", 1),
    ]
    assert buffer.refusal_for("b", 1) is Code.ROUND_CLOSED


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"max_staleness": -1},
        {"over_selection": 1.3},
        {"goal": 0},
        {"replace": False},
    ],
    ids=str,
)
def test_a_setting_out_of_range_is_refused(wrong):
    """The message names the setting."""
    with pytest.raises(UsageError, match=next(iter(wrong))):
        config(**wrong)


# ---- the table -----------------------------------------------------------------------------------

STATES = [state for state in RoundState if state is not RoundState.MASKING]
"""Of a round that is not masked."""
EVENTS = (
    Attended("a"),
    Left("a"),
    OfferAccepted("a"),
    OfferDeclined("a"),
    ClientFailed("a"),
    UpdateAccepted("a"),
    UpdateRefused("a"),
    Wake(),
    Pause(),
    Resume(),
    Abort("enough"),
    CloseNow(),
    ExtendDeadline(1.0),
    ChangeGoal(1, 1),
    Committed(),
    CommitFailed("no disk"),
    NextBuffer(2, first),
    Disband("enough"),
)


def buffer_in(state):
    """A buffer driven to a state by events alone."""
    if state is RoundState.SELECTING:
        return Buffer(config(), number=1, select=first, now=0.0)
    buffer = opened("ab", concurrency=2)
    if state is RoundState.ABANDONED:
        buffer.handle(Abort("enough"), 1.0)
    if state in (RoundState.CLOSING, RoundState.COMMITTED):
        buffer.handle(UpdateAccepted("b"), 1.0)
        buffer.handle(CloseNow(), 1.0)
    if state is RoundState.COMMITTED:
        buffer.handle(Committed(), 1.0)
    assert buffer.state is state
    return buffer


def test_the_buffer_table_is_total():
    """Each state has an entry for each event, and for nothing else; only operators are refused."""
    assert {type(event) for event in EVENTS} == set(get_args(BufferEvent))
    assert set(Buffer.TABLE) == set(STATES)
    for row in Buffer.TABLE.values():
        assert set(row) == set(get_args(BufferEvent))
        assert all(isinstance(entry, Verdict) or callable(entry) for entry in row.values())
        assert {event for event, entry in row.items() if entry is REFUSE} <= set(OPERATOR)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_buffer_follows_its_table(state, event):
    """An ignored or refused event changes nothing, and nothing else raises."""
    buffer = buffer_in(state)
    before = (buffer.state, dict(buffer.cohort.phases), buffer.number)
    entry = Buffer.TABLE[state][type(event)]
    if entry is REFUSE:
        with pytest.raises(OperatorRefused, match=state):
            buffer.handle(event, 2.0)
    else:
        try:
            effects = buffer.handle(event, 2.0)
        except OperatorRefused:
            assert type(event) in OPERATOR
            effects = []
        if not isinstance(entry, Verdict):
            return
        assert effects == []
    assert (buffer.state, dict(buffer.cohort.phases), buffer.number) == before


# ---- properties ----------------------------------------------------------------------------------

NAMES = [f"c{number}" for number in range(8)]
KINDS = (Attended, Left, OfferAccepted, UpdateAccepted, OfferDeclined, ClientFailed, UpdateRefused)
WEIGHTS = (8, 4, 3, 5, 1, 1, 1)


class Witness:
    """Acts as the driver: feeds one buffer and checks its effects against the events so far."""

    def __init__(self, buffer, seed, rounds):
        self.buffer, self.draw, self.rounds = buffer, Random(seed), rounds
        self.now = 0.0
        self.asked = set()  # (client, origin)
        self.counted = set()  # (client, buffer)

    def step(self):
        """A random event, now or later."""
        self.now += self.draw.choice([0.0, self.draw.expovariate(0.5)])
        dice = self.draw.random()
        if self.buffer.state is RoundState.CLOSING and dice < 0.5:
            event = Committed()
        elif self.buffer.state is RoundState.COMMITTED and dice < 0.5:
            number = self.buffer.number + 1
            event = NextBuffer(number, uniform(7, number), last=number == self.rounds)
        elif dice < 0.55:
            event = Wake()
        elif dice < 0.57:
            event = self.draw.choice([Pause(), Resume(), Resume(), ExtendDeadline(3.0)])
        else:
            event = self.draw.choices(KINDS, WEIGHTS)[0](self.draw.choice(NAMES))
        self.feed(event)

    def feed(self, event):
        """Handle an event, and check its effects."""
        buffer, before = self.buffer, at_work(self.buffer)
        accepted, number = buffer.cohort.accepted, buffer.number
        try:
            effects = buffer.handle(event, self.now)
        except OperatorRefused:
            assert isinstance(event, OPERATOR)
            return
        if isinstance(event, UpdateAccepted) and buffer.cohort.accepted > accepted:
            assert (event.client, number) not in self.counted
            self.counted.add((event.client, number))
        for effect in effects:
            self.note(effect, before)
        config = buffer.config
        working = at_work(buffer)
        lost = sum(phase is Phase.LOST for phase in buffer.cohort.phases.values())
        assert all(buffer.number - origin <= config.max_staleness for origin in working.values())
        if any(isinstance(effect, Recruited) for effect in effects):
            assert len(working) <= config.concurrency
        if buffer.state is RoundState.REPORTING and not buffer.clock.paused:
            assert buffer.cohort.accepted < config.goal
            assert len(working) >= config.concurrency or not buffer.candidates
            assert working or lost or buffer.cohort.accepted < config.quorum
        if buffer.state is not RoundState.REPORTING or buffer.clock.paused:
            assert buffer.wake_at is None or self.now == 0.0

    def note(self, effect, before):
        """Check that an effect is consistent for the driver."""
        match effect:
            case Offer(client, again=True, origin=origin):
                assert (client, origin) in self.asked
            case Offer(client, origin=origin):
                assert origin == self.buffer.number
                assert (client, origin) not in self.asked
                assert client not in before
                self.asked.add((client, origin))
            case Withdraw(client, origin=origin):
                assert (client, origin) in self.asked


@pytest.mark.parametrize("seed", range(120))
def test_buffers_keep_their_invariants(seed):
    """Four hundred random events over many buffers."""
    draw = Random(seed)
    knobs = BufferConfig(
        goal=draw.randint(1, 4),
        concurrency=draw.randint(1, 6),
        max_staleness=draw.choice([0, 1, 3, 20]),
        deadline_s=draw.choice([50.0, 1e6]),
        patience_s=draw.choice([0.0, 2.0]),
    )
    buffer = Buffer(knobs, number=1, select=uniform(7, 1), now=0.0, available=NAMES[:5])
    witness = Witness(buffer, seed, rounds=draw.choice([3, 1000]))
    for _ in range(400):
        witness.step()
        if buffer.state is RoundState.ABANDONED:
            break


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10_000))
def test_a_rebuilt_buffer_continues_like_the_original(seed):
    """After a commit, members and idle clients are the whole state."""
    knobs = config(goal=2, concurrency=3, max_staleness=3)
    old = Buffer(knobs, number=1, select=uniform(7, 1), now=0.0, available=NAMES[:6])
    witness, draw = Witness(old, seed, 1000), Random(seed)
    for _ in range(draw.randint(5, 80)):
        witness.step()
    if old.state is not RoundState.COMMITTED:
        return
    members = old.snapshot(witness.now)
    idle = set(old.candidates) | set(old._resting)
    new = Buffer.rebuild(
        knobs, number=old.number, select=first, state=old.state, members=members,
        now=witness.now, available=idle,
    )  # fmt: skip
    following = NextBuffer(old.number + 1, uniform(7, old.number + 1))
    for event in (following, Wake(), *(UpdateAccepted(c) for c in NAMES)):
        assert new.handle(event, witness.now) == old.handle(event, witness.now)
        assert new.state is old.state
        assert new.wake_at == pytest.approx(old.wake_at) if old.wake_at else new.wake_at is None


def test_a_restart_continues_from_the_ledger():
    """Members get their whole grace period, accepted updates count, and the goal closes at once."""
    members = {
        "a": MemberSnapshot(3, Phase.OFFERED, 10.0),
        "b": MemberSnapshot(5, Phase.REPORTED),
        "c": MemberSnapshot(4, Phase.REPORTED),
        "d": MemberSnapshot(5, Phase.FAILED),
    }
    buffer = Buffer.rebuild(
        config(), number=5, select=first, state=RoundState.REPORTING, members=members,
        deadline_left_s=50.0, now=1000.0, available="bdx",
    )  # fmt: skip
    assert buffer.cohort.accepted == 2
    assert buffer.handle(Wake(), 1000.0) == [Close()]
    assert commit(buffer, 1001.0) == [
        Opened(("b", "d")), Offer("b", origin=6), Offer("d", origin=6),
    ]  # fmt: skip
    assert buffer.handle(Attended("a"), 1002.0) == [Offer("a", again=True, origin=3)]
