"""A round with clients that report, fail, disappear and return, and with operators."""

import pytest

from fedloom.protocol.errors import Code, IntegrityError
from fedloom.server.engine import (
    Abandon,
    Abort,
    Attended,
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
)

CLOSED = "the round has closed"


def first(candidates, count):
    """Select in alphabetical order, so that the draws are predictable."""
    return list(candidates[:count])


def config(**changes):
    """Settings for three clients, of which two are enough."""
    settings = {"goal": 3, "quorum": 2, "deadline_s": 100.0, "patience_s": 10.0}
    return RoundConfig(**(settings | changes))


def opened(available="abc", **changes):
    """A round that opened at time 0 with all clients available, and whose offers are accepted."""
    round_ = asked(available, **changes)
    for client in round_.cohort.phases:
        assert round_.handle(OfferAccepted(client), 0.0) == []
    return round_


def asked(available="abc", **changes):
    """A round that opened at time 0 with all clients available; no offer is answered yet."""
    round_ = Round(config(**changes), select=first, now=0.0, available=available)
    effects = round_.handle(Wake(), 0.0)
    assert round_.state is RoundState.REPORTING
    assert effects[0] == Opened(tuple(round_.cohort.phases))
    return round_


def restored(**changes):
    """A round of three, restored at time 1000 with 50 seconds left."""
    settings = {
        "select": first,
        "state": RoundState.REPORTING,
        "cohort": dict.fromkeys("abc", Phase.TRAINING),
        "accepted": set(),
        "deadline_left_s": 50.0,
        "now": 1000.0,
    }
    return Round.restore(config(), **(settings | changes))


# ---- selecting -------------------------------------------------------------------------------


def test_a_round_opens_when_its_goal_is_available():
    """The cohort is announced before anyone is offered the task."""
    round_ = Round(config(), select=first, now=0.0)
    assert round_.handle(Attended("b"), 1.0) == []
    assert round_.handle(Attended("a"), 2.0) == []
    effects = round_.handle(Attended("c"), 3.0)
    assert effects == [Opened(("a", "b", "c")), Offer("a"), Offer("b"), Offer("c")]
    assert round_.wake_at == 13.0
    for client in "abc":
        round_.handle(OfferAccepted(client), 4.0)
    assert round_.wake_at == 103.0


def test_a_round_with_enough_clients_asks_to_be_woken_at_once():
    """Clients available from the start are drawn together, at the first Wake."""
    round_ = Round(config(), select=first, now=7.0, available="cba")
    assert round_.wake_at == 7.0
    assert round_.handle(Wake(), 7.0)[0] == Opened(("a", "b", "c"))


def test_a_client_that_left_is_not_chosen():
    round_ = Round(config(), select=first, now=0.0)
    for event in (Attended("a"), Attended("b"), Left("a"), Attended("c")):
        assert round_.handle(event, 1.0) == []
    assert round_.handle(Attended("d"), 2.0)[0] == Opened(("b", "c", "d"))


def test_a_client_that_attends_twice_is_one_candidate():
    round_ = Round(config(goal=2, quorum=1), select=first, now=0.0)
    round_.handle(Attended("a"), 1.0)
    assert round_.handle(Attended("a"), 2.0) == []
    assert round_.state is RoundState.SELECTING


@pytest.mark.parametrize(("available", "chosen"), [(3, 3), (4, 4), (5, 5), (9, 5)])
def test_over_selection_uses_the_available_clients(available, chosen):
    """A goal of 3 with a factor of 1.5 asks five if five are available."""
    round_ = Round(
        config(over_selection=1.5), select=first, now=0.0, available="abcdefghi"[:available]
    )
    round_.handle(Wake(), 0.0)
    assert len(round_.cohort.phases) == chosen
    assert len(round_.candidates) == available - chosen


# ---- reporting -------------------------------------------------------------------------------


def test_a_round_closes_at_its_goal():
    """The last wanted update closes the round and frees the others."""
    round_ = opened("abcde", over_selection=5 / 3)
    round_.handle(OfferAccepted("e"), 1.0)
    for client in "ab":
        assert round_.handle(UpdateAccepted(client), 1.0) == []
    effects = round_.handle(UpdateAccepted("c"), 2.0)
    assert effects == [Close(), Withdraw("d", CLOSED), Withdraw("e", CLOSED)]
    assert round_.state is RoundState.CLOSING
    assert round_.wake_at is None


def test_an_update_counts_once():
    """A repeat neither counts nor closes the round."""
    round_ = opened()
    for _ in range(5):
        assert round_.handle(UpdateAccepted("a"), 1.0) == []
    assert round_.cohort.accepted == 1


def test_an_update_from_outside_the_cohort_does_not_count():
    round_ = opened("abcd")
    assert round_.handle(UpdateAccepted("d"), 1.0) == []
    assert round_.cohort.accepted == 0


@pytest.mark.parametrize(
    ("event", "phase"),
    [
        (OfferDeclined("a", "on battery"), Phase.DECLINED),
        (ClientFailed("a", "no disk"), Phase.FAILED),
        (UpdateRefused("a", "not_finite"), Phase.REFUSED),
    ],
)
def test_a_member_that_dropped_out_is_replaced(event, phase):
    """By an idle client; the member is not asked again."""
    round_ = opened("abcd")
    assert round_.handle(event, 1.0) == [Recruited("d"), Offer("d")]
    assert round_.cohort.phases["a"] is phase
    assert round_.handle(event, 1.0) == []
    assert round_.handle(Attended("a"), 2.0) == []


def test_a_free_place_goes_to_the_next_client_that_connects():
    round_ = opened()
    assert round_.handle(ClientFailed("a"), 1.0) == []
    assert round_.handle(Attended("z"), 2.0) == [Recruited("z"), Offer("z")]
    assert round_.handle(Attended("y"), 3.0) == []


def test_a_lost_member_is_replaced_when_patience_runs_out():
    """Not earlier, and `wake_at` is that time."""
    round_ = opened("abcd")
    assert round_.handle(Left("a"), 5.0) == []
    assert round_.wake_at == 15.0
    assert round_.handle(Wake(), 14.9) == []
    assert round_.handle(Wake(), 15.0) == [Recruited("d"), Offer("d")]
    assert round_.cohort.phases["a"] is Phase.LOST
    round_.handle(OfferAccepted("d"), 16.0)
    assert round_.wake_at == 100.0


def test_a_member_that_returns_in_time_is_offered_its_task_again():
    """It keeps its place, and no client is recruited."""
    round_ = opened("abcd")
    round_.handle(OfferAccepted("a"), 1.0)
    round_.handle(Left("a"), 5.0)
    assert round_.handle(Attended("a"), 14.0) == [Offer("a", again=True)]
    assert round_.handle(Wake(), 15.0) == []
    assert round_.cohort.phases["a"] is Phase.OFFERED


def test_each_absence_has_a_whole_grace_period():
    """An earlier absence that ended does not shorten a later one."""
    round_ = opened("abcd")
    for event, now in ((Left("a"), 0.0), (Attended("a"), 8.0), (Left("a"), 9.0)):
        round_.handle(event, now)
    assert round_.handle(Wake(), 18.9) == []
    assert round_.handle(Wake(), 19.0) == [Recruited("d"), Offer("d")]


def test_a_second_left_event_does_not_extend_patience():
    """The absence counts from its beginning."""
    round_ = opened()
    round_.handle(Left("a"), 0.0)
    round_.handle(Left("a"), 5.0)
    assert round_.wake_at == 10.0


def test_a_member_that_failed_while_out_of_contact_is_not_lost_later():
    """Its place is filled once, and its phase does not change."""
    round_ = opened("abcd")
    round_.handle(Left("a"), 0.0)
    assert round_.handle(ClientFailed("a"), 1.0) == [Recruited("d"), Offer("d")]
    assert round_.handle(Wake(), 10.0) == []
    assert round_.cohort.phases["a"] is Phase.FAILED


def test_overdue_patience_acts_on_any_event():
    """A late Wake does not keep a place occupied."""
    round_ = opened("abcd")
    round_.handle(Left("a"), 0.0)
    assert round_.handle(OfferAccepted("b"), 10.5) == [Recruited("d"), Offer("d")]


def test_an_unanswered_offer_is_given_to_another():
    """At the end of the time to answer, and not earlier."""
    round_ = asked("abcd")
    for client in "bc":
        round_.handle(OfferAccepted(client), 1.0)
    assert round_.wake_at == 10.0
    assert round_.handle(Wake(), 9.9) == []
    assert round_.handle(Wake(), 10.0) == [Recruited("d"), Offer("d")]
    assert round_.cohort.phases["a"] is Phase.LOST
    round_.handle(OfferAccepted("d"), 11.0)
    assert round_.wake_at == 100.0


def test_a_late_answer_takes_part_again():
    """Its replacement keeps working; the first to report counts."""
    round_ = asked("abcd")
    for client in "bc":
        round_.handle(OfferAccepted(client), 1.0)
    round_.handle(Wake(), 10.0)
    assert round_.handle(OfferAccepted("a"), 11.0) == []
    assert round_.cohort.phases["a"] is Phase.TRAINING
    for client in "ab":
        assert round_.handle(UpdateAccepted(client), 12.0) == []
    assert round_.handle(UpdateAccepted("c"), 13.0) == [Close(), Withdraw("d", CLOSED)]


def test_a_restart_does_not_give_the_place_away_again():
    """The ledger holds both members; the silent one gets its grace period again, then is lost."""
    round_ = restored(
        cohort={"a": Phase.OFFERED, "b": Phase.OFFERED, "c": Phase.OFFERED, "d": Phase.OFFERED},
        available="e",
    )
    for client in "bcd":
        assert round_.handle(Attended(client), 1001.0) == [Offer(client, again=True)]
        round_.handle(OfferAccepted(client), 1001.0)
    assert round_.handle(Wake(), 1010.0) == []
    assert round_.cohort.phases["a"] is Phase.LOST
    assert round_.wake_at == 1050.0


def test_a_client_has_time_to_answer_whatever_the_patience():
    """Without patience for lost members, an answer still needs a moment on the network."""
    round_ = asked("abcd", patience_s=0.0)
    assert round_.handle(Wake(), 9.9) == []
    assert round_.cohort.at_work == 3
    assert round_.handle(Wake(), 10.0)[:2] == [Recruited("d"), Offer("d")]


def test_a_pause_moves_the_time_to_answer():
    """A pause of 40 s adds 40 s; an offer made in the pause has its whole time after it."""
    round_ = asked("abcd", patience_s=20.0)
    round_.handle(Left("b"), 1.0)
    round_.handle(Pause(), 10.0)
    assert round_.handle(Attended("b"), 30.0) == [Offer("b", again=True)]
    round_.handle(Resume(), 50.0)
    assert round_.handle(Wake(), 59.9) == []
    assert round_.handle(Wake(), 60.0) == [Recruited("d"), Offer("d")]
    assert round_.cohort.phases["b"] is Phase.OFFERED
    round_.handle(Wake(), 70.0)
    assert round_.cohort.phases["b"] is Phase.LOST


def test_an_idle_client_that_left_is_not_recruited():
    round_ = opened("abcde")
    round_.handle(Left("d"), 0.0)
    assert round_.handle(ClientFailed("a"), 1.0) == [Recruited("e"), Offer("e")]


def test_a_lost_member_that_returns_is_offered_its_task_again():
    """Its replacement keeps working; the first to report counts."""
    round_ = opened("abcd")
    round_.handle(Left("a"), 0.0)
    round_.handle(Wake(), 10.0)
    assert round_.handle(Attended("a"), 11.0) == [Offer("a", again=True)]
    for client in "ab":
        round_.handle(UpdateAccepted(client), 12.0)
    effects = round_.handle(UpdateAccepted("c"), 13.0)
    assert effects == [Close(), Withdraw("d", CLOSED)]


def test_a_member_that_reported_is_not_offered_again():
    """Also after it left and attended again."""
    round_ = opened()
    round_.handle(UpdateAccepted("a"), 1.0)
    round_.handle(Left("a"), 2.0)
    assert round_.wake_at == 100.0
    assert round_.handle(Attended("a"), 3.0) == []


def test_an_update_from_a_member_out_of_contact_counts():
    """Uploads do not need the stream."""
    round_ = opened()
    round_.handle(Left("a"), 1.0)
    round_.handle(UpdateAccepted("a"), 2.0)
    assert round_.wake_at == 100.0
    assert round_.cohort.accepted == 1


def test_a_round_with_its_quorum_closes_when_all_others_are_out():
    """It does not wait for the deadline."""
    round_ = opened()
    round_.handle(UpdateAccepted("a"), 1.0)
    round_.handle(Left("c"), 2.0)
    assert round_.handle(UpdateAccepted("b"), 3.0) == []
    assert round_.handle(Wake(), 12.0) == [Close(), Withdraw("c", CLOSED)]


def test_a_round_under_quorum_waits_for_new_clients():
    """All members are out and no client is idle: others may connect before the deadline."""
    round_ = opened()
    for client in "abc":
        assert round_.handle(ClientFailed(client), 1.0) == []
    assert round_.state is RoundState.REPORTING
    assert round_.handle(Attended("d"), 50.0) == [Recruited("d"), Offer("d")]


def test_a_round_waits_for_a_silent_member_until_the_deadline():
    """It is in contact, so only the deadline ends the wait."""
    round_ = opened()
    for client in "ab":
        round_.handle(UpdateAccepted(client), 1.0)
    assert round_.handle(Wake(), 99.9) == []
    assert round_.handle(Wake(), 100.0) == [Close(), Withdraw("c", CLOSED)]


def test_a_round_under_quorum_is_abandoned_at_its_deadline():
    """The reason states the quorum and the number of updates."""
    round_ = opened()
    round_.handle(UpdateAccepted("a"), 1.0)
    reason = "quorum not reached: expected at least 2 updates by the deadline, got 1"
    effects = round_.handle(Wake(), 100.0)
    assert effects == [Abandon(reason), Withdraw("b", reason), Withdraw("c", reason)]
    assert (round_.state, round_.reason) == (RoundState.ABANDONED, reason)


def test_an_overdue_deadline_acts_on_any_event():
    """A late Wake does not keep the round open."""
    round_ = opened()
    effects = round_.handle(OfferAccepted("a"), 101.0)
    assert isinstance(effects[0], Abandon)


def test_an_update_that_arrives_with_the_deadline_counts():
    """The event comes before what is due at the same time."""
    round_ = opened()
    round_.handle(UpdateAccepted("a"), 1.0)
    assert round_.handle(UpdateAccepted("b"), 100.0) == [Close(), Withdraw("c", CLOSED)]


def test_time_does_not_run_backwards():
    """An earlier time than the last counts as the last."""
    round_ = opened("abcd")
    round_.handle(OfferAccepted("a"), 50.0)
    round_.handle(Left("a"), 1.0)
    assert round_.wake_at == 60.0


# ---- after closing ---------------------------------------------------------------------------


def test_late_update_is_refused_after_close():
    """Members get `round_closed`, other clients `not_in_cohort`."""
    round_ = opened("abcd")
    assert round_.refusal_for("a") is None
    assert round_.refusal_for("d") is Code.NOT_IN_COHORT
    round_.handle(UpdateAccepted("a"), 1.0)
    round_.handle(CloseNow(), 1.0)
    assert round_.refusal_for("b") is Code.ROUND_CLOSED
    assert round_.refusal_for("d") is Code.NOT_IN_COHORT


def test_an_update_in_flight_at_close_still_counts():
    """It was durable before the fold, so it is part of the result."""
    round_ = opened()
    round_.handle(UpdateAccepted("a"), 1.0)
    round_.handle(CloseNow(), 1.0)
    for _ in range(2):
        assert round_.handle(UpdateAccepted("b"), 1.0) == []
    assert round_.cohort.accepted == 2


@pytest.mark.parametrize("end", [Committed(), CommitFailed("the strategy raised")])
def test_a_member_that_returns_too_late_gets_a_withdrawal(end):
    """It may have missed the first while it was out of contact."""
    round_ = opened()
    round_.handle(UpdateAccepted("a"), 1.0)
    round_.handle(CloseNow(), 1.0)
    assert round_.handle(Attended("b"), 2.0) == [Withdraw("b", CLOSED)]
    round_.handle(end, 3.0)
    assert round_.handle(Attended("b"), 4.0) == [Withdraw("b", round_.reason or CLOSED)]
    assert round_.handle(Attended("a"), 4.0) == []
    assert round_.handle(Attended("z"), 4.0) == []


def test_a_commit_that_fails_abandons_the_round():
    """The reason is kept."""
    round_ = opened()
    round_.handle(UpdateAccepted("a"), 1.0)
    round_.handle(CloseNow(), 1.0)
    assert round_.handle(CommitFailed("no disk"), 2.0) == [Abandon("no disk")]
    assert (round_.state.is_over, round_.reason) == (True, "no disk")


# ---- the operator ----------------------------------------------------------------------------


def test_a_pause_moves_the_deadline_and_patience():
    """A pause of 40 s adds 40 s to both."""
    round_ = opened("abcd")
    round_.handle(Left("a"), 5.0)
    round_.handle(Pause(), 10.0)
    assert (round_.clock.paused, round_.wake_at) == (True, None)
    assert round_.clock.deadline_left_s(30.0) == 90.0
    assert round_.handle(Wake(), 40.0) == []
    assert round_.handle(Resume(), 50.0) == []
    assert round_.wake_at == 55.0
    assert round_.clock.deadline_left_s(50.0) == 90.0
    assert round_.handle(Wake(), 55.0) == [Recruited("d"), Offer("d")]
    round_.handle(OfferAccepted("d"), 56.0)
    assert round_.wake_at == 140.0


def test_a_member_that_leaves_in_a_pause_has_its_whole_grace_period():
    round_ = opened()
    round_.handle(Pause(), 10.0)
    round_.handle(Left("a"), 40.0)
    round_.handle(Resume(), 50.0)
    assert round_.wake_at == 60.0


def test_updates_count_in_a_pause_and_close_after_it():
    round_ = opened()
    round_.handle(Pause(), 1.0)
    for client in "abc":
        assert round_.handle(UpdateAccepted(client), 2.0) == []
    assert round_.handle(Resume(), 3.0) == [Close()]


def test_a_paused_round_does_not_open():
    """Candidates gather; the round opens when it is resumed."""
    round_ = Round(config(), select=first, now=0.0)
    round_.handle(Pause(), 0.0)
    for client in "abc":
        assert round_.handle(Attended(client), 1.0) == []
    assert round_.handle(Resume(), 5.0)[0] == Opened(("a", "b", "c"))
    assert (round_.clock.deadline, round_.wake_at) == (105.0, 15.0)


def test_nobody_is_recruited_in_a_pause():
    """Free places are filled when the round is resumed."""
    round_ = opened("abcd")
    round_.handle(Pause(), 1.0)
    assert round_.handle(ClientFailed("a"), 2.0) == []
    assert round_.handle(Resume(), 3.0) == [Recruited("d"), Offer("d")]


def test_a_pause_does_not_nest():
    """A second pause and a resume without one are refused."""
    round_ = opened()
    with pytest.raises(OperatorRefused, match="not paused"):
        round_.handle(Resume(), 1.0)
    round_.handle(Pause(), 1.0)
    with pytest.raises(OperatorRefused, match="paused already"):
        round_.handle(Pause(), 2.0)


def test_abort_withdraws_all_open_tasks():
    """With the operator's reason."""
    round_ = opened()
    round_.handle(UpdateAccepted("a"), 1.0)
    round_.handle(ClientFailed("b"), 1.0)
    assert round_.handle(Abort("wrong data"), 2.0) == [
        Abandon("wrong data"),
        Withdraw("c", "wrong data"),
    ]


def test_close_now_takes_one_update():
    """The quorum applies to the deadline, not to the operator."""
    round_ = opened()
    with pytest.raises(OperatorRefused, match="at least 1 accepted update"):
        round_.handle(CloseNow(), 1.0)
    round_.handle(UpdateAccepted("a"), 1.0)
    assert round_.handle(CloseNow(), 2.0)[0] == Close()


def test_close_now_works_in_a_pause():
    """A round that closes is not paused any more."""
    round_ = opened()
    round_.handle(UpdateAccepted("a"), 1.0)
    round_.handle(Pause(), 2.0)
    assert round_.handle(CloseNow(), 3.0)[0] == Close()
    assert not round_.clock.paused


def test_the_deadline_can_be_extended():
    """In a pause as well."""
    round_ = opened()
    round_.handle(ExtendDeadline(20.0), 1.0)
    assert round_.wake_at == 120.0
    round_.handle(Pause(), 2.0)
    round_.handle(ExtendDeadline(5.0), 3.0)
    round_.handle(Resume(), 4.0)
    assert round_.wake_at == 127.0
    assert round_.handle(Wake(), 126.9) == []


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1.7976931348623157e308])
def test_an_extension_must_be_positive_and_finite(seconds):
    """Otherwise it is refused and the deadline does not change."""
    round_ = opened(deadline_s=1e308)
    with pytest.raises(OperatorRefused, match="Expected seconds="):
        round_.handle(ExtendDeadline(seconds), 1.0)
    assert round_.wake_at == 1e308


# ---- after a crash ---------------------------------------------------------------------------


def test_a_restored_round_waits_for_its_members_to_return():
    """They are out of contact, their patience starts now, and they keep their task."""
    round_ = restored(accepted={"a"}, available="dab")
    assert round_.wake_at == 1000.0
    assert round_.handle(Wake(), 1000.0) == []
    assert round_.wake_at == 1010.0
    assert round_.handle(Attended("b"), 1002.0) == [Offer("b", again=True)]
    assert round_.handle(Wake(), 1010.0) == [Recruited("d"), Offer("d")]
    assert round_.cohort.phases["c"] is Phase.LOST
    for client in "bd":
        round_.handle(OfferAccepted(client), 1011.0)
    assert round_.wake_at == 1050.0


def test_a_restored_round_that_reached_its_goal_closes():
    """The crash came between the last update and the close."""
    round_ = restored(accepted={"a", "b", "c"})
    assert round_.wake_at == 1000.0
    assert round_.handle(Wake(), 1000.0) == [Close()]


def test_a_round_restored_after_its_deadline_ends():
    round_ = restored(accepted={"a", "b"}, deadline_left_s=-3.0)
    assert round_.handle(Wake(), 1000.0)[0] == Close()


def test_a_round_restored_while_closing_asks_for_its_commit_once_more():
    """Once, with any first event."""
    for event in (Wake(), Attended("z"), UpdateAccepted("a")):
        round_ = restored(state=RoundState.CLOSING, accepted={"a"}, deadline_left_s=0.0)
        assert round_.wake_at == 1000.0
        assert round_.handle(event, 1000.0) == [Close()]
        assert round_.wake_at is None
        assert round_.handle(Wake(), 1001.0) == []
        assert round_.handle(Committed(), 1002.0) == []
        assert round_.state is RoundState.COMMITTED


def test_a_round_restored_in_a_pause_stays_paused():
    round_ = restored(accepted={"a", "b", "c"}, paused=True)
    assert (round_.wake_at, round_.clock.deadline_left_s(2000.0)) == (None, 50.0)
    assert round_.handle(Wake(), 1500.0) == []
    assert round_.handle(Resume(), 2000.0) == [Close()]


def test_accepted_updates_override_the_stored_phase():
    """An update in the ledger counts; a reported phase without one does not."""
    phases = {"a": Phase.REPORTED, "b": Phase.OFFERED, "c": Phase.DECLINED, "d": Phase.LOST}
    round_ = restored(cohort=phases, accepted={"b"})
    assert dict(round_.cohort.phases) == phases | {"a": Phase.OFFERED, "b": Phase.REPORTED}


def test_a_restored_round_has_as_many_places_as_before():
    """Recruited members replaced others and added no places."""
    phases = dict.fromkeys("abcd", Phase.TRAINING) | {"a": Phase.FAILED}
    round_ = restored(cohort=phases, available="yz")
    assert round_.handle(Wake(), 1000.0) == []
    assert round_.handle(ClientFailed("b"), 1001.0) == [Recruited("y"), Offer("y")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accepted": {"z"}}, "Expected updates of the cohort alone, got z's"),
        ({"state": RoundState.SELECTING}, "reporting or closing, got selecting"),
    ],
)
def test_a_stored_round_that_contradicts_itself_is_refused(changes, message):
    with pytest.raises(IntegrityError, match=message):
        restored(**changes)


# ---- values of the status page ---------------------------------------------------------------


def test_counts_name_every_phase():
    """Zeros included, and they sum to the cohort."""
    round_ = opened("abcd")
    for event in (OfferAccepted("a"), UpdateAccepted("b"), ClientFailed("c")):
        round_.handle(event, 1.0)
    counts = round_.cohort.counts()
    assert set(counts) == set(Phase) - {Phase.READY}
    expected = {Phase.TRAINING: 1, Phase.REPORTED: 1, Phase.FAILED: 1, Phase.OFFERED: 1}
    assert {phase: count for phase, count in counts.items() if count} == expected


def test_the_views_are_read_only():
    with pytest.raises(TypeError):
        opened().cohort.phases["a"] = Phase.LOST


def test_there_is_no_deadline_before_the_round_opens():
    """Status values have None instead of infinity."""
    assert Round(config(), select=first, now=0.0).clock.deadline_left_s(5.0) is None
    assert opened().clock.deadline_left_s(1.0) == 99.0
    assert opened().clock.deadline_left_s(101.0) == 0.0
