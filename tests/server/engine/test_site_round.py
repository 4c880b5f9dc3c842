"""A round of sites: goal and quorum count devices, and places are reserved before they are used."""

import pytest

from fedloom.server.engine import (
    Attended,
    ClientFailed,
    Close,
    Offer,
    Opened,
    Phase,
    Recruited,
    RoundConfig,
    RoundState,
    SiteRound,
    UpdateAccepted,
    Wake,
)

SIZES = {"north": 3, "south": 4, "east": 2, "west": 3}


def first(candidates, count):
    """Select in alphabetical order, so that the draws are predictable."""
    return list(candidates[:count])


def asked(available=(), *, least=1, **changes):
    settings = {"goal": 7, "quorum": 3, "deadline_s": 100.0, "patience_s": 10.0} | changes
    round_ = SiteRound(
        RoundConfig(**settings),
        select=first,
        now=0.0,
        devices_of=SIZES.__getitem__,
        least=least,
        available=available,
    )
    return round_, round_.handle(Wake(), 0.0)


def test_a_round_opens_once_sites_have_enough_devices():
    """Not once there are as many sites as the goal."""
    round_, effects = asked(["north"])
    assert effects == []
    effects = round_.handle(Attended("south"), 1.0)
    assert effects == [Opened(("north", "south")), Offer("north"), Offer("south")]
    assert round_.cohort.places == {"north": 3, "south": 4}


def test_the_last_site_gets_the_places_that_are_left():
    """The places of all add up to the size of the cohort."""
    round_, _ = asked(SIZES, goal=5)
    assert round_.cohort.places == {"east": 2, "north": 3}
    round_, _ = asked(SIZES, goal=5, over_selection=1.2)
    assert round_.cohort.places == {"east": 2, "north": 3, "south": 1}
    assert round_.cohort.at_work == 6


def test_a_round_closes_at_its_goal_of_devices():
    """Two sums reach it."""
    round_, _ = asked(["north", "south"])
    assert round_.handle(UpdateAccepted("north", 3), 1.0) == []
    assert round_.cohort.accepted == 3
    assert round_.handle(UpdateAccepted("south", 4), 2.0) == [Close()]


def test_places_that_a_site_does_not_use_are_offered_to_others():
    """Until the goal is reached."""
    round_, _ = asked(SIZES, goal=6)
    assert round_.cohort.places == {"east": 2, "north": 3, "south": 1}
    round_, _ = asked(["north", "south"])
    round_.handle(Attended("east"), 1.0)
    effects = round_.handle(UpdateAccepted("south", 1), 2.0)
    assert effects == [Recruited("east"), Offer("east")]
    assert round_.cohort.places["east"] == 2
    assert round_.cohort.at_work + round_.cohort.accepted == 6


def test_the_quorum_counts_devices():
    """At the deadline one site of three devices is enough for a quorum of three, not of four."""
    for quorum, state in ((3, RoundState.CLOSING), (4, RoundState.ABANDONED)):
        round_, _ = asked(["north", "south"], quorum=quorum)
        round_.handle(UpdateAccepted("north", 3), 1.0)
        round_.handle(Wake(), 100.0)
        assert round_.state is state


def test_a_failed_site_is_replaced_by_its_places():
    """A larger site gets no more than these."""
    round_, _ = asked(["east", "north"], goal=5)
    round_.handle(Attended("south"), 1.0)
    effects = round_.handle(ClientFailed("north", "fire"), 2.0)
    assert effects == [Recruited("south"), Offer("south")]
    assert round_.cohort.places["south"] == 3


def test_a_quorum_out_of_reach_ends_the_round():
    """Counted in devices of sites."""
    round_, _ = asked(["north", "south"], quorum=5)
    round_.handle(ClientFailed("south", "fire"), 1.0)
    round_.handle(Wake(), 50.0)
    assert round_.state is RoundState.ABANDONED


@pytest.mark.parametrize("sent", [4, 2])
def test_a_restored_round_has_its_places_and_counts(sent):
    """What one accepted site did not use is free again."""
    round_ = SiteRound.rebuild(
        RoundConfig(goal=7, quorum=3),
        select=first,
        devices_of=SIZES.__getitem__,
        state=RoundState.REPORTING,
        cohort={"north": Phase.OFFERED, "south": Phase.REPORTED},
        places={"north": 3, "south": 4},
        accepted={"south": sent},
        deadline_left_s=50.0,
        now=0.0,
    )
    assert (round_.cohort.accepted, round_.cohort.at_work) == (sent, 3)
    assert round_.free == 4 - sent
    assert round_.handle(UpdateAccepted("north", 3), 1.0) == [Close()]


def test_a_site_is_asked_for_a_smallest_session_at_least():
    """The last one gets more places than are left; the sums have room for twice the goal."""
    round_, _ = asked(["north", "south"], goal=5, least=3)
    assert round_.cohort.places == {"north": 3, "south": 3}
    assert round_.handle(UpdateAccepted("north", 3), 1.0) == []
    assert round_.handle(UpdateAccepted("south", 3), 2.0) == [Close()]


def test_places_for_less_than_a_session_are_given_to_nobody():
    """Those for a session are, to one site."""
    round_, _ = asked(["north", "south"], goal=7, quorum=3, least=3)
    round_.handle(Attended("west"), 1.0)
    assert round_.handle(UpdateAccepted("south", 3), 2.0) == []  # one of its four is missing
    assert round_.free == 0
    effects = round_.handle(ClientFailed("north"), 3.0)
    assert effects == [Recruited("west"), Offer("west")]
    assert round_.cohort.places["west"] == 3


def test_a_restored_round_keeps_the_places_of_a_smallest_session():
    """Also those beyond the size of the cohort."""
    round_ = SiteRound.rebuild(
        RoundConfig(goal=5, quorum=3, deadline_s=100.0, patience_s=10.0),
        select=first,
        now=0.0,
        devices_of=SIZES.__getitem__,
        least=3,
        state=RoundState.REPORTING,
        cohort={"north": Phase.OFFERED, "south": Phase.OFFERED},
        places={"north": 3, "south": 3},
        accepted={},
        deadline_left_s=50.0,
    )
    assert round_.free == 0
    round_.handle(UpdateAccepted("north", 3), 1.0)
    assert round_.handle(UpdateAccepted("south", 3), 2.0) == [Close()]
