import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.protocol.tensors.value_checks import ValueChecker
from fedloom.strategies.privacy import clip, norm

SIZES = st.lists(st.integers(0, 300), min_size=1, max_size=4)


@given(SIZES, st.floats(1e-6, 1e6), st.floats(1e-3, 1e3), st.integers(0, 9))
def test_a_clipped_update_is_always_admitted(sizes, scale, bound, seed):
    """For updates of any size and scale."""
    rng = np.random.default_rng(seed)
    arrays = [(rng.normal(size=n) * scale).astype(np.float32) for n in sizes]
    clipped, within = clip(arrays, bound)
    checker = ValueChecker(np.inf, bound)
    for array in clipped:
        if array.size:
            checker.check("w", array)
    assert checker.norm() <= bound
    assert within == (norm(arrays) <= bound)
    if within:
        assert all(a is b for a, b in zip(arrays, clipped, strict=True))
    else:
        assert norm(clipped) > bound * (1 - 1e-5)


def test_direction_is_kept():
    """Over all tensors together (3-4-12 to 13)."""
    clipped, _ = clip([np.array([3.0, 4.0]), np.array([[12.0]])], 6.5)
    assert np.allclose(clipped[0], [1.5, 2.0], rtol=1e-5)
    assert np.allclose(clipped[1], [[6.0]], rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(bad):
    """NaN has no norm."""
    with pytest.raises(ValueError, match="NaN or infinity"):
        clip([np.array([1.0, bad])], 1.0)
