"""The observation of a member follows from its phase, its update and three times."""

import math

import pytest

from fedloom.server.engine import Phase
from fedloom.server.planning.observations import CohortMember, observe
from fedloom.server.planning.round_result import ClientMetrics
from fedloom.strategies.selection import PowerOfChoice, Stratified


def member(phase=Phase.OFFERED, **values):
    times = {"offered_at": 10.0, "closed_at": 25.0}
    counted = phase is Phase.REPORTED
    return CohortMember(client="a", phase=phase, counted=counted, **{**times, **values})


def test_an_update_gives_its_training_and_duration():
    """From the offer to its acceptance, not to the end of the round."""
    training = ClientMetrics(num_examples=7, values={"loss": 0.5, "region": 3.0})
    told = member(Phase.REPORTED, accepted_at=14.0, training=training)
    (seen,) = observe([told], Stratified(label="region"))
    assert (seen.client, seen.counted, seen.num_examples) == ("a", True, 7)
    assert (seen.loss, seen.label, seen.seconds) == (0.5, 3.0, 4.0)


@pytest.mark.parametrize("phase", [Phase.OFFERED, Phase.TRAINING, Phase.LOST])
def test_a_member_at_work_has_the_duration_until_the_end(phase):
    """A lower bound; nothing else is known."""
    (seen,) = observe([member(phase)], PowerOfChoice())
    assert (seen.counted, seen.seconds) == (False, 15.0)
    assert math.isnan(seen.loss)


@pytest.mark.parametrize("phase", [Phase.DECLINED, Phase.FAILED, Phase.REFUSED])
def test_a_member_that_gave_up_is_not_measured(phase):
    """The time until it gave up says nothing about its duration."""
    assert math.isnan(member(phase).waited_s)


def test_without_times_there_is_no_duration():
    """As in simulations without devices, and in older ledgers."""
    assert math.isnan(member(Phase.REPORTED, offered_at=None, accepted_at=14.0).waited_s)
    assert math.isnan(member(closed_at=None).waited_s)
    assert math.isnan(member(Phase.REPORTED).waited_s)


def test_a_clock_that_was_set_back_gives_no_negative_time():
    """The server's clock is a wall clock."""
    assert member(Phase.REPORTED, accepted_at=9.0).waited_s == 0.0
