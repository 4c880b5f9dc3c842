"""Robust rules by hand, on small numbers, and their refusals."""

import numpy as np
import pytest

from fedloom.strategies import DELTA, Full, Mask, TensorSpec, TooFewUpdatesError
from fedloom.strategies.robust import (
    ArrayUpdate,
    ArrayUpdates,
    Bulyan,
    CenteredClipping,
    FLTrust,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NormBounding,
    TrimmedMean,
)
from support.robust import vector


def masked(rows):
    """Updates of one tensor from rows in which None is not covered."""
    size = len(rows[0])
    spec = TensorSpec(shape=(size,), dtype=np.dtype(np.float64))
    updates = {}
    for number, row in enumerate(rows):
        bits = np.array([value is not None for value in row])
        values = np.array([value for value in row if value is not None])
        updates[f"c{number}"] = ArrayUpdate({(DELTA, "x"): (Mask(bits), values)})
    return ArrayUpdates({(DELTA, "x"): spec}, updates)


def block(rule, updates, last=None):
    """The means and the coverage of a vector, as lists."""
    size = updates.specs[DELTA, "x"].size
    mean, there = rule.reduce(updates, last or {}).mean_block((DELTA, "x"), 0, size)
    return mean.tolist(), np.broadcast_to(there, size).tolist()


# ---- rules by coordinate -------------------------------------------------------------------------


def test_median_of_odd_and_even():
    """The middle value, or the mean of the middle two; one huge value changes little."""
    assert vector(Median(), [[1, 5], [2, 9], [1e30, -1e30]]).tolist() == [2, 5]
    assert vector(Median(), [[1], [2], [4], [1e300]]).tolist() == [3]


def test_trimmed_mean_leaves_out_both_ends():
    """A fifth of five is one at each end; of four none."""
    rows = [[1.0], [-1e9], [2], [1e9], [6]]
    assert vector(TrimmedMean(fraction=0.2), rows).tolist() == [3]
    assert vector(TrimmedMean(fraction=0.2), [[1], [2], [3], [6]]).tolist() == [3]
    assert vector(TrimmedMean(fraction=0.4), rows).tolist() == [2]
    assert vector(TrimmedMean(fraction=0), rows).tolist() == [1.8]


def test_a_share_of_whole_clients_is_not_lost_to_rounding():
    """0.29 of a hundred is 29, although the product of floats is just below."""
    rows = [[float(n)] for n in range(100)]
    rows[70] = [1e9]
    wanted = np.mean(sorted(row[0] for row in rows)[29:71])
    assert vector(TrimmedMean(fraction=0.29), rows)[0] == pytest.approx(wanted)


def test_coordinates_are_reduced_over_covering_updates():
    """An update that does not cover a coordinate is absent, not zero."""
    updates = masked([[1, None, 4], [3, None, None], [100, None, 6]])
    assert block(Median(), updates) == ([3, 0, 5], [True, False, True])
    assert block(TrimmedMean(fraction=0.4), updates) == ([3, 0, 5], [True, False, True])


# ---- whole updates -------------------------------------------------------------------------------


def test_krum_takes_the_most_central_update():
    """f=1, n=5: two neighbours count. The scores are 0.05, 0.02, 0.05 and two large ones."""
    rows = [[1.0, 0], [1.1, 0], [1.2, 0], [8, 0], [-7, 0]]
    assert vector(Krum(num_byzantine=1), rows).tolist() == [1.1, 0]


def test_krum_breaks_ties_by_name():
    """Four corners of a square and its copy have equal scores: the first name wins."""
    rows = [[0.0, 0], [0, 1], [1, 0], [1, 1], [0.5, 5]]
    assert vector(Krum(num_byzantine=1), rows).tolist() == rows[0]


def test_multi_krum_is_the_mean_of_the_best():
    """By default n - f - 2 of them, as in a score."""
    rows = [[1.0], [2], [3], [100], [101], [4]]
    # n=6, f=1: three neighbours. Scores: 14, 6, 6, about 28000, about 29000, 14.
    assert vector(MultiKrum(num_byzantine=1), rows).tolist() == [2]
    assert vector(MultiKrum(num_byzantine=1, num_selected=2), rows).tolist() == [2.5]
    assert vector(MultiKrum(num_byzantine=1, num_selected=1), rows).tolist() == [2]


def test_bulyan_worked_by_hand():
    """n=7, f=1: five are chosen by Krum, and each coordinate is a mean of the three middle ones."""
    rows = [[0.0, 3], [1, 3], [2, 3], [3, 3], [4, 30], [1000, 3], [5, 3]]
    found = vector(Bulyan(num_byzantine=1), rows)
    # Of seven, five near each other are chosen: 1000 never, and [4, 30] never.
    assert found.tolist() == [2, 3]


def test_bulyan_with_few_covering_updates():
    """Two of three would leave none, so the one nearest to the median is kept."""
    rows = [[1, 0.0]] * 5 + [[None, 0.0]] * 2
    assert block(Bulyan(num_byzantine=1), masked(rows)) == ([1, 0], [True, True])
    rows = [[None, 0.0]] * 6 + [[7, 0.0]]
    mean, there = block(Bulyan(num_byzantine=1), masked(rows))
    assert mean[1] == 0
    assert (mean[0], there[0]) in [(7, True), (0, False)]


def test_updates_that_are_not_chosen_cover_nothing():
    """A coordinate that no chosen update covers keeps its value."""
    updates = masked([[1, None], [1, None], [1, None], [50, 9], [1, None]])
    assert block(Krum(num_byzantine=1), updates) == ([1, 0], [True, False])


def test_distances_take_missing_values_as_zero():
    """An update that covers less is nearer to the origin, not to all others."""
    rows = [[0.1, None], [0.1, 9], [0.1, 9], [0.1, 9], [0.1, 9]]
    assert block(Krum(num_byzantine=1), masked(rows)) == ([0.1, 9], [True, True])


# ---- the geometric median ------------------------------------------------------------------------


def test_geometric_median_of_a_triangle_is_fermats_point():
    """In an equilateral triangle it is the centre; it minimises the sum of distances."""
    corners = np.array([[0, 0], [1, 0], [0.5, np.sqrt(3) / 2]])
    found = vector(GeometricMedian(), corners)
    np.testing.assert_allclose(found, [0.5, np.sqrt(3) / 6], atol=1e-12)


def test_geometric_median_stays_with_the_majority():
    """Three of five at one point determine it, for any two others."""
    rows = [[1.0, 1]] * 3 + [[1e6, 0], [0, -1e6]]
    assert vector(GeometricMedian(), rows).tolist() == [1, 1]


def test_geometric_median_counts_by_weight():
    """On a line it is the weighted median: the one with more than half of the weight."""
    spec = {(DELTA, "x"): TensorSpec(shape=(1,), dtype=np.dtype(np.float64))}
    updates = ArrayUpdates(
        spec,
        {
            name: ArrayUpdate({(DELTA, "x"): (Full(), np.array([value]))}, weight)
            for name, value, weight in [("a", 0.0, 1), ("b", 1.0, 1), ("c", 5.0, 3)]
        },
    )
    assert block(GeometricMedian(), updates)[0] == [5]


# ---- clipping ------------------------------------------------------------------------------------


def test_centered_clipping_by_hand():
    """From 1, with radius 2: differences 1, 9 and -5 become 1, 2 and -2, a third of each."""
    rows = [[2.0], [10], [-4]]
    assert vector(CenteredClipping(radius=2), rows, last=[1.0])[0] == pytest.approx(1 + 1 / 3)
    assert vector(CenteredClipping(radius=2), rows)[0] == pytest.approx((2 + 2 - 2) / 3)


def test_two_iterations_of_centered_clipping_by_hand():
    """The second starts at the result of the first."""
    rows, v = [[2.0, 0], [10, 1], [-4, 3]], np.array([1.0, 1])
    for _ in range(2):
        away = np.array(rows) - v
        factors = np.minimum(1, 2 / np.linalg.norm(away, axis=1))
        v = v + (away * factors[:, None]).mean(axis=0)
    found = vector(CenteredClipping(radius=2, iterations=2), rows, last=[1.0, 1])
    np.testing.assert_allclose(found, v, rtol=1e-12)


def test_centered_clipping_follows_the_median_distance():
    """Without a radius the longer half is cut to the middle one: 1, 2 and 2 thirds."""
    assert vector(CenteredClipping(), [[1.0], [2], [1e9]])[0] == pytest.approx(5 / 3)


def test_norm_bounding_by_hand():
    """Norms 5, 10 and 1 under a bound of 5; by default their median, which is 5 as well."""
    rows = [[3.0, 4], [6, -8], [1, 0]]
    for rule in (NormBounding(bound=5), NormBounding()):
        np.testing.assert_allclose(vector(rule, rows), [(3 + 3 + 1) / 3, 0], atol=1e-15)


# ---- trust ---------------------------------------------------------------------------------------


def test_fltrust_by_hand():
    """Trusted (2, 0): one at 45 degrees counts by cos 45, an opposite one not at all."""
    rows = [[2.0, 0], [5, 5], [-9, 0], [0, 1]]
    found = vector(FLTrust(trusted="c0"), rows)
    np.testing.assert_allclose(found, [2 * np.sqrt(0.5)] * 2, rtol=1e-12)
    rows[3] = [7, 0]
    c = np.sqrt(0.5)
    np.testing.assert_allclose(
        vector(FLTrust(trusted="c0"), rows), [(c * 2 * c + 2) / (1 + c), c * 2 * c / (1 + c)]
    )


def test_fltrust_falls_back_to_its_own_update():
    """If the trusted update is alone, or all others oppose it."""
    assert vector(FLTrust(trusted="c0"), [[2.0, 1]]).tolist() == [2, 1]
    assert vector(FLTrust(trusted="c1"), [[-2.0, 0], [1, 0]]).tolist() == [1, 0]


def test_fltrust_needs_its_trusted_update():
    """Otherwise the round fails, with the client's name."""
    with pytest.raises(TooFewUpdatesError, match="trusted client 'nobody' for fltrust"):
        vector(FLTrust(trusted="nobody"), [[1.0]])


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "least"),
    [
        (Krum(num_byzantine=0), 3),
        (Krum(num_byzantine=2), 7),
        (MultiKrum(num_byzantine=1, num_selected=9), 9),
        (Bulyan(num_byzantine=2), 11),
    ],
)
def test_too_few_updates_are_refused(rule, least):
    """With one fewer than in the paper the round fails; the message has both numbers."""
    rows = np.arange(2.0 * least).reshape(least, 2)
    assert rule.min_updates == least
    vector(rule, rows)
    with pytest.raises(TooFewUpdatesError, match=f"at least {least} updates for {rule.name}, got"):
        vector(rule, rows[1:])


@pytest.mark.parametrize(
    ("build", "settings", "error", "message"),
    [
        (TrimmedMean, {"fraction": 0.5}, ValueError, "fraction >= 0 and < 0.5, got 0.5"),
        (TrimmedMean, {"fraction": "a"}, TypeError, "fraction to be a number"),
        (Krum, {"num_byzantine": -1}, ValueError, "num_byzantine >= 0, got -1"),
        (Krum, {"num_byzantine": 1.0}, TypeError, "num_byzantine to be a whole number"),
        (MultiKrum, {"num_byzantine": 1, "num_selected": 0}, ValueError, "num_selected >= 1"),
        (Bulyan, {"num_byzantine": -1}, ValueError, "num_byzantine >= 0"),
        (GeometricMedian, {"iterations": 0}, ValueError, "iterations >= 1"),
        (GeometricMedian, {"tolerance": 0}, ValueError, "tolerance > 0"),
        (CenteredClipping, {"radius": 0}, ValueError, "radius > 0"),
        (CenteredClipping, {"iterations": 0}, ValueError, "iterations >= 1"),
        (NormBounding, {"bound": -1}, ValueError, "bound > 0"),
        (FLTrust, {"trusted": ""}, TypeError, "trusted to be a client's name"),
    ],
)
def test_settings_out_of_range_are_refused(build, settings, error, message):
    with pytest.raises(error, match=message):
        build(**settings)
