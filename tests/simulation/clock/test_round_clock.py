"""Rounds on the virtual clock: scenarios with times computed by hand.

A device's speeds are chosen so that its whole work takes an integer number of seconds: one example
per second, and transfers of negligible time unless the test is about them.
"""

from math import inf

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.engine import Phase, RoundConfig, RoundState, uniform
from fedloom.simulation.clock.availability import from_windows
from fedloom.simulation.clock.devices import Devices, Load
from fedloom.simulation.clock.round_clock import Clock, play


def in_order(candidates, count):
    """A predictable draw: the first by name."""
    return list(candidates[:count])


def fleet(work_s, *, windows=None, cycle_s=1000.0, failure=0.0, drop_out=0.0):
    """Devices whose work takes these seconds each, and the load."""
    clients = len(work_s)
    availability = None
    if windows is not None:
        own = np.arange(clients)
        availability = from_windows(windows, [cycle_s] * clients, own)
    devices = Devices(
        seed=1,
        example_s=np.array(work_s, np.float64),
        download=np.full(clients, inf),
        upload=np.full(clients, inf),
        drop_out=np.broadcast_to(np.float64(drop_out), clients),
        failure=np.broadcast_to(np.float64(failure), clients),
        availability=availability,
    )
    return devices, Load(trained=np.ones(clients, np.int64), download_bytes=1, upload_bytes=1)


def played(config, work_s, *, start_s=0.0, refused=frozenset(), select=in_order, **how):
    """Play round 1 of clients a, b, c and so on."""
    devices, load = fleet(work_s, **how)
    return play(
        config,
        select=select,
        names="abcdefghij"[: len(work_s)],
        devices=devices,
        round_number=1,
        load=load,
        start_s=start_s,
        refused=refused,
    )


# ---- times ---------------------------------------------------------------------------------------


def test_download_training_and_upload_follow_one_another():
    """1 MB at 8 Mbit/s, 20 examples at 10/s, 0.5 MB at 1 Mbit/s: 1 + 2 + 4 seconds."""
    table = {"compute_examples_per_s": 10, "download_mbit_s": 8, "upload_mbit_s": 1}
    devices = Devices.build(table, 1, seed=0)
    load = Load(trained=np.array([20]), download_bytes=1_000_000, upload_bytes=500_000)
    game = play(
        RoundConfig(goal=1), select=in_order, names=["a"], devices=devices,
        round_number=1, load=load, start_s=100.0,
    )  # fmt: skip
    assert (game.start_s, game.opened_s, game.end_s) == (100.0, 100.0, 107.0)
    assert (game.accepted, game.accepted_s, game.places) == (("a",), (107.0,), (0,))


def test_a_round_ends_with_the_slowest_of_three():
    game = played(RoundConfig(goal=3), [30.0, 10.0, 20.0])
    assert game.accepted == ("b", "c", "a")
    assert game.accepted_s == (10.0, 20.0, 30.0)
    assert game.end_s == 30.0
    assert game.state is RoundState.COMMITTED
    assert game.events == 8  # woken, 3 × taken, 3 × reported, committed


def test_over_selection_does_not_wait_for_stragglers():
    """Two of three are enough: the slowest is withdrawn and its update does not count."""
    game = played(RoundConfig(goal=2, over_selection=1.5), [30.0, 10.0, 20.0])
    assert game.cohort == ("a", "b", "c")
    assert game.accepted == ("b", "c")
    assert game.end_s == 20.0
    assert game.counts[Phase.TRAINING] == 1


def test_the_deadline_closes_with_a_quorum():
    config = RoundConfig(goal=3, quorum=2, deadline_s=60.0)
    game = played(config, [30.0, 90.0, 20.0])
    assert (game.accepted, game.end_s) == (("c", "a"), 60.0)
    assert game.state is RoundState.COMMITTED


def test_the_deadline_abandons_without_a_quorum():
    config = RoundConfig(goal=3, quorum=3, deadline_s=60.0)
    game = played(config, [30.0, 90.0, 20.0], start_s=5.0)
    assert game.state is RoundState.ABANDONED
    assert "quorum not reached" in game.reason
    assert game.end_s == 65.0


def test_an_update_exactly_at_the_deadline_counts():
    config = RoundConfig(goal=2, quorum=2, deadline_s=60.0)
    assert played(config, [30.0, 60.0]).state is RoundState.COMMITTED


# ---- failures and refusals -----------------------------------------------------------------------


def test_a_failure_is_replaced_by_an_idle_device():
    """One device always fails during its work; its replacement always finishes."""
    failure = [1.0, 0.0, 0.0]
    game = played(RoundConfig(goal=2), [100.0, 10.0, 20.0], failure=failure)
    fails_at = game.end_s - 20.0
    assert 0.0 < fails_at < 100.0
    assert game.cohort == ("a", "b", "c")
    assert game.accepted_s == (10.0, fails_at + 20.0)
    assert game.counts[Phase.FAILED] == 1


def test_a_device_that_drops_out_is_replaced_at_once():
    game = played(RoundConfig(goal=2), [5.0, 10.0, 20.0], drop_out=[1.0, 0.0, 0.0])
    assert (game.accepted, game.end_s) == (("b", "c"), 20.0)
    assert game.counts[Phase.DECLINED] == 1


def test_a_round_in_which_all_clients_drop_out_is_abandoned():
    game = played(RoundConfig(goal=2, deadline_s=60.0), [1.0] * 10, drop_out=1.0)
    assert (game.state, game.end_s) == (RoundState.ABANDONED, 60.0)
    assert game.counts[Phase.DECLINED] == 10


def test_thousands_of_successive_dropouts_are_handled():
    names = [f"c{number:05}" for number in range(5_000)]
    devices, load = fleet([1.0] * len(names), drop_out=1.0)
    game = play(
        RoundConfig(goal=1, deadline_s=60.0), select=uniform(1, 1), names=names,
        devices=devices, round_number=1, load=load,
    )  # fmt: skip
    assert game.counts[Phase.DECLINED] == 5_000


def test_a_refused_update_is_replaced_and_never_accepted():
    game = played(RoundConfig(goal=2), [10.0, 15.0, 20.0], refused=frozenset("a"))
    assert game.accepted == ("b", "c")
    assert game.accepted_s == (15.0, 30.0)
    assert game.counts[Phase.REFUSED] == 1


# ---- availability --------------------------------------------------------------------------------

ALWAYS = [(0.0, 1000.0)]


def test_a_round_waits_for_enough_devices():
    """The second is available from 300 s; the deadline runs from then."""
    config = RoundConfig(goal=2, quorum=1, deadline_s=60.0)
    game = played(config, [10.0, 100.0], windows=[ALWAYS, [(300.0, 900.0)]])
    assert (game.start_s, game.opened_s) == (0.0, 300.0)
    assert (game.accepted, game.end_s) == (("a",), 360.0)


def test_a_round_waits_for_the_next_cycle():
    """Started after this cycle's window, it opens in the next cycle's window."""
    game = played(RoundConfig(goal=1), [10.0], windows=[[(300.0, 400.0)]], start_s=2500.0)
    assert (game.opened_s, game.end_s) == (3300.0, 3310.0)


def test_devices_that_are_never_available_together_are_an_error():
    windows = [[(0.0, 400.0)], [(400.0, 1000.0)]]
    with pytest.raises(UsageError, match="never 2 devices available at once"):
        played(RoundConfig(goal=2), [1.0, 1.0], windows=windows)
    with pytest.raises(UsageError, match="available at once"):
        played(RoundConfig(goal=1), [1.0, 1.0], windows=[[], []])


def test_a_device_that_returns_continues_its_work():
    """40 s of 60 are done at 40 s; back at 50 s, it needs 20 more."""
    config = RoundConfig(goal=1, patience_s=30.0)
    game = played(config, [60.0], windows=[[(0.0, 40.0), (50.0, 1000.0)]])
    assert (game.accepted_s, game.state) == ((70.0,), RoundState.COMMITTED)


def test_a_device_absent_past_the_grace_period_is_replaced_and_may_return():
    """Client b takes its place at 45 s and would need until 145; a is back at 60 and done at 80."""
    config = RoundConfig(goal=1, patience_s=5.0)
    game = played(config, [60.0, 100.0], windows=[[(0.0, 40.0), (60.0, 1000.0)], ALWAYS])
    assert game.cohort == ("a", "b")
    assert (game.accepted, game.end_s) == (("a",), 80.0)


def test_a_grace_period_that_ends_with_a_report_takes_effect():
    """Both at 50 s: a's update counts, b is lost, and c takes its place."""
    config = RoundConfig(goal=2, quorum=2, patience_s=10.0)
    windows = [ALWAYS, [(0.0, 40.0)], ALWAYS]
    game = played(config, [50.0, 60.0, 5.0], windows=windows)
    assert game.cohort == ("a", "b", "c")
    assert game.accepted_s == (50.0, 55.0)
    assert game.counts[Phase.LOST] == 1


def test_a_device_that_leaves_as_it_finishes_has_finished():
    game = played(RoundConfig(goal=1), [40.0], windows=[[(0.0, 40.0)]])
    assert game.accepted_s == (40.0,)


def excluding(clients, config, work_s, **how):
    """A round that these clients may not take part in."""
    devices, load = fleet(work_s, **how)
    clock = Clock("abcdefghij"[: len(work_s)], devices)
    return clock.play(
        config, select=in_order, round_number=1, load=load, excluded=frozenset(clients)
    )


def test_an_excluded_newcomer_takes_no_free_place():
    """Client a drops out; c, which is available from 20 s, may not take part; d comes at 30 s."""
    windows = [ALWAYS, ALWAYS, [(20.0, 1000.0)], [(30.0, 1000.0)]]
    config, work, drop_out = RoundConfig(goal=2, quorum=2), [5.0, 60.0, 5.0, 5.0], [1.0, 0, 0, 0]
    game = excluding("c", config, work, windows=windows, drop_out=drop_out)
    assert game.cohort == ("a", "b", "d")
    assert game.accepted_s == (35.0, 60.0)


def test_a_round_does_not_open_for_an_excluded_device():
    """Two of three are there at once, but one may not take part: it opens when c comes."""
    windows = [ALWAYS, ALWAYS, [(300.0, 900.0)]]
    game = excluding("b", RoundConfig(goal=2), [10.0, 10.0, 10.0], windows=windows)
    assert (game.opened_s, game.cohort) == (300.0, ("a", "c"))
    with pytest.raises(UsageError, match="never 2 devices available at once"):
        excluding("bc", RoundConfig(goal=2), [10.0, 10.0, 10.0], windows=windows)


def test_a_free_place_goes_to_the_next_newcomer():
    """Client a drops out, no device is idle; c is available from 20 s."""
    windows = [ALWAYS, ALWAYS, [(20.0, 1000.0)], [(30.0, 1000.0)]]
    config = RoundConfig(goal=2, quorum=2)
    game = played(config, [1.0, 10.0, 5.0, 5.0], windows=windows, drop_out=[1, 0, 0, 0])
    assert game.cohort == ("a", "b", "c")
    assert game.accepted_s == (10.0, 25.0)


def test_a_replacement_is_available():
    """When a fails, c is unavailable and d available: d takes the place."""
    windows = [ALWAYS, ALWAYS, [(0.0, 0.001)], [(0.001, 1000.0)]]
    game = played(
        RoundConfig(goal=2), [100.0, 10.0, 5.0, 5.0], windows=windows, failure=[1, 0, 0, 0]
    )
    assert game.cohort == ("a", "b", "d")


def test_devices_that_arrive_together_are_drawn_together():
    """All ten arrive at 100 s, and over-selection asks more of them than the goal."""
    config = RoundConfig(goal=2, over_selection=2.0)
    game = played(config, [1.0] * 10, windows=[[(100.0, 200.0)]] * 10)
    assert (game.opened_s, len(game.cohort)) == (100.0, 4)


# ---- without devices -----------------------------------------------------------------------------


def untimed(config, names, **how):
    """Play a round without time."""
    load = Load(trained=np.ones(len(names), np.int64), download_bytes=1, upload_bytes=1)
    return play(
        config, select=uniform(3, 1), names=names, devices=None, round_number=1, load=load, **how
    )


def test_without_devices_the_cohort_reports_in_order():
    game = untimed(RoundConfig(goal=4), list("abcdefgh"))
    assert game.accepted == game.cohort
    assert len(game.accepted) == 4
    assert (game.accepted_s, game.end_s) == ((), None)


def test_without_devices_a_refused_client_is_replaced():
    names = list("abcdefgh")
    first = untimed(RoundConfig(goal=4), names)
    again = untimed(RoundConfig(goal=4), names, refused=frozenset(first.accepted[:1]))
    assert again.accepted[:3] == first.accepted[1:]
    assert len(again.accepted) == 4


def test_without_devices_a_round_whose_updates_are_all_refused_is_abandoned():
    game = untimed(RoundConfig(goal=2), list("abc"), refused=frozenset("abc"))
    assert (game.state, game.end_s) == (RoundState.ABANDONED, None)


def test_over_selection_without_devices_is_refused():
    with pytest.raises(UsageError, match=r"over_selection = 1 without devices"):
        untimed(RoundConfig(goal=2, over_selection=1.5), list("abc"))


@pytest.mark.parametrize("devices", [None, fleet([1.0, 1.0])[0]])
def test_a_goal_larger_than_the_population_is_refused(devices):
    load = Load(trained=np.ones(2, np.int64), download_bytes=1, upload_bytes=1)
    with pytest.raises(UsageError, match="goal of at most 2 clients"):
        Clock(["a", "b"], devices).play(
            RoundConfig(goal=3), select=in_order, round_number=1, load=load
        )


def test_devices_of_another_population_are_refused():
    with pytest.raises(UsageError, match="Expected 3 devices, got 2"):
        Clock(["a", "b", "c"], fleet([1.0, 1.0])[0])
