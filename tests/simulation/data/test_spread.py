"""Statistics and heat maps of a population's partition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.protocol.errors import UsageError
from fedloom.simulation import sources
from fedloom.simulation.data.heatmap import heat_map
from fedloom.simulation.data.statistics import entropies, label_counts, statistics, total_variations


def _population(**settings):
    given_ = {"clients": 4, "test": 0, **settings}
    return sources.load(source="synthetic", seed=1, examples=400, classes=4, **given_)


def test_clients_with_one_class_each_have_the_largest_distance():
    """1 − 1/K, zero bits, one effective class; with equal mixes neither."""
    apart = statistics(_population(partition={"name": "pathological", "classes_per_client": 1}))
    assert (apart.clients, apart.examples, apart.min_size, apart.max_size) == (4, 400, 100, 100)
    assert apart.total_variation == pytest.approx(0.75)
    assert apart.median_entropy_bits == 0
    assert apart.median_effective_classes == 1
    assert apart.median_held_classes == 1
    assert 0 < apart.total_variation_iid < 0.2
    mixes = [[1, 1, 1, 1]] * 4
    alike = statistics(
        _population(clients=None, partition={"name": "distribution", "mixes": mixes})
    )
    assert alike.total_variation == 0
    assert alike.median_entropy_bits == pytest.approx(2)
    assert alike.median_effective_classes == pytest.approx(4)


@given(
    st.lists(
        st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any), min_size=1, max_size=6
    )
)
def test_measures_of_skew_stay_within_their_bounds(rows):
    counts = np.array(rows)
    assert ((total_variations(counts) >= 0) & (total_variations(counts) <= 1)).all()
    assert ((entropies(counts) >= -1e-12) & (entropies(counts) <= np.log(3) + 1e-12)).all()


def test_value_targets_have_sizes_and_no_labels():
    """The table and the picture omit labels."""
    population = sources.from_arrays(np.zeros((6, 2)), np.arange(6.0), clients=2)
    table = statistics(population)
    assert table.total_variation is None
    assert dict(table.rows())["examples"] == "6"
    assert "classes" not in str(table)
    assert heat_map(population).startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="Labels can be counted only"):
        label_counts(population)


def test_targets_of_sequences_are_counted_one_by_one():
    x = np.arange(12).reshape(4, 3) % 5
    population = sources.from_arrays(x, x, clients=2)
    assert label_counts(population).sum() == 12
    assert heat_map(population).startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.parametrize("clients", [1, 4, 41, 400])
def test_a_heat_map_is_a_reproducible_png(clients, tmp_path):
    population = _population(clients=clients)
    path = tmp_path / "map.png"
    png = heat_map(population, path)
    assert path.read_bytes() == png == heat_map(population)
    assert png.startswith(b"\x89PNG")


def test_many_classes_fit():
    population = sources.load(
        source="synthetic",
        seed=1,
        clients=3,
        classes=100,
        examples=500,
        partition={"name": "shards"},
    )
    assert len(heat_map(population)) > 1000
