"""The best approximation of lower rank, against numpy's singular values."""

import numpy as np
import pytest

from fedloom.strategies.adapters.truncation import leading
from support.adapters import best_error


@pytest.mark.parametrize(
    "shape",
    [(5, 9), (9, 5), (40, 40), (300, 400), pytest.param((400, 300), marks=pytest.mark.long)],
)
@pytest.mark.parametrize("spectrum", ["random", "falling", "low rank", "zero"])
def test_the_error_is_the_least_possible(shape, spectrum):
    """Equal to what all smaller singular values leave, in each kind of spectrum."""
    rng = np.random.default_rng(1)
    matrix = rng.normal(size=shape)
    if spectrum == "falling":
        u, s, v = np.linalg.svd(matrix, full_matrices=False)
        matrix = (u * 0.7 ** np.arange(len(s))) @ v
    if spectrum == "low rank":
        matrix = rng.normal(size=(shape[0], 3)) @ rng.normal(size=(3, shape[1]))
    if spectrum == "zero":
        matrix = np.zeros(shape)
    left, right = leading(matrix, 4)
    assert left.shape == (shape[0], 4)
    assert right.shape == (4, shape[1])
    error, best = np.linalg.norm(matrix - left @ right), best_error(matrix, 4)
    assert error <= best * (1 + 1e-4) + 1e-12 * np.linalg.norm(matrix)


@pytest.mark.parametrize("shape", [(30, 40), (300, 290)])
def test_leading_ranks_are_the_best_of_a_lower_rank(shape):
    """A client of rank 2 gets the best approximation of rank 2, with rows of length 1."""
    rng = np.random.default_rng(2)
    u, s, v = np.linalg.svd(rng.normal(size=shape), full_matrices=False)
    matrix = (u * 0.8 ** np.arange(len(s))) @ v
    left, right = leading(matrix, 5)
    error = np.linalg.norm(matrix - left[:, :2] @ right[:2])
    assert error <= best_error(matrix, 2) * (1 + 1e-6)
    np.testing.assert_allclose(right @ right.T, np.eye(5), atol=1e-10)


def test_the_same_matrix_gives_the_same_bits():
    """Also as another array, and with the sign of no singular vector open."""
    matrix = np.random.default_rng(3).normal(size=(280, 300))
    one, two = leading(matrix, 3), leading(np.array(matrix), 3)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    largest = np.abs(one[1]).argmax(axis=1)
    assert (one[1][np.arange(3), largest] > 0).all()
