"""The geometric median against other solvers, its optimality condition, and its breakdown point."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedloom.strategies import DELTA, Full, TensorSpec
from fedloom.strategies.robust import ArrayUpdate, ArrayUpdates, GeometricMedian
from support.robust import vector


def sum_of_distances(at, rows, weights):
    """The objective."""
    return float((weights * np.linalg.norm(rows - at, axis=1)).sum())


def weighted_vector(rows, weights):
    """The median of weighted rows."""
    spec = TensorSpec(shape=(rows.shape[1],), dtype=np.dtype(np.float64))
    updates = ArrayUpdates(
        {(DELTA, "x"): spec},
        {
            f"c{n:03}": ArrayUpdate({(DELTA, "x"): (Full(), row)}, float(weight))
            for n, (row, weight) in enumerate(zip(rows, weights, strict=True))
        },
    )
    means = GeometricMedian().reduce(updates, {})
    assert not means.note
    return means.mean_block((DELTA, "x"), 0, rows.shape[1])[0]


def colluders(count, of, seed=0, dimensions=40, factor=10.0):
    """Honest updates about (1, …, 1), and colluders that send minus `factor` times their mean."""
    rng = np.random.default_rng(seed)
    honest = 1 + 0.3 * rng.normal(size=(of - count, dimensions))
    return np.vstack([np.tile(-factor * honest.mean(axis=0), (count, 1)), honest])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("bad", [0, 3, 7])
def test_it_is_what_a_general_solver_finds(seed, bad):
    """SciPy's BFGS from the coordinates' median, on the objective itself."""
    rows = colluders(bad, 15, seed, dimensions=5)
    weights = np.random.default_rng(seed).integers(1, 3, 15).astype(float)
    weights[:bad] = 1
    weights /= weights.sum()

    def slope(at):
        away = at - rows
        return (weights[:, None] * away / np.linalg.norm(away, axis=1)[:, None]).sum(axis=0)

    start = np.median(rows, axis=0) + 1e-3
    other = minimize(
        sum_of_distances, start, args=(rows, weights), jac=lambda at, *_: slope(at), tol=1e-10
    )
    found = weighted_vector(rows, weights)
    assert sum_of_distances(found, rows, weights) <= other.fun * (1 + 1e-12)
    np.testing.assert_allclose(found, other.x, atol=1e-5)


def test_it_is_weiszfelds_limit_in_fifty_digits():
    """The plain iteration, until it moves less than 1e-25; updates are rounded to 41 bits."""
    rows = colluders(4, 9, dimensions=3)
    with localcontext(prec=50):
        points = [[Decimal(float(x)) for x in row] for row in rows]
        at = [sum(column) / len(points) for column in zip(*points, strict=True)]
        moved = Decimal(1)
        while moved > Decimal("1e-25"):
            pulls = [1 / distance(at, point) for point in points]
            before = at
            at = [
                sum(pull * x for pull, x in zip(pulls, column, strict=True)) / sum(pulls)
                for column in zip(*points, strict=True)
            ]
            moved = distance(at, before)
    expected = [float(a) for a in at]
    np.testing.assert_allclose(vector(GeometricMedian(), rows), expected, atol=1e-12)


def distance(a, b):
    """Between two points in decimal numbers."""
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True)).sqrt()


@given(seed=st.integers(0, 10**6))
@settings(deadline=None)
def test_the_pulls_of_the_points_are_in_balance(seed):
    """Kuhn's condition: unit vectors to the others sum to at most the weight at the minimum.

    Among the cases: few dimensions and many, points on a line, equal points, far points.
    """
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 20))
    rows = rng.normal(size=(n, int(rng.choice([1, 2, 3, 30]))))
    kind = rng.integers(0, 4)
    if kind == 1:
        rows = np.round(rows)
    elif kind == 2:
        rows[: (n - 1) // 2] *= 10.0 ** rng.integers(0, 7)
    elif kind == 3:
        rows *= 10.0 ** -rng.integers(0, 20)  # no absolute length is special
    weights = rng.integers(1, 4, n).astype(float)
    weights /= weights.sum()
    found = weighted_vector(rows, weights)
    size = np.median(np.abs(rows))
    away = np.linalg.norm(rows - found, axis=1)
    at_it = away <= 1e-9 * size
    if at_it.any():
        others = rows[~at_it] - found
        units = others / np.linalg.norm(others, axis=1)[:, None]
        assert np.linalg.norm((weights[~at_it, None] * units).sum(axis=0)) <= (
            weights[at_it].sum() + 1e-6
        )
    else:
        units = (rows - found) / away[:, None]
        assert np.linalg.norm((weights[:, None] * units).sum(axis=0)) <= 1e-6


def test_no_scale_of_updates_is_special():
    """Updates of a norm of 1e-12 have the median of those of norm 1."""
    rows = colluders(3, 9)
    np.testing.assert_allclose(
        vector(GeometricMedian(), rows * 1e-12), vector(GeometricMedian(), rows) * 1e-12, rtol=1e-9
    )


@pytest.mark.parametrize("factor", [1.0, 100.0, 1e4])
def test_seven_colluders_of_fifteen_do_not_turn_it(factor):
    """All send the opposite of the honest mean, many times; a few iterations point their way.

    The bound is proved for any share below a half: Minsker 2015, lemma 2.1, with the distance of
    the farthest honest update.
    """
    rows = colluders(7, 15, factor=factor)
    honest = rows[7:]
    found = vector(GeometricMedian(), rows)
    assert found @ honest.mean(axis=0) > 0
    share = 7 / 15
    constant = (1 - share) / np.sqrt(1 - 2 * share)
    farthest = np.linalg.norm(honest - honest.mean(axis=0), axis=1).max()
    assert np.linalg.norm(found - honest.mean(axis=0)) <= constant * farthest
    at = rows.mean(axis=0)
    for _ in range(32):
        pulls = 1 / np.linalg.norm(rows - at, axis=1)
        at = (pulls / pulls.sum()) @ rows
    assert (at @ honest.mean(axis=0) > 0) == (factor < 100)


def test_two_updates_have_their_middle():
    """Every point between two of equal weight is a minimum, as in the even median of numbers."""
    assert vector(GeometricMedian(), [[1.0, 0], [3, 4]]).tolist() == [2, 2]
    assert vector(GeometricMedian(), [[0.0], [1], [2], [30]]).tolist() == [1.5]


def test_a_limit_that_is_reached_is_noted():
    """With the number that it reached and the settings to change."""
    updates = ArrayUpdates.of({f"c{n}": {"x": row} for n, row in enumerate(colluders(7, 15))})
    note = GeometricMedian(iterations=1).reduce(updates, {}).note
    assert "after 1 iterations" in note
    assert "aggregation.iterations" in note
    assert not GeometricMedian().reduce(updates, {}).note
