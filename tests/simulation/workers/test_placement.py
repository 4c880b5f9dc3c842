"""The order of training; it changes no result, only the waiting time of workers."""

import numpy as np

from fedloom.simulation.kernels.base import ClientJob, Measurement
from fedloom.simulation.workers.base import Report
from fedloom.simulation.workers.placement import TimeModel, grouped, longest_first

SIZES = np.array([5, 40, 10, 40, 20])


def report(client, seconds):
    return Report(client, Measurement(), Measurement(), seconds)


def test_groups_follow_from_the_jobs_alone():
    """Clients of similar size are together, for any order of jobs."""
    jobs = [ClientJob(client, client) for client in range(5)]
    for order in (jobs, jobs[::-1]):
        groups = grouped(order, SIZES, 2)
        assert [[job.client for job in group] for group in groups] == [[1, 3], [4, 2], [0]]


def test_the_largest_clients_come_first_without_measurements():
    groups = grouped([ClientJob(client, 0) for client in range(5)], SIZES, 1)
    ordered = longest_first(groups[::-1], TimeModel(SIZES))
    assert [group[0].client for group in ordered][2:] == [4, 2, 0]


def test_the_slowest_clients_come_first_after_measurements():
    """A small but slow client comes first; a new client is placed by its size."""
    model = TimeModel(SIZES)
    model.observe([report(0, 9.0), report(1, 4.1), report(2, 1.1)])
    seconds = model.predict(range(5))
    assert seconds[0] == 9.0
    assert np.argmax(seconds) == 0
    straight = TimeModel(SIZES)
    straight.observe([report(1, 4.1), report(2, 1.1)])
    np.testing.assert_allclose(straight.predict([4])[0], 2.1)  # 0.1 + 0.1 an example


def test_after_clients_of_one_size_others_are_placed_in_proportion():
    model = TimeModel(SIZES)
    model.observe([report(1, 3.0), report(3, 5.0)])  # 40 examples each
    np.testing.assert_allclose(model.predict([4, 0, 2]), [2.0, 0.5, 1.0])
