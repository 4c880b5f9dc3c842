"""Partitioners use every example at most once, repeat for a seed, and follow their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.protocol.errors import UsageError
from fedloom.simulation import partition
from fedloom.simulation.data.population import Examples, Population, numbered
from fedloom.simulation.partition import PARTITIONERS, ExamplePool, base, by_property, shift

NUM_CLASSES = 4
COMPLETE = {
    "iid": {},
    "linear": {},
    "square": {},
    "exponential": {"rate": 0.3},
    "power-law": {"exponent": 1.2},
    "dirichlet": {"alpha": 5.0},
    "inner-dirichlet": {"alpha": 0.3},
    "pathological": {"classes_per_client": 2},
    "shards": {},
    "natural": {},
    "grouped-natural": {},
    "continuous": {"strictness": 0.7},
    "feature-shift": {"kind": "contrast"},
}
"""Partitioners that use every example, with settings for small pools."""
PARTIAL = {
    "sizes": {"sizes": [3, 5, 2]},
    "distribution": {"mixes": [[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 2]]},
    "inner-dirichlet": {"sizes": [10, 4, 6]},
    "grouped-natural": {"group_size": 2, "remainder": "drop"},
    "natural": {"min_size": 10},
    "pathological": {"classes_per_client": 1, "assignment": "random"},
}
"""Partitioners that may not use some examples."""


def _pool(num_examples=120, *, seed=0, clients=3, num_owners=6, **changes):
    numbers = np.arange(num_examples)
    x = np.stack([numbers, numbers % 7], axis=1).astype(np.float32)
    given = {
        "examples": Examples(x=x, y=numbers * 5 % NUM_CLASSES),
        "seed": seed,
        "clients": clients,
        "num_classes": NUM_CLASSES,
        "owners": numbers % num_owners,
        **changes,
    }
    return ExamplePool(**given)


def _deal(name, pool, **settings):
    return partition.split(pool, {"name": name, **settings})


def _labels(pool, split):
    return [sorted(set(pool.examples.y[shard].tolist())) for shard in split.shards]


def _sizes(split):
    return [len(shard) for shard in split.shards]


def test_every_partitioner_is_among_those_tested():
    """A new partitioner must be added above."""
    assert COMPLETE.keys() | PARTIAL.keys() == PARTITIONERS.keys()


@pytest.mark.long
@pytest.mark.parametrize("name", COMPLETE)
@given(
    num_examples=st.integers(60, 200),
    clients=st.integers(2, 5),
    num_owners=st.integers(5, 9),
    seed=st.integers(0, 2**64),
)
def test_every_example_is_in_exactly_one_shard(name, num_examples, clients, num_owners, seed):
    """Shards ascend, none is empty, and they make a population."""
    if name == "natural":
        clients = None
    pool = _pool(num_examples, seed=seed, clients=clients, num_owners=num_owners)
    split = _deal(name, pool, **COMPLETE[name])
    assert sorted(np.concatenate(split.shards).tolist()) == list(range(num_examples))
    assert all((np.diff(shard) > 0).all() for shard in split.shards)
    assert len(split.shards) == (clients or num_owners)
    names = split.names or numbered(len(split.shards))
    population = Population(examples=pool.examples, names=names, shards=split.shards)
    assert population.sizes.sum() == num_examples


@pytest.mark.long
@pytest.mark.parametrize("name", PARTIAL)
@given(num_examples=st.integers(60, 200), seed=st.integers(0, 2**64))
def test_no_example_is_in_two_shards(name, num_examples, seed):
    clients = 3 if name == "pathological" else None
    split = _deal(name, _pool(num_examples, seed=seed, clients=clients), **PARTIAL[name])
    dealt = np.concatenate(split.shards)
    assert len(set(dealt.tolist())) == len(dealt) <= num_examples
    assert all((np.diff(shard) > 0).all() for shard in split.shards)


@pytest.mark.parametrize(("name", "settings"), [*COMPLETE.items(), *PARTIAL.items()])
def test_the_seed_determines_the_shards(name, settings):
    """The same seed repeats the shards; another seed changes them if anything is drawn."""
    clients = None if name in PARTIAL and settings is PARTIAL[name] else 3
    clients = 3 if name == "pathological" else clients
    first, again, other = (
        _deal(name, _pool(seed=seed, clients=clients), **settings) for seed in (1, 1, 2)
    )
    assert all(map(np.array_equal, first.shards, again.shards))
    if not (name == "natural" and clients is None):
        assert not all(map(np.array_equal, first.shards, other.shards))


def test_the_default_split_is_by_owner_or_even():
    assert len(partition.split(_pool(clients=None)).shards) == 6
    assert _sizes(partition.split(_pool(owners=None))) == [40, 40, 40]


@pytest.mark.parametrize(
    ("name", "settings", "sizes"),
    [
        ("linear", {}, [10, 20, 30, 40]),
        ("square", {}, [3, 13, 30, 54]),
        ("exponential", {"rate": np.log(2.0).item()}, [7, 13, 27, 53]),
        ("power-law", {}, [47, 24, 16, 13]),
        ("power-law", {"exponent": 2, "min_size": 10}, [52, 20, 15, 13]),
        ("sizes", {"sizes": [1, 2, 3, 4]}, [1, 2, 3, 4]),
        ("inner-dirichlet", {"sizes": [70, 10, 10, 10]}, [70, 10, 10, 10]),
    ],
)
def test_sizes_follow_their_formula(name, settings, sizes):
    """Largest remainder is at most one example off."""
    split = _deal(name, _pool(100, clients=4), **settings)
    assert _sizes(split) == sizes


@given(total=st.integers(0, 500), weights=st.lists(st.floats(0.01, 10), min_size=1, max_size=9))
def test_a_total_is_apportioned_exactly(total, weights):
    """Each part is its quota, rounded down or up."""
    weights = np.array(weights)
    sizes = base.apportion(total, weights)
    assert sizes.sum() == total
    assert (np.abs(sizes - weights / weights.sum() * total) < 1).all()


@pytest.mark.parametrize("assignment", ["balanced", "random", "deterministic"])
@given(clients=st.integers(1, 12), k=st.integers(1, NUM_CLASSES), seed=st.integers(0, 2**32))
def test_pathological_clients_have_exactly_k_classes(assignment, clients, k, seed):
    pool = _pool(200, clients=clients, seed=seed)
    split = _deal("pathological", pool, classes_per_client=k, assignment=assignment)
    assert {len(labels) for labels in _labels(pool, split)} == {k}
    if assignment == "balanced":
        holders = np.bincount(np.concatenate(_labels(pool, split)), minlength=NUM_CLASSES)
        assert holders.max() - holders.min() <= 1


def test_shards_leave_most_clients_two_labels():
    """McMahan's split: 2·C shards of one label, or two where a cut falls within them."""
    pool = _pool(1200, clients=10)
    split = _deal("shards", pool)
    assert _sizes(split) == [120] * 10
    assert max(map(len, _labels(pool, split))) <= 4
    assert np.mean(list(map(len, _labels(pool, split)))) <= 2.5


@given(alpha=st.floats(0.01, 100), clients=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_inner_dirichlet_keeps_even_sizes_for_any_mix(alpha, clients, seed):
    split = _deal("inner-dirichlet", _pool(100, clients=clients, seed=seed), alpha=alpha)
    assert max(_sizes(split)) - min(_sizes(split)) <= 1
    assert sum(_sizes(split)) == 100


def test_inner_dirichlet_mixes_have_the_requested_skew():
    """About one label per client at 0.01, equal mixes at 10,000; one alpha per class works."""
    pool = _pool(4000, clients=4)
    skewed = _deal("inner-dirichlet", pool, alpha=0.01, sizes=[200] * 4)
    even = _deal("inner-dirichlet", pool, alpha=10_000, sizes=[200] * 4)
    for split, low, high in ((skewed, 0.9, 1.0), (even, 0.2, 0.4)):
        top = [np.bincount(pool.examples.y[shard]).max() / 200 for shard in split.shards]
        assert low <= np.median(top) <= high
    shaped = _deal("inner-dirichlet", pool, alpha=[1000.0, 1.0, 1.0, 1.0], sizes=[200] * 4)
    assert all(np.mean(pool.examples.y[shard] == 0) > 0.9 for shard in shaped.shards)


@given(
    mixes=st.lists(
        st.lists(st.integers(0, 5), min_size=4, max_size=4).filter(any), min_size=1, max_size=5
    )
)
def test_a_distribution_is_met_to_one_example(mixes):
    """Each client's count of a class is its row's share of its size, rounded."""
    pool = _pool(400, clients=None)
    split = _deal("distribution", pool, mixes=mixes)
    assert len(set(_sizes(split))) == 1
    for row, shard in zip(mixes, split.shards, strict=True):
        counts = np.bincount(pool.examples.y[shard], minlength=4)
        assert np.abs(counts - np.array(row) / sum(row) * len(shard)).max() < 1


def test_a_distribution_with_too_large_sizes_is_refused():
    pool = _pool(100, clients=None)
    split = _deal("distribution", pool, mixes=[[1, 1, 0, 0], [0, 0, 0, 1]], sizes=[20, 7])
    assert _sizes(split) == [20, 7]
    with pytest.raises(UsageError, match="at most 25 examples of class 3, got 26"):
        _deal("distribution", pool, mixes=[[1, 1, 0, 0], [0, 0, 0, 1]], sizes=[20, 26])


def test_natural_clients_are_the_owners_by_name():
    owners = np.array(["Zoë B.", "a c", "a c", "MARIA"])
    pool = _pool(4, clients=None, owners=owners)
    split = _deal("natural", pool)
    assert list(split.names) == ["MARIA", "Zo-B", "a-c"]
    assert [shard.tolist() for shard in split.shards] == [[3], [0], [1, 2]]
    assert by_property.client_names(["a b", "a-b"]) is None
    assert by_property.client_names(["…"]) is None
    assert _deal("natural", _pool(4, clients=None, owners=np.array([0, 12, 3, 3]))).names == [
        "client-00",
        "client-03",
        "client-12",
    ]


def test_fewer_natural_clients_are_drawn_from_the_owners():
    pool = _pool(120, clients=2, num_owners=6)
    split = _deal("natural", pool)
    assert _sizes(split) == [20, 20]
    for shard in split.shards:
        assert len(set(pool.owners[shard].tolist())) == 1


@pytest.mark.parametrize(
    ("settings", "clients", "groups"),
    [
        ({}, 3, [3, 2, 2]),
        ({"group_size": 3}, None, [3, 3, 1]),
        ({"group_size": 3, "remainder": "bigger"}, None, [4, 3]),
        ({"group_size": 3, "remainder": "drop"}, None, [3, 3]),
        ({"group_size": 7}, 1, [7]),
    ],
)
def test_owners_are_grouped_whole(settings, clients, groups):
    pool = _pool(140, clients=clients, num_owners=7)
    split = _deal("grouped-natural", pool, **settings)
    held = [set(pool.owners[shard].tolist()) for shard in split.shards]
    assert [len(owners) for owners in held] == groups
    assert len(set.union(*held)) == sum(groups)


def test_strictness_goes_from_iid_to_sorted():
    """At 1 the clients' ranges do not overlap; at 0 they are random."""
    pool = _pool(300, clients=3)
    strict = _deal("continuous", pool, by=0)
    assert [shard.tolist() for shard in strict.shards] == np.arange(300).reshape(3, 100).tolist()
    loose = _deal("continuous", pool, by=0, strictness=0.0)
    means = [pool.examples.x[shard, 0].mean() for shard in loose.shards]
    assert np.ptp(means) < 50


def test_properties_of_inputs_are_measured():
    x = np.array([[3.0, 4.0], [0.0, 2.0]], np.float32)
    pool = _pool(2, examples=Examples(x=x, y=np.array([1, 0])), columns=("age", "height"))
    for by, expected in (
        ("mean", [3.5, 1.0]),
        ("norm", [5.0, 2.0]),
        ("deviation", [0.5, 1.0]),
        ("target", [1.0, 0.0]),
        ("height", [4.0, 2.0]),
        (0, [3.0, 0.0]),
    ):
        assert by_property.measured(pool, by).tolist() == pytest.approx(expected)


def test_feature_shift_changes_only_inputs():
    """The pool's own array is not changed; noise grows from client to client."""
    generator = np.random.default_rng(0)
    x = generator.random((300, 1, 4, 4), np.float32)
    pool = _pool(300, examples=Examples(x=x.copy(), y=np.arange(300) % 4))
    split = _deal("feature-shift", pool, kind="noise", amount=1.0)
    assert np.array_equal(pool.examples.x, x)
    assert split.examples.y is pool.examples.y
    variances = [float((split.examples.x[s] - x[s]).var()) for s in split.shards]
    assert variances == pytest.approx([1 / 3, 2 / 3, 1.0], rel=0.1)
    grouped = _deal("feature-shift", pool, kind="contrast", amount=0.5, groups=2)
    factors = [float((grouped.examples.x[s] / x[s]).mean()) for s in grouped.shards]
    assert factors == pytest.approx([0.75, 1.25, 0.75], rel=1e-5)


@given(height=st.integers(2, 6), width=st.integers(2, 6), seed=st.integers(0, 100))
def test_quarter_turns_are_exact(height, width, seed):
    """Rotation by 90° is numpy's; by 360° nothing changes."""
    x = np.random.default_rng(seed).random((2, 3, height, width), np.float32)
    assert np.allclose(shift.rotated(x, 360.0), x, atol=1e-6)
    assert np.allclose(shift.rotated(x, 180.0), np.rot90(x, 2, axes=(2, 3)), atol=1e-6)
    square = x[:, :, : min(height, width), : min(height, width)]
    assert np.allclose(shift.rotated(square, 90.0), np.rot90(square, 1, axes=(2, 3)), atol=1e-6)


def test_a_rotation_turns_each_client_by_its_own_angle():
    x = np.random.default_rng(0).random((40, 1, 5, 5), np.float32)
    pool = _pool(40, clients=4, examples=Examples(x=x, y=np.arange(40) % 4))
    split = _deal("feature-shift", pool, kind="rotation")
    for quarter, shard in enumerate(split.shards):
        turned = np.rot90(x[shard], quarter, axes=(2, 3))
        assert np.allclose(split.examples.x[shard], turned, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "changes", "settings", "message"),
    [
        ("iid", {"clients": None}, {}, "Set clients"),
        ("iid", {"clients": 0}, {}, "to 120 clients, .* got 0"),
        ("iid", {"clients": 121}, {}, "to 120 clients, .* got 121"),
        ("linear", {"clients": 119}, {}, "'linear' leaves 29 of 119 clients without"),
        ("exponential", {"clients": 40}, {}, "Lower rate"),
        ("exponential", {}, {"rate": 0}, "rate > 0"),
        ("power-law", {}, {"min_size": 41}, "at least 41 examples for each of 3"),
        ("power-law", {}, {"exponent": float("inf")}, "exponent > 0"),
        ("sizes", {}, {"sizes": [1]}, "each of 3 clients, got 1"),
        ("sizes", {"clients": None}, {"sizes": [100, 21]}, "at most 120 examples, got .* 121"),
        ("sizes", {"clients": None}, {"sizes": [3, 0]}, "from 0 to 3"),
        ("sizes", {}, {}, "Missing setting data.partition.sizes of sizes"),
        ("dirichlet", {"clients": 100}, {"alpha": 0.001, "max_tries": 5}, "Raise alpha"),
        ("dirichlet", {}, {"alpha": -1}, "alpha > 0"),
        ("dirichlet", {}, {"alpha": "much"}, 'alpha of dirichlet as a number, got "much"'),
        ("dirichlet", {}, {"alpah": 1}, "'data.partition.alpah' of dirichlet. Did you mean"),
        ("dirichlet", {"num_classes": None}, {}, "one class number for each example"),
        ("inner-dirichlet", {}, {"alpha": [1.0]}, "each of 4 classes, got 1"),
        ("inner-dirichlet", {}, {"sizes": [1, 2]}, "each of 3 clients, got 2"),
        ("pathological", {}, {"classes_per_client": 5}, "classes_per_client <= 4"),
        ("pathological", {"clients": 100}, {}, "at least 50 examples of class"),
        ("pathological", {}, {"assignment": "any"}, '"balanced" or "random" or "deterministic"'),
        ("shards", {}, {"shards_per_client": 41}, "at least 123 examples"),
        ("shards", {}, {"shards_per_client": 0}, "shards_per_client >= 1"),
        ("natural", {"owners": None}, {}, "needs the owner of each example"),
        ("natural", {"clients": 7}, {}, "from 1 to 6 clients"),
        (
            "natural",
            {"clients": None},
            {"min_size": 21},
            "min_size = 21 examples; the largest has 20",
        ),
        ("grouped-natural", {"clients": 7}, {}, "from 1 to 6 clients"),
        ("grouped-natural", {"clients": 2}, {"group_size": 2}, "2 clients, got 3 groups"),
        ("continuous", {}, {"by": "hue"}, "got 'hue'. Known: deviation, mean"),
        ("continuous", {}, {"by": 2}, "column from 0 to 1, got 2"),
        ("continuous", {}, {"strictness": 1.5}, "strictness from 0 to 1"),
        ("distribution", {}, {"mixes": [[1, 1, 1, 1]]}, "mixes of 3 clients by 4 classes"),
        ("distribution", {"clients": None}, {"mixes": [[1, 1]]}, "by 4 classes, got 1 by 2"),
        ("distribution", {}, {"mixes": [[1, 1, 0, 0], [1]]}, "rows of equal length"),
        ("distribution", {}, {"mixes": [[0, 0, 0, 0]]}, "a sum above 0"),
        ("distribution", {}, {"mixes": [["a"]]}, "mixes of distribution as a list"),
        ("feature-shift", {}, {"kind": "rotation"}, "images of shape"),
        ("feature-shift", {}, {"amount": 0}, "amount > 0"),
        ("dirichle", {}, {}, "Did you mean 'dirichlet'. Known: continuous, "),
    ],
)
def test_impossible_splits_are_refused_with_advice(name, changes, settings, message):
    with pytest.raises(UsageError, match=message):
        _deal(name, _pool(**changes), **settings)


def test_a_property_that_is_the_same_for_all_is_refused():
    pool = _pool(10, examples=Examples(x=np.ones((10, 2), np.float32), y=np.zeros(10, np.int64)))
    with pytest.raises(UsageError, match="not constant"):
        _deal("continuous", pool)


def test_a_thousand_clients_share_one_array_of_indices():
    split = _deal("dirichlet", _pool(60_000, clients=1000), alpha=1.0)
    bases = {id(shard.base) for shard in split.shards}
    assert len(bases) == 1
