"""A masked round: members are ready, their sessions open, and their sums close it."""

from itertools import chain
from typing import get_args

import pytest

from fedloom.protocol.errors import Code, UsageError
from fedloom.server.engine import (
    REFUSE,
    Abandon,
    AbandonSession,
    Abort,
    AgreementStored,
    Attended,
    BodiesFrozen,
    BodyStored,
    ChangeGoal,
    ClientFailed,
    CloseNow,
    ClosingStored,
    CommitFailed,
    Committed,
    ExtendDeadline,
    Left,
    MaskedConfig,
    MaskedEvent,
    MaskedRound,
    OfferAccepted,
    OfferDeclined,
    OpenSessions,
    OperatorRefused,
    Pause,
    Phase,
    Ready,
    Resume,
    RevealStored,
    Round,
    RoundState,
    SharesStored,
    Unmasked,
    UnmaskFailed,
    UpdateAccepted,
    UpdateRefused,
    Verdict,
    Wake,
    Withdraw,
    uniform,
)
from fedloom.server.engine.masked_round import most_in_sessions
from fedloom.strategies.masking.sessions import session_sizes
from support.masked_sessions import (
    AGREE,
    BODY,
    REVEAL,
    SHARE,
    Device,
    Stage,
    config,
    in_order,
    needed,
)

OF_SESSIONS = (
    Ready("a"),
    SharesStored("a"),
    BodyStored("a"),
    AgreementStored("a"),
    RevealStored("a"),
    ClosingStored("a"),
    BodiesFrozen(0),
    Unmasked(0),
    UnmaskFailed(0, "implausible_sum"),
)
EVENTS = (
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
    ChangeGoal(3, 3),
    Committed(),
    CommitFailed("no disk"),
    *OF_SESSIONS,
)
OPERATOR = {Pause, Resume, Abort, CloseNow, ExtendDeadline, ChangeGoal}
NAMES = tuple("abcdefghij")


def opened(names="abcdef", **more):
    """A round that is reporting, with these members."""
    settings = config(len(names), **more)
    divide = lambda c, found: in_order(c, found, settings.group)  # noqa: E731
    round_ = MaskedRound(
        settings, select=uniform(0, 1), divide=divide, now=0.0, available=list(names)
    )
    round_.handle(Wake(), 0.0)
    assert round_.state is RoundState.REPORTING
    return round_


def masking(names="abcdef", **more):
    """A round whose sessions have opened."""
    round_ = opened(names, **more)
    for name in names:
        round_.handle(Ready(name), 1.0)
    assert round_.state is RoundState.MASKING
    return round_


def round_in(state):
    if state is RoundState.SELECTING:
        settings = config(6)
        return MaskedRound(settings, select=uniform(0, 1), divide=in_order, now=0.0)
    if state is RoundState.REPORTING:
        return opened()
    if state is RoundState.MASKING:
        return masking()
    if state is RoundState.ABANDONED:
        round_ = masking()
        round_.handle(Abort("enough"), 1.0)
        return round_
    stage = staged("abcdef")
    stage.ready()
    stage.run_out()
    round_ = stage.engine
    if state is RoundState.CLOSING:
        round_.state = state
    return round_


def staged(names=NAMES, stops=(), **more):
    """A stage of these devices; `stops` has pairs of a name and the message it does not send."""
    devices = {name: Device(name, dict(stops).get(name, "")) for name in names}
    return Stage(devices, config(len(names), **more.pop("config", {})), **more)


# ---- the table -------------------------------------------------------------------------------


def test_the_table_is_total():
    """Each state has an entry for each event, and no others; only operators are refused."""
    assert {type(event) for event in EVENTS} == set(get_args(MaskedEvent))
    assert set(MaskedRound.TABLE) == set(RoundState)
    for row in MaskedRound.TABLE.values():
        assert set(row) == set(get_args(MaskedEvent))
        assert all(isinstance(entry, Verdict) or callable(entry) for entry in row.values())
        assert {event for event, entry in row.items() if entry is REFUSE} <= OPERATOR


@pytest.mark.parametrize("state", RoundState)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_masked_round_follows_its_table(state, event):
    """An ignored event changes nothing, a refused one raises, and no other pair fails."""
    round_ = round_in(state)
    before = (round_.state, dict(round_.cohort.phases), [s.state for s in round_.sessions])
    entry = MaskedRound.TABLE[state][type(event)]
    now = round_.clock.now
    try:
        effects = round_.handle(event, now)
    except OperatorRefused:
        assert type(event) in OPERATOR
        effects = []
    else:
        assert entry is not REFUSE
    if isinstance(entry, Verdict):
        after = (round_.state, dict(round_.cohort.phases), [s.state for s in round_.sessions])
        assert (effects, after) == ([], before)


def test_a_round_without_masking_knows_no_event_of_sessions():
    """Its table is as it was: the new events belong to masked rounds alone."""
    events = set(chain.from_iterable(Round.TABLE.values()))
    assert not events & {type(event) for event in OF_SESSIONS}
    assert RoundState.MASKING not in Round.TABLE


# ---- reporting -------------------------------------------------------------------------------


def test_the_sessions_open_at_the_goal():
    """Ten members, at most four a session: sizes that differ by one, larger first."""
    round_ = opened(NAMES)
    for name in NAMES[:-1]:
        assert not round_.handle(Ready(name), 1.0)
    [opening] = round_.handle(Ready("j"), 1.0)
    assert opening == OpenSessions((("", tuple("abcd")), ("", tuple("efg")), ("", tuple("hij"))))
    assert round_.state is RoundState.MASKING
    assert {round_.session_of(name).number for name in "efg"} == {1}


def test_the_sessions_open_at_the_deadline_with_the_quorum():
    """The others are withdrawn."""
    round_ = opened()
    for name in "fdb":
        round_.handle(Ready(name), 1.0)
    [opening, *withdrawn] = round_.handle(Wake(), 1000.0)
    assert opening == OpenSessions((("", tuple("bdf")),))
    assert {effect.client for effect in withdrawn} == set("ace")
    assert all(isinstance(effect, Withdraw) for effect in withdrawn)


def test_too_few_at_the_deadline_abandon_the_round():
    """Those that were ready are told, too."""
    round_ = opened()
    round_.handle(Ready("a"), 1.0)
    abandoned, *withdrawn = round_.handle(Wake(), 1000.0)
    assert isinstance(abandoned, Abandon)
    assert {effect.client for effect in withdrawn} == set("abcdef")


def test_only_members_in_contact_are_in_a_session():
    """One that leaves must say again that it is ready."""
    round_ = opened()
    for name in "abcde":
        round_.handle(Ready(name), 1.0)
    round_.handle(Left("a"), 2.0)
    assert round_.cohort.accepted == 4
    assert not round_.handle(Ready("f"), 3.0)
    assert round_.handle(Attended("a"), 4.0)  # offered again
    [opening] = round_.handle(Ready("a"), 5.0)
    assert len(opening.rosters) == 2


def test_a_member_that_is_ready_twice_counts_once():
    round_ = opened()
    for _ in range(9):
        assert not round_.handle(Ready("a"), 1.0)
    assert round_.cohort.accepted == 1


def test_a_stored_update_does_not_count_before_its_session():
    round_ = opened()
    for name in "abcdef":
        assert not round_.handle(UpdateAccepted(name), 1.0)
    assert round_.cohort.accepted == 0


def test_members_of_one_session_have_one_class():
    """A class with too few members sits the round out."""
    round_ = opened("abcdefgh")
    effects = []
    for name, kind in zip("abcdefgh", "xyxyxyzz", strict=True):
        effects = round_.handle(Ready(name, kind), 1.0)
    opening, *withdrawn = effects
    assert opening == OpenSessions((("x", tuple("ace")), ("y", tuple("bdf"))))
    assert {effect.client for effect in withdrawn} == set("gh")


def test_classes_that_are_all_too_small_abandon_the_round():
    round_ = opened()
    effects = []
    for name, kind in zip("abcdef", "xxyyzz", strict=True):
        effects = round_.handle(Ready(name, kind), 1.0)
    assert isinstance(effects[0], Abandon)
    assert "got 0 of 6" in effects[0].reason


@pytest.mark.parametrize("group", range(2, 20))
def test_sessions_differ_by_one_member_at_most(group):
    """As few as possible, the larger ones first."""
    for count in [*range(1, 60), 127, 128, 129, 1000]:
        sizes = list(session_sizes(count, group))
        assert sum(sizes) == count
        assert sizes == sorted(sizes, reverse=True)
        assert max(sizes) <= group
        assert max(sizes) - min(sizes) <= 1
        assert (len(sizes) - 1) * group < count


@pytest.mark.parametrize(("group", "least"), [(4, 3), (64, 16), (64, 48), (10, 10)])
def test_no_session_has_fewer_than_min_group(group, least):
    """The most members for which equal sessions are large enough, by trying all numbers."""
    fits = [0]
    for count in range(200):
        if count >= least and session_sizes(count, group)[-1] >= least:
            fits.append(count)
        assert most_in_sessions(count, group, least) == max(fits)


def test_members_that_would_make_sessions_too_small_are_left_out():
    """Five members, sessions of three or four: the last one to be ready is not needed."""
    round_ = opened("abcde")
    effects = []
    for name in "ecadb":
        effects = round_.handle(Ready(name), 1.0)
    assert effects == [
        OpenSessions((("", tuple("acde")),)),
        Withdraw("b", "the round's sessions have opened"),
    ]


def test_an_operator_opens_the_sessions_early():
    round_ = opened()
    for name in "ab":
        round_.handle(Ready(name), 1.0)
    with pytest.raises(OperatorRefused, match="got 0 of 2; wait for more"):
        round_.handle(CloseNow(), 1.0)
    round_.handle(Ready("c"), 1.0)
    assert isinstance(round_.handle(CloseNow(), 1.0)[0], OpenSessions)


def test_a_draw_of_other_sizes_is_an_error():
    """The devices would refuse it."""
    settings = config(6)
    for wrong in (
        lambda _, names: [names[:4], names[4:]],
        lambda _, names: [names],
        lambda _, names: [[*names[:2], "x"], names[3:]],
    ):
        round_ = MaskedRound(
            settings, select=uniform(0, 1), divide=wrong, now=0.0, available=list("abcdef")
        )
        round_.handle(Wake(), 0.0)
        for name in "abcde":
            round_.handle(Ready(name), 1.0)
        with pytest.raises(ValueError, match=r"Expected 6 members in sessions of \[3, 3\]"):
            round_.handle(Ready("f"), 1.0)


# ---- masking ---------------------------------------------------------------------------------


def test_a_round_commits_the_sums_of_its_sessions():
    """Without any failure: each session requests its sum once."""
    stage = staged()
    stage.ready()
    stage.run_out()
    assert stage.result() == (RoundState.COMMITTED, [tuple("abcd"), tuple("efg"), tuple("hij")])
    assert sorted(stage.unmasked) == [0, 1, 2]


def test_a_session_that_fails_costs_its_members_alone():
    """The others commit; who was in it is told, and is not counted."""
    stage = staged(stops=[("e", SHARE)])
    stage.ready()
    stage.run_out()
    assert stage.result() == (RoundState.COMMITTED, [tuple("abcd"), (), tuple("hij")])
    phases = stage.engine.cohort.phases
    assert [phases[name] for name in "aefg"] == [Phase.REPORTED, *[Phase.LOST] * 3]


def test_nobody_signs_before_every_session_is_frozen():
    """The barrier: the first sessions wait for the slowest."""
    round_ = masking()  # sessions of three: abc and def
    for name in "abc":
        round_.handle(SharesStored(name), 1.0)
        round_.handle(SharesStored(name), 1.0)
    effects = [e for name in "abc" for e in round_.handle(BodyStored(name), 1.0)]
    assert [type(effect).__name__ for effect in effects] == ["Freeze"]
    stage = staged("abcdef")
    stage.ready()
    order = []
    while stage.wire:
        # Everything of the first session before anything of the second.
        place = next((n for n, (name, _) in enumerate(stage.wire) if name in "abc"), 0)
        order.append(stage.wire[place])
        stage.deliver(place)
    bodies = [n for n, (_, kind) in enumerate(order) if kind == BODY]
    signatures = [n for n, (_, kind) in enumerate(order) if kind == AGREE]
    assert max(bodies) < min(signatures)


def test_all_is_abandoned_before_a_reveal_if_the_quorum_is_not_met():
    """Two of three sessions freeze, too few together: nobody is asked to sign."""
    stage = staged(stops=[("h", BODY)], config={"quorum": 8})
    stage.ready()
    stage.run_out()
    assert stage.result() == (RoundState.ABANDONED, [(), (), ()])
    wanted = "quorum not reached: expected at least 8 masked updates in all sessions, got 7"
    assert stage.engine.reason == wanted
    assert not any(device.signed for device in stage.devices.values())
    # Each session but the broken one is proved dead.
    assert all(stage.devices[name].proof for name in "abcdefg")


def test_a_round_without_any_sum_is_abandoned():
    """All reveals fail: what was revealed is spent, and nothing is committed."""
    stops = [(name, REVEAL) for name in NAMES]
    stage = staged(stops=stops)
    stage.ready()
    stage.run_out()
    ended, sums = stage.result()
    assert (ended, sums) == (RoundState.ABANDONED, [(), (), ()])
    assert "reveal their shares, expected 3" in stage.engine.reason


def test_a_session_cannot_be_cut():
    round_ = masking()
    with pytest.raises(OperatorRefused, match="a session cannot be cut"):
        round_.handle(CloseNow(), 1.0)
    for command in (ExtendDeadline(5.0), ChangeGoal(3, 3)):
        with pytest.raises(OperatorRefused):
            round_.handle(command, 1.0)
    assert round_.handle(Pause(), 1.0) == []
    assert round_.state is RoundState.MASKING
    assert round_.wake_at == 11.0


@pytest.mark.parametrize("event", [Abort("enough"), CommitFailed("no disk")])
def test_an_abort_gives_every_session_up(event):
    round_ = masking()
    effects = round_.handle(event, 2.0)
    assert [type(effect) for effect in effects] == [
        AbandonSession, AbandonSession, Abandon, *[Withdraw] * 6
    ]  # fmt: skip
    assert round_.state is RoundState.ABANDONED
    assert round_.wake_at is None


def test_sessions_are_closed_after_their_round():
    """Members of an abandoned round still prove its sessions dead."""
    round_ = masking()
    round_.handle(Abort("enough"), 2.0)
    assert not round_.handle(ClosingStored("a"), 3.0)
    assert not round_.handle(ClosingStored("b"), 3.0)
    [proof] = round_.handle(ClosingStored("c"), 3.0)
    assert (proof.session, proof.closed) == (0, tuple("abc"))
    assert round_.state is RoundState.ABANDONED


@pytest.mark.parametrize("failed", [ClientFailed("a", "no disk"), UpdateRefused("a", "too_large")])
def test_a_member_that_fails_ends_its_session_at_once(failed):
    """Three of three are needed: its peers do not wait for a deadline."""
    round_ = masking()
    [abandoned] = round_.handle(failed, 2.0)
    assert isinstance(abandoned, AbandonSession)
    assert abandoned.session == 0
    assert round_.state is RoundState.MASKING


def test_bodies_are_admitted_while_their_session_masks():
    """From the members that dealt shares alone."""
    round_ = masking()
    assert round_.refusal_for("a") is Code.ROUND_CLOSED
    for name in "abc":
        round_.handle(SharesStored(name), 1.0)
    assert round_.refusal_for("a") is None
    assert round_.refusal_for("d") is Code.ROUND_CLOSED
    assert round_.refusal_for("x") is Code.NOT_IN_COHORT


def test_the_end_of_a_commit_is_that_of_any_round():
    stage = staged("abcdef")
    stage.ready()
    stage.run_out()
    assert not stage.engine.handle(Committed(), stage.now)
    assert stage.engine.state is RoundState.COMMITTED
    assert stage.engine.wake_at is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"group": 129},
        {"group": 1, "min_group": 1},
        {"min_group": 5},
        {"min_group": 1},
        {"quorum": 2},
        {"phase_s": 0.0},
        {"session_s": float("inf")},
    ],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        config(6, **wrong)


def test_the_defaults_are_those_of_the_specification():
    settings = MaskedConfig(goal=64, quorum=16)
    assert (settings.group, settings.min_group) == (64, 16)
    assert (settings.phase_s, settings.session_s) == (30.0, 600.0)
    assert needed(64) == 43


def test_a_restored_round_shows_who_is_in_its_sessions():
    """Members that failed before the restart stay out."""
    stage = staged("abcdef")
    stage.ready()
    stage.book.failed.add("f")
    stage.restart()
    counts = stage.engine.cohort.counts()
    assert (counts[Phase.READY], counts[Phase.FAILED]) == (5, 1)
    assert stage.engine.cohort.accepted == 5
