"""Distances of updates are correct, exact, and independent of the block size."""

import numpy as np
import pytest

from fedloom.strategies.robust import ArrayUpdates
from fedloom.strategies.robust.geometry import _Wide, geometry
from support.robust import LAST, SPECS, ragged


def matrix(rows, **settings):
    """Updates of one tensor, a row each."""
    return ArrayUpdates.of({f"c{n:04}": {"x": row} for n, row in enumerate(rows)}, **settings)


def test_products_equal_numpys():
    """To twelve digits, for any scales of the updates."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(6, 20_000)) * np.array([1, 1e-6, 1e4, 3, 1e-9, 1])[:, None]
    found = geometry(matrix(rows))
    norms = np.linalg.norm(rows, axis=1)
    np.testing.assert_allclose(found.norms, norms, rtol=1e-12)
    np.testing.assert_allclose(
        found.products / np.outer(norms, norms), rows @ rows.T / np.outer(norms, norms), atol=1e-12
    )
    away = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    scale = norms[:, None] ** 2 + norms[None] ** 2
    np.testing.assert_allclose(found.distances() / scale, away / scale, atol=1e-12)


def test_whole_numbers_are_exact():
    """Inner products of integers are exact to the last bit."""
    rng = np.random.default_rng(2)
    rows = rng.integers(-(2**20), 2**20, size=(4, 9000)).astype(np.float64)
    whole = rows.astype(np.int64).astype(object)
    assert geometry(matrix(rows)).products.tolist() == (whole @ whole.T).astype(float).tolist()


def test_equal_updates_are_at_distance_zero():
    """Although distances are computed from products."""
    rng = np.random.default_rng(3)
    row = rng.normal(size=5000)
    found = geometry(matrix([row, row * 1.5, row])).distances()
    assert found[0, 2] == 0
    assert found[0, 1] == pytest.approx(0.25 * row @ row, rel=1e-10)


@pytest.mark.parametrize("block_values", [1, 3, 64, 1 << 16])
def test_the_size_of_blocks_changes_no_bit(block_values):
    """Ragged updates too, and the centre's row."""
    updates = ArrayUpdates(SPECS, ragged())
    expected = geometry(updates, centre=LAST)
    found = geometry(ArrayUpdates(SPECS, ragged(), block_values=block_values), centre=LAST)
    assert found.products.tobytes() == expected.products.tobytes()
    assert found.squares.tobytes() == expected.squares.tobytes()
    assert expected.products.shape == (len(updates.clients) + 1,) * 2
    assert expected.squares[-1] == 15 * 0.25**2


def test_norms_alone_are_those_of_the_products():
    updates = ArrayUpdates(SPECS, ragged())
    whole = geometry(updates)
    assert geometry(updates, with_rows=()).squares.tobytes() == whole.squares.tobytes()
    some = geometry(updates, with_rows=[4])
    assert some.products[:, 0].tobytes() == whole.products[:, 4].tobytes()
    assert np.diagonal(whole.products).tobytes() == whole.squares.tobytes()


def test_sums_exceed_int64():
    """Sixteen million products of 2^40 need more than 63 bits."""
    wide, total = _Wide((2,)), 0
    for _ in range(3000):
        wide.add(np.array([2.0**53 - 1, -(2.0**53) + 1]))
        total += 2**53 - 1
    assert wide.floats().tolist() == [float(total), -float(total)]


def test_empty_updates_have_norm_0():
    """Updates of zeros, and without tensors."""
    assert geometry(matrix(np.zeros((2, 4)))).norms.tolist() == [0, 0]
    assert geometry(ArrayUpdates(SPECS, ragged(0))).norms.tolist() == []
