"""What operators see of masking sessions: who sent what, who gave up, and who is blamed."""

import pytest
import sqlalchemy as sa

from fedloom.protocol.errors import IntegrityError
from fedloom.server.engine import SessionState
from fedloom.server.engine.masking import THRESHOLD
from fedloom.server.ledger import Ledger
from fedloom.server.ledger.masking import blames
from fedloom.server.ledger.masking import sessions as phases
from support.masked_rounds import AT, NUMBER, RUN, abandoned, done, masked_ledger, send


@pytest.fixture
def ledger(tmp_path):
    """Two sessions that share: abcd and efgh."""
    return masked_ledger(tmp_path)


def rows(ledger):
    return ledger.session_rows(RUN, NUMBER)


def test_rows_have_who_sent_what_in_which_session(ledger):
    """Before the sets are fixed they are unknown, not empty."""
    send(ledger, phases.SHARES, "ac")
    first, second = rows(ledger)
    assert (first.session, first.state, first.members) == (0, "sharing", list("abcd"))
    assert {phase: sorted(who) for phase, who in first.sent.items()} == {
        "ready": list("abcd"),
        "shares": list("ac"),
    }
    assert all(at > 1e9 for at in first.sent["shares"].values())
    assert (first.shared, first.masked, first.revealed) == (None, None, None)
    assert sorted(second.sent) == ["ready"]


def test_rows_hold_nothing_of_what_was_sent(ledger):
    """Neither contents nor their digests."""
    done(ledger, 0, "abcd")
    told = repr(rows(ledger))
    assert "secret" not in told
    with ledger._engine.connect() as connection:
        for digest in connection.execute(sa.text("SELECT digest FROM masking_messages")).scalars():
            assert digest not in told


def test_a_round_without_sessions_has_no_rows(ledger):
    assert ledger.session_rows(RUN, 1) == []


def test_a_signature_of_the_survivors_voids_a_closing(ledger):
    """As the engine counts them: c signed both, so it gave nothing up."""
    abandoned(ledger, 0, agreed="abc", closing="abcd")
    assert rows(ledger)[0].closed == ["d"]
    assert ledger.sessions(RUN, NUMBER)[0].closed == {"d"}


# ---- blame -----------------------------------------------------------------------------------


def test_a_blame_is_recorded_once_a_cause(ledger):
    for cause in (blames.FALSE_SHARES, blames.FALSE_SHARES, blames.IMPLAUSIBLE):
        ledger.blame(AT, "b", cause)
    assert rows(ledger)[0].blamed == [("b", "false_shares"), ("b", "implausible")]
    assert rows(ledger)[1].blamed == []


@pytest.mark.parametrize(
    ("at", "client", "cause", "says"),
    [
        (AT, "e", blames.FALSE_REVEAL, "a member of session"),
        ((RUN, NUMBER, 9), "a", blames.FALSE_REVEAL, "a member of session"),
        (AT, "a", "bad luck", "a cause of false_shares"),
    ],
)
def test_nobody_else_is_blamed(ledger, at, client, cause, says):
    with pytest.raises(IntegrityError, match=says):
        ledger.blame(at, client, cause)


def test_blame_outlives_the_session_and_the_server(ledger, tmp_path):
    ledger.blame(AT, "b", blames.FALSE_REVEAL)
    ledger.move_session(AT, SessionState.ABANDONED, reason="spoiled")
    ledger.close()
    again = Ledger.in_directory(tmp_path)
    assert rows(again)[0].blamed == [("b", "false_reveal")]


# ---- conduct -----------------------------------------------------------------------------------


def past(ledger):
    return ledger.past_sessions(RUN, NUMBER, NUMBER + 1)


def give_up(ledger, reason=f"{THRESHOLD}: 2 of 4 members did in time"):
    ledger.move_session(AT, SessionState.ABANDONED, reason=reason)


def test_past_sessions_are_those_that_are_over(ledger):
    """Of the rounds that are asked for."""
    assert past(ledger) == []
    done(ledger, 1, "efg")
    [found] = past(ledger)
    assert (found.round, found.masked, found.dropped) == (NUMBER, set("efg"), {"h"})
    assert (found.summed, found.implausible) == (True, False)
    assert ledger.past_sessions(RUN, NUMBER + 1, NUMBER + 9) == []
    assert ledger.past_sessions("other", 0, 9) == []


def test_an_implausible_sum_is_one(ledger):
    """Marks of its survivors; other blame is none."""
    abandoned(ledger, 0, reason="implausible sum: too large")
    for client in "abcd":
        ledger.blame(AT, client, blames.IMPLAUSIBLE)
    abandoned(ledger, 1, reason="spoiled")
    ledger.blame((*AT[:2], 1), "e", blames.FALSE_SHARES)
    first, second = past(ledger)
    assert (first.masked, first.summed, first.implausible) == (set("abcd"), True, True)
    assert (second.masked, second.summed, second.implausible) == (set("efgh"), False, False)


def test_who_sends_too_few_shares_has_dropped_out(ledger):
    """And not who waited for them, also after what they sent is deleted."""
    send(ledger, phases.SHARES, "ac")
    give_up(ledger)
    ledger.forget_sessions(RUN, NUMBER)
    [found] = past(ledger)
    assert (found.masked, found.dropped) == (set(), {"b", "d"})
    assert not found.summed


def test_who_sends_no_body_has_dropped_out(ledger):
    """With those that sent no shares before."""
    send(ledger, phases.SHARES, "abc")
    ledger.move_session(AT, SessionState.MASKING, shared="abc")
    send(ledger, phases.BODY, "a")
    give_up(ledger)
    assert past(ledger)[0].dropped == set("bcd")


@pytest.mark.parametrize(("shared", "dropped"), [("", ""), ("abc", "d")])
def test_a_command_ends_a_session_without_drop_outs(ledger, shared, dropped):
    """Only those without whom it had gone on before."""
    if shared:
        send(ledger, phases.SHARES, shared)
        ledger.move_session(AT, SessionState.MASKING, shared=shared)
    give_up(ledger, "aborted by the operator")
    assert past(ledger)[0].dropped == set(dropped)


def test_past_sessions_outlive_the_server(ledger, tmp_path):
    done(ledger, 0, "abc")
    before = past(ledger)
    ledger.close()
    assert past(Ledger.in_directory(tmp_path)) == before
