"""A masking session follows its table: it counts messages, and goes on by the threshold alone."""

from typing import get_args

import pytest

from fedloom.protocol.errors import IntegrityError
from fedloom.server.engine import (
    IGNORE,
    AbandonSession,
    Abort,
    AgreementStored,
    AllFrozen,
    Attended,
    BodiesFrozen,
    BodyStored,
    ClientFailed,
    ClosingStored,
    ForwardShares,
    Freeze,
    Left,
    MaskingSession,
    Resend,
    RevealStored,
    SendClosing,
    SendSignatures,
    SendSurvivors,
    SessionEvent,
    SessionSnapshot,
    SessionState,
    SharesStored,
    Unmask,
    Unmasked,
    UnmaskFailed,
    Verdict,
    Wake,
)
from fedloom.strategies.masking.sessions import threshold
from support.masked_sessions import config, needed

MEMBERS = tuple("abcdef")  # the threshold is 5
ALL = frozenset(MEMBERS)
EVENTS = (
    SharesStored("a"),
    BodyStored("a"),
    AgreementStored("a"),
    RevealStored("a"),
    ClosingStored("a"),
    BodiesFrozen(0),
    AllFrozen(),
    Unmasked(0),
    UnmaskFailed(0, "implausible_sum"),
    Attended("a"),
    Left("a"),
    ClientFailed("a"),
    Wake(),
    Abort("enough"),
)
ANSWER = {
    SessionState.SHARING: SharesStored,
    SessionState.MASKING: BodyStored,
    SessionState.AGREEING: AgreementStored,
    SessionState.REVEALING: RevealStored,
}


def new(members=MEMBERS, **more):
    return MaskingSession(0, members, config(6, group=8, **more), 0.0)


def feed(session, kind, clients, now=0.0):
    """The effects of a message of each of these clients."""
    return [effect for client in clients for effect in session.handle(kind(client), now)]


def session_in(state):
    """A session of six, driven to a state by events alone, each message from all members."""
    session = new()
    if state is SessionState.ABANDONED:
        session.handle(Abort("enough"), 0.0)
        return session
    for _ in range(20):
        if session.state is state:
            return session
        match session.state:
            case SessionState.FREEZING:
                session.handle(BodiesFrozen(0), 0.0)
            case SessionState.FROZEN:
                session.handle(AllFrozen(), 0.0)
            case SessionState.UNMASKING:
                session.handle(Unmasked(0), 0.0)
            case _:
                feed(session, ANSWER[session.state], MEMBERS)
    raise AssertionError(state)


def seen(session):
    """All that a session holds."""
    kept = ("state", "reason", "shared", "masked", "signed", "revealed", "closed", "heard")
    return {name: getattr(session, name) for name in kept}


# ---- the table -------------------------------------------------------------------------------


def test_the_table_is_total():
    """Each state has an entry for each event, and no others."""
    assert {type(event) for event in EVENTS} == set(get_args(SessionEvent))
    assert set(MaskingSession.TABLE) == set(SessionState)
    for row in MaskingSession.TABLE.values():
        assert set(row) == set(get_args(SessionEvent))
        assert all(isinstance(entry, Verdict) or callable(entry) for entry in row.values())


@pytest.mark.parametrize("state", SessionState)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_session_follows_its_table(state, event):
    """No pair raises, and an ignored event changes nothing."""
    session = session_in(state)
    before, due = seen(session), session.due_at
    effects = session.handle(event, 1.0)
    if MaskingSession.TABLE[state][type(event)] is IGNORE:
        assert (list(effects), seen(session), session.due_at) == ([], before, due)


@pytest.mark.parametrize("state", SessionState)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_strangers_change_nothing(state, event):
    """A client that is no member, with any message."""
    if not hasattr(event, "client"):
        return
    session = session_in(state)
    before, due = seen(session), session.due_at
    assert not session.handle(type(event)("stranger"), 1.0)
    assert (seen(session), session.due_at) == (before, due)


# ---- the way through -------------------------------------------------------------------------


@pytest.mark.parametrize("members", range(1, 129))
def test_the_threshold_is_more_than_two_thirds(members):
    """By counting; any two such sets share more than a third."""
    assert threshold(members) == needed(members)
    assert 2 * threshold(members) - members > members / 3


def test_each_message_leads_to_the_next():
    """With all members: four messages, and the sum is requested at the fifth reveal."""
    session = new()
    assert feed(session, SharesStored, MEMBERS) == [ForwardShares(0, MEMBERS)]
    assert feed(session, BodyStored, MEMBERS) == [Freeze(0)]
    assert not session.handle(BodiesFrozen(0), 0.0)
    assert session.masked == ALL
    assert session.handle(AllFrozen(), 0.0) == (SendSurvivors(0, MEMBERS),)
    assert feed(session, AgreementStored, MEMBERS) == [SendSignatures(0, MEMBERS, MEMBERS)]
    assert feed(session, RevealStored, "fedcba") == [Unmask(0, tuple("bcdef"))]
    assert not session.handle(Unmasked(0), 0.0)
    assert session.state is SessionState.DONE


@pytest.mark.parametrize("state", ANSWER)
def test_members_that_are_silent_are_left_out_at_the_deadline(state):
    """Each message by five of six, its threshold."""
    session, now = session_in(state), 30.0
    done = feed(session, ANSWER[state], "abcde")
    assert bool(done) == (state is SessionState.REVEALING)  # nobody else is needed
    done += session.handle(Wake(), now)
    assert [type(effect) for effect in done] == [
        {
            SessionState.SHARING: ForwardShares,
            SessionState.MASKING: Freeze,
            SessionState.AGREEING: SendSignatures,
            SessionState.REVEALING: Unmask,
        }[state]
    ]
    assert session.state not in (state, SessionState.ABANDONED)


@pytest.mark.parametrize("state", ANSWER)
def test_a_session_below_its_threshold_is_abandoned(state):
    """With four of six messages at the deadline, and without any word to the next phase."""
    session = session_in(state)
    assert not feed(session, ANSWER[state], "abcd")
    [abandoned] = session.handle(Wake(), 30.0)
    assert isinstance(abandoned, AbandonSession)
    assert abandoned.reason.startswith("threshold not reached: 4 of 6 members")
    assert abandoned.reason.endswith("expected 5")


@pytest.mark.parametrize("state", ANSWER)
def test_a_session_is_abandoned_once_too_few_can_answer(state):
    """At once, without its deadline: two of six failed."""
    session = session_in(state)
    assert not session.handle(ClientFailed("a"), 0.0)
    [abandoned] = session.handle(ClientFailed("b"), 0.0)
    assert "only 4 of 6 members can still" in abandoned.reason


def test_a_member_that_returns_in_time_still_counts():
    """Its grace period, then its return, then its message."""
    session = new()
    feed(session, SharesStored, "abcd")
    session.handle(Left("f"), 1.0)
    assert session.due_at == 6.0
    assert not session.handle(Wake(), 6.0)  # lost, but e is still waited for
    assert session.handle(Attended("f"), 7.0) == (Resend(0, "f"),)
    assert not feed(session, SharesStored, "f", 8.0)
    assert feed(session, SharesStored, "e", 8.0) == [ForwardShares(0, MEMBERS)]


def test_a_lost_member_is_not_waited_for():
    session = new()
    feed(session, SharesStored, "abcde")
    session.handle(Left("f"), 1.0)
    assert session.handle(Wake(), 6.0) == (ForwardShares(0, tuple("abcde")),)


def test_uploads_have_their_own_deadline():
    """A body takes longer than a message."""
    session = session_in(SessionState.MASKING)
    assert session.due_at == 20.0
    assert session_in(SessionState.AGREEING).due_at == 10.0


def test_no_phase_outlives_the_session():
    """Members forget their secrets at its deadline, however many have answered."""
    session = new(session_s=15.0)
    feed(session, SharesStored, MEMBERS, 9.0)
    assert session.due_at == 15.0
    feed(session, BodyStored, "abcde", 10.0)
    [abandoned] = session.handle(Wake(), 15.0)
    assert abandoned == AbandonSession(0, "not complete after 15 s")


def test_a_frozen_session_waits_until_its_deadline():
    session = session_in(SessionState.FROZEN)
    assert session.due_at == 100.0
    assert not session.handle(Wake(), 99.0)
    assert [type(e) for e in session.handle(AllFrozen(), 100.0)] == [AbandonSession]


def test_a_body_in_flight_counts():
    """It was stored before the ledger was closed to bodies, so it is acknowledged."""
    session = session_in(SessionState.MASKING)
    feed(session, BodyStored, "abcde")
    session.handle(Wake(), 20.0)
    assert session.state is SessionState.FREEZING
    session.handle(BodyStored("f"), 20.0)
    session.handle(BodiesFrozen(0), 20.0)
    assert session.masked == ALL
    session.handle(BodyStored("f"), 20.0)
    assert session.masked == ALL


def test_a_late_body_never_counts():
    session = session_in(SessionState.MASKING)
    feed(session, BodyStored, "abcde")
    session.handle(Wake(), 20.0)
    session.handle(BodiesFrozen(0), 20.0)
    session.handle(BodyStored("f"), 20.0)
    assert session.masked == frozenset("abcde")


def test_who_signs_late_is_asked_for_shares_too():
    """Once."""
    session = session_in(SessionState.AGREEING)
    feed(session, AgreementStored, "abcde")
    session.handle(Wake(), 10.0)
    late = session.handle(AgreementStored("f"), 11.0)
    assert late == (SendSignatures(0, MEMBERS, ("f",)),)
    assert not session.handle(AgreementStored("f"), 11.0)


def test_the_sum_is_requested_once():
    """Further shares, and shares again, request nothing."""
    session = session_in(SessionState.REVEALING)
    assert len(feed(session, RevealStored, "abcdefabc")) == 1
    assert session.revealed == frozenset("abcde")


def test_an_implausible_sum_abandons_the_session():
    session = session_in(SessionState.UNMASKING)
    [abandoned] = session.handle(UnmaskFailed(0, "implausible_sum"), 0.0)
    assert abandoned == AbandonSession(0, "implausible_sum")


def test_a_threshold_of_those_that_gave_up_is_the_proof():
    """Sent once; who signed the survivors cannot give up."""
    session = session_in(SessionState.AGREEING)
    feed(session, AgreementStored, "a")
    session.handle(Abort("enough"), 0.0)
    assert not feed(session, ClosingStored, "abcdbc")
    assert feed(session, ClosingStored, "ef") == [SendClosing(0, tuple("bcdef"))]
    assert not feed(session, ClosingStored, "bcdef")
    assert session.state is SessionState.ABANDONED


# ---- after a restart -------------------------------------------------------------------------


def restored(**stored):
    return MaskingSession.restore(
        0,
        SessionSnapshot(**{"members": MEMBERS, "left_s": 50.0, **stored}),
        config(6, group=8),
        7.0,
    )


def test_a_restored_session_does_first_what_is_due():
    """All messages of its state are stored."""
    session = restored(state=SessionState.SHARING, heard=ALL)
    assert session.due_at < 7.0
    assert session.handle(Wake(), 7.0) == (ForwardShares(0, MEMBERS),)


def test_a_restored_session_requests_its_sum_again():
    fixed = dict.fromkeys(("shared", "masked", "signed", "revealed"), ALL)
    session = restored(state=SessionState.UNMASKING, **fixed)
    assert session.handle(Wake(), 7.0) == (Unmask(0, MEMBERS),)
    assert not session.handle(Wake(), 8.0)


def test_a_restored_session_waits_for_its_members_to_return():
    """All are out of contact: those that stay away are lost after the grace period."""
    session = restored(state=SessionState.SHARING, heard="abcd")
    assert not session.handle(Wake(), 7.0)
    assert session.due_at == 12.0
    session.handle(Attended("e"), 8.0)
    session.handle(SharesStored("e"), 9.0)
    assert session.handle(Wake(), 12.0) == (ForwardShares(0, tuple("abcde")),)


def test_the_time_without_a_server_counts():
    """Members' secrets last `session_s`, whether a server runs or not."""
    session = restored(state=SessionState.SHARING, heard=ALL, left_s=0.0)
    assert [type(effect) for effect in session.handle(Wake(), 7.0)] == [AbandonSession]


@pytest.mark.parametrize(
    "stored",
    [
        {"state": SessionState.MASKING, "shared": "abcd"},  # below the threshold
        {"state": SessionState.MASKING, "shared": "abcdeX"},
        {"state": SessionState.MASKING, "shared": "abcde", "heard": "f"},
        {"state": SessionState.FROZEN, "shared": "abcde", "masked": "abcdef"},
        {"state": SessionState.FROZEN, "shared": "abcdef", "masked": "abcd"},
        {"state": SessionState.REVEALING, "shared": ALL, "masked": ALL, "signed": "ab"},
        {"state": SessionState.DONE, "shared": ALL, "masked": ALL, "signed": ALL},
    ],
)
def test_a_stored_session_that_contradicts_itself_is_refused(stored):
    with pytest.raises(IntegrityError, match="5 members or more, got others in session 0"):
        restored(**stored)


def test_who_lacks_a_share_does_not_end_the_waiting():
    """Shares of five of six are enough only if each has all; else who can still reveal is asked."""
    session = session_in(SessionState.REVEALING)
    assert not session.handle(RevealStored("a", complete=False), 1.0)
    assert not feed(session, RevealStored, "bcde")
    assert session.handle(RevealStored("f"), 1.0) == (Unmask(0, tuple("abcdef")),)


def test_a_restart_among_the_signatures_leaves_every_later_share_complete():
    """Who had signed before it is not taken for somebody who lacks a share."""
    fixed = {"members": MEMBERS, "shared": MEMBERS, "masked": MEMBERS}
    stored = SessionSnapshot(
        state=SessionState.AGREEING, heard=tuple("abcde"), left_s=99.0, **fixed
    )
    session = MaskingSession.restore(0, stored, config(6, group=6), 0.0)
    for name in MEMBERS:
        session.handle(Attended(name), 0.0)
    session.handle(AgreementStored("f"), 0.0)
    assert session.state is SessionState.REVEALING
    assert feed(session, RevealStored, "abcde") == [Unmask(0, tuple("abcde"))]


def test_who_is_silent_is_not_waited_for_beyond_the_phase():
    session = session_in(SessionState.REVEALING)
    session.handle(RevealStored("a", complete=False), 1.0)
    feed(session, RevealStored, "bcde")
    assert session.handle(Wake(), session.due_at) == (Unmask(0, tuple("abcde")),)
