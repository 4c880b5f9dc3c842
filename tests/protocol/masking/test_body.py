"""Bodies and masks: widths, places and threads give what plain integers give."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.protocol import masking
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking.body import BLOCK
from support import secagg

BITS = (16, 24, 32, 64)


def layout(bits, num_values, num_words=0):
    return masking.BodyLayout(sum_bits=bits, num_values=num_values, num_words=num_words)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_body_reads_as_it_was_written(data):
    """In one array or several; negative integers too."""
    bits = data.draw(st.sampled_from(BITS))
    most = 2 ** (bits - 1)
    values = data.draw(st.lists(st.integers(-most, most - 1), max_size=20))
    words = data.draw(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3))
    cut = data.draw(st.integers(0, len(values)))
    form = layout(bits, len(values), len(words))
    arrays = [np.array(part, np.int64) for part in (values[:cut], values[cut:])]
    body = masking.write_body(form, arrays, words)
    assert masking.read_values(form, body, 0, len(values)).tolist() == values
    assert masking.read_values(form, body, cut, len(values)).tolist() == values[cut:]
    assert masking.read_words(form, body) == words
    places = secagg.layout(bits, len(values), len(words))
    assert secagg.numbers(body.tobytes(), places, signed=True) == values + words


@pytest.mark.parametrize("bits", [16, 24, 32])
def test_what_does_not_fit_is_refused(bits):
    """A wrong number without a word is worse than none."""
    for value in (2 ** (bits - 1), -(2 ** (bits - 1)) - 1):
        with pytest.raises(ValueError, match=f"integers of {bits} bits"):
            masking.write_body(layout(bits, 2), [np.array([0, value])], [])


def test_other_numbers_of_values_or_words_are_refused():
    form = layout(32, 2, 1)
    for arrays, words in (([np.arange(3)], [1]), ([np.arange(1)], [1]), ([np.arange(2)], [])):
        with pytest.raises(ValueError, match="2 values"):
            masking.write_body(form, arrays, words)
    with pytest.raises(ValueError, match="sum_bits"):
        layout(48, 1)


def test_bodies_of_another_form_are_refused():
    form = layout(24, 3, 1)
    total = np.zeros(form.size_bytes, np.uint8)
    for size, code in ((form.size_bytes - 1, Code.TRUNCATED), (form.size_bytes + 1, Code.OVERLONG)):
        with pytest.raises(Refusal) as caught:
            masking.add_body(total, form, np.zeros(size, np.uint8))
        assert caught.value.code == code
    body = total.copy()
    body[form.values_bytes] = 1
    with pytest.raises(Refusal, match="zeros between"):
        masking.add_body(total, form, body)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("more", [0, 1, 5])
def test_masks_and_sums_are_those_of_plain_integers(bits, more):
    """Over the border of a block, with words behind the values, and with threads."""
    num_values = BLOCK // (bits // 8) + more
    form = layout(bits, num_values, 2)
    places = secagg.layout(bits, num_values, 2)
    random = np.random.default_rng(bits)
    body = random.integers(0, 256, form.size_bytes, np.uint8)
    body[form.values_bytes : form.words_start] = 0
    keys = [(bytes([i]) * 32, sign) for i, sign in ((1, 1), (2, -1), (3, 1))]
    expected = secagg.combine(
        body.tobytes(), places, [(secagg.keystream(k, body.size), sign) for k, sign in keys]
    )
    for threads in (1, 2, 5):
        masked = body.copy()
        streams = [masking.MaskStream(*each) for each in keys]
        masking.apply_streams(masked, form, streams, threads=threads)
        assert masked.tobytes() == expected
    total = body.copy()
    masking.add_body(total, form, masked)
    assert total.tobytes() == secagg.combine(body.tobytes(), places, [(expected, 1)])


@pytest.mark.parametrize("bits", BITS)
def test_bodies_without_values_or_without_words(bits):
    """An evaluation is a body of words alone."""
    for num_values, num_words in ((0, 3), (3, 0), (0, 0)):
        form = layout(bits, num_values, num_words)
        body = np.zeros(form.size_bytes, np.uint8)
        stream = masking.MaskStream(bytes(32), 1)
        masking.apply_streams(body, form, [stream], threads=3)
        masking.apply_streams(body, form, [masking.MaskStream(bytes(32), -1)])
        masking.add_body(body, form, body.copy())
        assert not body.any()
