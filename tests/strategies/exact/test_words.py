"""Sums in several words: carries reach the first word."""

from fedloom.strategies.exact.words import WORD_BITS, Words


def test_a_carry_makes_the_first_word():
    """Sums that were added to the second word alone equal those that began with the first."""
    half, lower = 1 << (WORD_BITS - 1), Words(2)
    for _ in range(2):
        lower.word(1)[:] += half
        lower.added(1)
    whole = Words(2)
    whole.word(0)[:] += 1
    whole.added(1)
    assert lower.same(whole)
