"""Masked bodies as they arrive: exact length, zeros in their place, checksum."""

import numpy as np
import pytest
from crc32c import crc32c

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking import BodyLayout, write_body
from fedloom.protocol.updates.masked_body import MaskedBodyChecker
from fedloom.protocol.v1 import fleet_pb2

LAYOUT = BodyLayout(sum_bits=24, num_values=3, num_words=2)
"""9 bytes of values, 7 zeros, 16 bytes of words."""
BODY = write_body(LAYOUT, [np.array([1, -2, 3])], [-1, 5]).tobytes()


def check(body, step, crc=None):
    header = fleet_pb2.UpdateHeader(
        size_bytes=len(BODY), crc32c=crc32c(BODY) if crc is None else crc
    )
    checker = MaskedBodyChecker(header, LAYOUT)
    for start in range(0, len(body), step):
        checker.feed(body[start : start + step])
    return checker.finish()


@pytest.mark.parametrize("step", [1, 5, 8, 100])
def test_a_body_is_accepted_in_chunks_of_any_size(step):
    """Nothing is known of its values."""
    stats = check(BODY, step)
    assert (stats.norm, stats.max_abs) == (0.0, 0.0)


@pytest.mark.parametrize("step", [1, 5, 8, 100])
@pytest.mark.parametrize("place", [9, 12, 15])
def test_zeros_that_are_none_are_refused_in_chunks_of_any_size(step, place):
    """Masks are not added there, so another byte would say something in clear."""
    body = BODY[:place] + b"\x01" + BODY[place + 1 :]
    with pytest.raises(Refusal) as refused:
        check(body, step, crc32c(body))
    assert refused.value.code is Code.MALFORMED


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (BODY[:-1], Code.TRUNCATED),
        (BODY + b"x", Code.OVERLONG),
        (b"x" + BODY[1:], Code.BAD_CHECKSUM),
    ],
)
def test_a_body_of_another_length_or_checksum_is_refused(body, code):
    with pytest.raises(Refusal) as refused:
        check(body, 7)
    assert refused.value.code is code
