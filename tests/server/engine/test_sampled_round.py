"""Rounds whose random cohort amplifies privacy: drawn by coins, or a subset of one size."""

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.engine import (
    Attended,
    ChangeGoal,
    ClientFailed,
    Close,
    CloseNow,
    Left,
    Offer,
    OfferAccepted,
    Opened,
    OperatorRefused,
    Phase,
    Round,
    RoundState,
    SampledConfig,
    UpdateAccepted,
    Wake,
    by_coins,
    uniform,
)


def config(**changes):
    settings = {"coins": True, "goal": 1, "deadline_s": 100.0, "patience_s": 10.0, "candidates": 3}
    return SampledConfig(**(settings | changes))


def drawing(names):
    """A draw of these, of those that are present."""
    return by_coins(lambda there: np.flatnonzero([name in names for name in there]))


def opened(drawn, available="abcd", **changes):
    round_ = Round(config(**changes), select=drawing(drawn), now=0.0, available=available)
    return round_, round_.handle(Wake(), 0.0)


def test_every_drawn_client_takes_part_and_none_displaces_another():
    """Three are drawn where one is expected; the round closes when all have reported."""
    round_, effects = opened("abd")
    assert effects == [Opened(("a", "b", "d")), Offer("a"), Offer("b"), Offer("d")]
    assert round_.handle(UpdateAccepted("b"), 1.0) == []
    assert round_.handle(UpdateAccepted("a"), 2.0) == []
    assert round_.handle(UpdateAccepted("d"), 3.0) == [Close()]
    assert round_.cohort.accepted == 3


def test_a_round_that_draws_nobody_closes_at_once():
    """Its release is noise alone."""
    round_, effects = opened("")
    assert effects == [Opened(()), Close()]
    assert round_.state is RoundState.CLOSING


def test_clients_that_are_away_are_not_in_the_round():
    """Also those that come later: the coins are of those present when it opens."""
    round_, effects = opened("az", available="abc")
    assert effects == [Opened(("a",)), Offer("a")]
    assert round_.handle(Attended("z"), 1.0) == []
    round_.handle(ClientFailed("a"), 2.0)
    assert set(round_.cohort.phases) == {"a"}


@pytest.mark.parametrize("coins", [True, False])
def test_a_round_without_updates_is_committed_at_its_deadline(coins):
    """Abandoning it would raise the probability of a client that always answers."""
    select = drawing("ab") if coins else uniform(1, 1)
    round_ = Round(config(coins=coins, goal=2), select=select, now=0.0, available="abc")
    opened_, *_ = round_.handle(Wake(), 0.0)
    effects = round_.handle(Wake(), 100.0)
    assert effects[0] == Close()
    assert len(opened_.cohort) == 2
    assert round_.cohort.accepted == 0


def test_a_round_whose_members_all_fail_is_committed():
    round_, _ = opened("ab")
    round_.handle(ClientFailed("a"), 1.0)
    assert Close() in round_.handle(ClientFailed("b"), 2.0)


@pytest.mark.parametrize("coins", [True, False])
def test_an_unanswered_offer_goes_to_nobody_else(coins):
    """The claim is of the clients that were drawn; the round no longer waits for the silent one."""
    select = drawing("ab") if coins else lambda there, _: [n for n in there if n in "ab"]
    round_ = Round(config(coins=coins, goal=2), select=select, now=0.0, available="abcd")
    round_.handle(Wake(), 0.0)
    round_.handle(OfferAccepted("b"), 1.0)
    assert round_.handle(Wake(), 50.0) == []
    assert dict(round_.cohort.phases) == {"a": Phase.LOST, "b": Phase.TRAINING}
    assert round_.handle(UpdateAccepted("b"), 51.0)[0] == Close()
    assert set(round_.cohort.phases) == {"a", "b"}


def test_it_opens_with_its_candidates_whatever_the_expected_number():
    round_ = Round(config(goal=3, candidates=2), select=drawing("a"), now=0.0, available="a")
    assert round_.handle(Wake(), 0.0) == []
    assert round_.handle(Attended("b"), 1.0) == [Opened(("a",)), Offer("a")]


@pytest.mark.parametrize("drawn", ["ab", ""])
def test_a_restored_round_keeps_its_draw(drawn):
    """The stored cohort counts: no coin is thrown again, even for clients that are there now."""
    round_ = Round.restore(
        config(),
        select=drawing("abcd"),
        state=RoundState.REPORTING,
        cohort=dict.fromkeys(drawn, Phase.OFFERED),
        accepted=set(),
        deadline_left_s=50.0,
        now=1000.0,
        available="cd",
    )
    effects = round_.handle(Wake(), 1000.0)
    assert set(round_.cohort.phases) == set(drawn)
    assert (Close() in effects) == (not drawn)
    for client in drawn:
        assert round_.handle(Attended(client), 1001.0) == [Offer(client, again=True)]


def test_its_settings_cannot_change():
    """An operator closes it early with what it has, and cannot give it a goal or a quorum."""
    round_, _ = opened("ab")
    with pytest.raises(OperatorRefused, match="quorum=0"):
        round_.handle(ChangeGoal(goal=1, quorum=1), 1.0)
    round_.handle(Left("a"), 1.0)
    assert Close() in round_.handle(CloseNow(), 2.0)
    for wrong in ({"quorum": 1}, {"replace": True}, {"over_selection": 1.5}):
        with pytest.raises(UsageError):
            config(**wrong)
