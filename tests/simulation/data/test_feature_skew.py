"""The distance of inputs: against its formula, and for each kind of feature shift."""

import numpy as np
import pytest

from fedloom.simulation import sources
from fedloom.simulation.data.feature_skew import distances
from fedloom.simulation.data.statistics import statistics


def test_distances_follow_the_formula():
    """Two clients of two features, by hand: means 0 and 2, deviations 1 and 1; all: 1 and √2."""
    x = np.array([[-1, 5], [1, 5], [1, 5], [3, 5]], np.float32)
    population = sources.from_arrays(x, np.array([0, 1, 0, 1]), owners=np.array([0, 0, 1, 1]))
    own, _ = distances(population)
    np.testing.assert_allclose(own, np.sqrt((1 + (1 - np.sqrt(2)) ** 2) / 2) * np.ones(2))


@pytest.mark.parametrize("kind", ["noise", "contrast", "rotation"])
def test_every_kind_of_feature_shift_is_seen(kind):
    """More than a random split, which labels do not show."""
    partition = {"name": "feature-shift", "kind": kind}
    shifted = statistics(sources.load(source="digits", seed=1, clients=10, partition=partition))
    assert shifted.feature_distance > 1.5 * shifted.feature_distance_iid
    assert shifted.total_variation < 1.2 * shifted.total_variation_iid
    even = statistics(sources.load(source="digits", seed=1, clients=10))
    assert even.feature_distance == pytest.approx(even.feature_distance_iid, rel=0.15)


def test_tokens_have_no_distance_and_places_without_a_target_are_not_counted():
    """A language model's padding has the target −100."""
    x, y = np.ones((4, 3), np.int64), np.array([[0, 1, 1]] * 4)
    population = sources.from_arrays(x, y, clients=2)
    population.examples.y[:, 2] = -100
    found = statistics(population)
    assert found.feature_distance is None
    assert found.median_held_classes == 2
