"""Every pattern of drop-outs: the plain sum of the survivors, or the session is abandoned."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.protocol import masking
from support import secagg
from support.mask_members import play


def layout(bits):
    return masking.BodyLayout(sum_bits=bits, num_values=5, num_words=1)


def check(n, left, bits):
    """The result against plain integers mod 2^b."""
    found, plain = play(n, left, layout(bits))
    survivors = [sum(phase > p for phase in left) for p in (1, 2, 3)]
    t = secagg.threshold(n)
    if min(survivors) < t:
        assert isinstance(found, str)
        return
    assert isinstance(found, np.ndarray)
    assert len(plain) == survivors[1]
    places = secagg.layout(bits, 5, 1)
    zero = bytes(found.size)
    expected = secagg.combine(zero, places, [(body.tobytes(), 1) for body in plain.values()])
    assert found.tobytes() == expected


@pytest.mark.parametrize("n", [3, *(pytest.param(n, marks=pytest.mark.long) for n in (4, 5))])
def test_every_pattern_of_a_small_session(n):
    """Each member leaves before it shares, masks or reveals, or stays."""
    for i, left in enumerate(product((1, 2, 3, 4), repeat=n)):
        check(n, left, (16, 24, 32, 64)[i % 4])


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_patterns_of_sessions_up_to_nine(data):
    check_drawn(data, 9)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_patterns_of_sessions_up_to_twenty(data):
    check_drawn(data, 20)


def check_drawn(data, largest):
    """Few members leave, so that most sessions end with a sum."""
    n = data.draw(st.integers(6, largest))
    phases = st.sampled_from((4, 4, 4, 4, 4, 4, 4, 3, 2, 1))
    left = data.draw(st.lists(phases, min_size=n, max_size=n))
    check(n, left, data.draw(st.sampled_from((16, 24, 32, 64))))
