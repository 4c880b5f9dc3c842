"""The time that a site leaves for its sum: twice what the last ones took, within bounds."""

from fedloom.server.rounds.upstream.sending_times import KEPT, SendingTimes


def measured(*seconds, model_bytes=1000):
    now = [0.0]
    times = SendingTimes(lambda: now[0])
    for number, each in enumerate(seconds, 1):
        times.closed("run", number, model_bytes)
        now[0] += each
        times.acknowledged("run", number)
    return times


def test_a_tenth_is_left_until_one_was_measured():
    """Then twice the longest, at least a second and at most half of the time."""
    assert measured().margin_s(300.0, 1000) == 30.0
    assert measured(2.0, 5.0, 1.0).margin_s(300.0, 1000) == 10.0
    assert measured(0.01).margin_s(300.0, 1000) == 1.0
    assert measured(900.0).margin_s(300.0, 1000) == 150.0


def test_a_larger_model_takes_longer_and_a_smaller_one_no_less():
    """A small one may have waited for the network alone."""
    assert measured(2.0).margin_s(300.0, 3000) == 12.0
    assert measured(2.0).margin_s(300.0, 10) == 4.0


def test_an_old_slow_one_is_forgotten():
    """After so many others."""
    assert measured(50.0, *[1.0] * (KEPT - 1)).margin_s(300.0, 1000) == 100.0
    assert measured(50.0, *[1.0] * KEPT).margin_s(300.0, 1000) == 2.0


def test_a_sum_of_before_a_restart_or_of_another_round_is_not_measured():
    """Nothing is known of when its round closed."""
    times = SendingTimes()
    times.acknowledged("run", 1)
    times.closed("run", 2, 1000)
    times.acknowledged("run", 1)
    times.forget("run")
    times.acknowledged("run", 2)
    assert times.margin_s(300.0, 1000) == 30.0


def test_rounds_with_masking_sessions_have_times_of_their_own():
    """These count from the opening of the sessions; a quarter is left until one was measured."""
    now = [0.0]
    times = SendingTimes(lambda: now[0])
    assert times.margin_s(300.0, 1000, sessions=True) == 75.0
    for number, (seconds, sessions) in enumerate(((1.0, False), (20.0, True)), 1):
        times.closed("run", number, 1000, sessions=sessions)
        now[0] += seconds
        times.acknowledged("run", number)
    assert times.margin_s(300.0, 1000) == 2.0
    assert times.margin_s(300.0, 1000, sessions=True) == 40.0
