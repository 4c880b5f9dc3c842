"""Partitions use every example, repeat for a seed, and have the requested skew."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.protocol.errors import UsageError
from fedloom.simulation import partition

labels_of = st.lists(st.integers(0, 5), min_size=12, max_size=200).map(np.array)


def _ids(split):
    return sorted(np.concatenate(split.shards).tolist())


@given(
    labels=labels_of,
    num_clients=st.integers(1, 6),
    alpha=st.floats(0.3, 1e3),
    seed=st.integers(0, 2**64),
)
def test_dirichlet_shards_hold_every_example_exactly_once(labels, num_clients, alpha, seed):
    split = partition.dirichlet(labels, num_clients=num_clients, alpha=alpha, seed=seed, min_size=0)
    assert _ids(split) == list(range(len(labels)))
    assert np.allclose(split.shares.sum(axis=0), 1)
    again = partition.dirichlet(labels, num_clients=num_clients, alpha=alpha, seed=seed, min_size=0)
    assert all(map(np.array_equal, split.shards, again.shards))


@given(labels=labels_of, num_clients=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_iid_shards_hold_every_example_once_in_even_sizes(labels, num_clients, seed):
    """Sizes differ by at most one."""
    split = partition.iid(labels, num_clients=num_clients, seed=seed)
    sizes = [len(shard) for shard in split.shards]
    assert _ids(split) == list(range(len(labels)))
    assert max(sizes) - min(sizes) <= 1
    assert split.counts(labels).sum() == len(labels)


@given(labels=labels_of, seed=st.integers(0, 2**32))
def test_held_out_examples_follow_the_shares(labels, seed):
    """Every example is used once, and each client's count is its share, rounded."""
    split = partition.dirichlet(np.arange(60) % 6, num_clients=4, alpha=0.5, seed=seed)
    followed = partition.follow(split, labels, seed=seed)
    assert _ids(followed) == list(range(len(labels)))
    wanted = split.shares * np.bincount(labels, minlength=6)
    assert np.abs(followed.counts(labels) - wanted).max() <= 1


def test_small_alpha_skews_more_than_large_alpha():
    """Few labels per client at 0.05; nearly equal shares at 10,000."""
    labels = np.arange(10_000) % 10
    counts = {
        alpha: partition.dirichlet(labels, num_clients=8, alpha=alpha, seed=0).counts(labels)
        for alpha in (0.05, 10_000.0)
    }
    assert np.median(np.count_nonzero(counts[0.05] > 20, axis=1)) <= 4
    assert np.abs(counts[10_000.0] - 125).max() < 10


def test_draws_below_the_smallest_size_are_repeated():
    labels = np.arange(500) % 10
    for seed in range(20):
        split = partition.dirichlet(labels, num_clients=8, alpha=0.5, seed=seed, min_size=25)
        assert min(map(len, split.shards)) >= 25


def test_an_unlikely_split_is_refused_with_advice():
    labels = np.zeros(100, dtype=np.int64)
    with pytest.raises(UsageError, match="Raise alpha"):
        partition.dirichlet(labels, num_clients=10, alpha=0.001, seed=0, min_size=5, max_tries=20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_clients": 0}, "num_clients >= 1"),
        ({"alpha": 0.0}, "alpha > 0"),
        ({"alpha": float("nan")}, "alpha > 0"),
        ({"alpha": float("inf")}, "alpha > 0"),
        ({"min_size": -1}, "min_size >= 0"),
        ({"min_size": 4}, "at least 4 examples for each of 3 clients, got 10"),
        ({"labels": np.array([], dtype=np.int64)}, "at least one"),
        ({"labels": np.array([0, -1])}, "from 0"),
    ],
)
def test_impossible_arguments_are_refused(arguments, message):
    given = {"labels": np.arange(10), "num_clients": 3, "alpha": 0.5, "seed": 0, **arguments}
    with pytest.raises(UsageError, match=message):
        partition.dirichlet(given.pop("labels"), **given)


def test_labels_of_other_classes_are_refused():
    split = partition.iid(np.array([0, 1]), num_clients=2, seed=0)
    with pytest.raises(UsageError, match="from 0 to 1, got"):
        partition.follow(split, np.array([2]), seed=0)
