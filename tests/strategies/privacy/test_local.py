import math

import numpy as np

from fedloom.strategies.privacy import add_noise, clip, norm, norm_bound
from support.streams import hashed


def noisy(arrays, key="device", **changes):
    settings = {"clip_norm": 1.0, "noise_multiplier": 2.0, "round": 1, **changes}
    return add_noise(arrays, **settings, stream=hashed(key))


def update(size=4000, seed=0):
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(size // 2, 2)).astype(np.float32), np.zeros(3, np.float32)]
    return clip(arrays, 1.0)[0]


def test_noise_has_the_claimed_deviation():
    """z·C per coordinate, for large and small values."""
    arrays = update()
    error = noisy(arrays)[0] - arrays[0]
    assert abs(error.std() / 2.0 - 1) < 5 / math.sqrt(2 * 4000)


def test_values_are_whole_multiples_of_the_grid_in_float32():
    """No rounding: each sent value is an integer times a power of two."""
    sent = noisy(update(), noise_multiplier=0.1)[0]
    _, power = math.frexp(0.1)
    units = sent.astype(np.float64) / math.ldexp(1.0, power - 19)
    assert sent.dtype == np.float32
    assert np.array_equal(units, np.rint(units))
    assert np.abs(units).max() < 2**24


def test_equal_updates_get_equal_noise_and_others_do_not():
    """A repeated task sends the same bytes; other data or another round has other noise."""
    arrays = update()
    first = noisy(arrays)[0]
    assert np.array_equal(first, noisy(arrays)[0])
    for other in (noisy(update(seed=1))[0], noisy(arrays, round=2)[0], noisy(arrays, "x")[0]):
        error, before = (other - arrays[0]).ravel(), (first - arrays[0]).ravel()
        assert abs(np.corrcoef(error, before)[0, 1]) < 0.1


def test_two_multipliers_do_not_reveal_the_update():
    """Two multiples of one noise would."""
    arrays = update()
    first = noisy(arrays, noise_multiplier=1.0)[0]
    for less in (noisy(arrays, noise_multiplier=2.0)[0], noisy(arrays, clip_norm=2.0)[0]):
        found = 2 * first - less
        assert abs(np.corrcoef(found.ravel(), arrays[0].ravel())[0, 1]) < 0.1


def test_honest_updates_stay_below_the_bound():
    """The server's bound includes an honest device's noise, and little more."""
    arrays = update()
    size = sum(array.size for array in arrays)
    for number in range(5):
        sent = norm(noisy(arrays, round=number))
        assert 0.7 * norm_bound(1.0, 2.0, size) < sent < norm_bound(1.0, 2.0, size)
