"""Draws without replacement: exact probabilities from raw random numbers."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.strategies.selection import Known, Occasion
from fedloom.strategies.selection.draws import shuffled, sizes, smallest, uniformly, weighted

WEIGHTS = [1.0, 2.0, 3.0, 10.0]


def occasion(count, *, seed=0, round_number=1):
    names = [f"client-{number:03}" for number in range(count)]
    return Occasion(names=names, known=Known.nothing(count), seed=seed, round=round_number)


def successive(weights, order):
    """The probability of this order, each drawn in proportion to the remaining weights."""
    left, chance = sum(weights), 1.0
    for place in order:
        chance *= weights[place] / left
        left -= weights[place]
    return chance


def assert_counts(seen, chances, draws):
    """Every count is within five standard deviations of its expectation."""
    for what, chance in chances.items():
        deviation = (draws * chance * (1 - chance)) ** 0.5
        assert abs(seen[what] - draws * chance) <= 5 * deviation + 1e-9, (what, seen[what])


@given(st.lists(st.integers(0, 20), max_size=40), st.data())
def test_the_smallest_are_found_without_sorting_all(numbers, data):
    """Without ties, which 64-bit draws do not have, the same places as of a full sort."""
    count = data.draw(st.integers(0, len(numbers)))
    array = np.array(numbers, dtype=np.uint64)
    assert [numbers[place] for place in smallest(array, count)] == sorted(numbers)[:count]


@pytest.mark.long
def test_weighted_draws_have_the_chances_of_successive_sampling():
    """Single clients and ordered pairs, over 3,000 rounds, compared with the closed form."""
    rounds, pairs, members = 3000, Counter(), Counter()
    for number in range(rounds):
        drawn = tuple(weighted(occasion(4, round_number=number), WEIGHTS, 2).tolist())
        pairs[drawn] += 1
        members.update(drawn)
    chances = {order: successive(WEIGHTS, order) for order in permutations(range(4), 2)}
    assert_counts(pairs, chances, rounds)
    total = sum(WEIGHTS)
    inclusion = {
        i: w / total + sum(v / total * w / (total - v) for j, v in enumerate(WEIGHTS) if j != i)
        for i, w in enumerate(WEIGHTS)
    }
    assert_counts(members, inclusion, rounds)


@given(
    st.lists(st.sampled_from([0.0, 1e-300, 1e-9, 1.0, 7.0, 1e200, 1e308]), max_size=30), st.data()
)
def test_weighted_draws_are_of_different_places_and_end(weights, data):
    """For any weights: the requested number, those of weight 0 last."""
    count = data.draw(st.integers(0, len(weights)))
    drawn = weighted(occasion(len(weights)), weights, count).tolist()
    assert len(set(drawn)) == len(drawn) == count
    # A weight too small beside the largest counts as none.
    positive = [weights[place] / max([*weights, 1e-320]) > 0 for place in drawn]
    assert positive == sorted(positive, reverse=True)


@pytest.mark.long
def test_a_weight_of_0_is_drawn_last():
    """Uniformly among themselves."""
    firsts = Counter()
    for number in range(2000):
        drawn = weighted(occasion(5, round_number=number), [0, 0, 1, 0, 5], 3).tolist()
        assert set(drawn[:2]) == {2, 4}
        firsts[drawn[2]] += 1
    assert_counts(firsts, dict.fromkeys((0, 1, 3), 1 / 3), 2000)


def test_draws_among_some_and_orders_are_uniform():
    """Each is first equally often, in a draw and in a shuffle."""
    drawn, mixed, among = Counter(), Counter(), np.array([3, 5, 8])
    for number in range(3000):
        when = occasion(10, round_number=number)
        drawn[int(uniformly(when, 1, among)[0])] += 1
        mixed[int(shuffled(when, among)[0])] += 1
    for seen in (drawn, mixed):
        assert_counts(seen, dict.fromkeys((3, 5, 8), 1 / 3), 3000)


def test_streams_differ_by_purpose_part_round_seed_and_candidates():
    when = occasion(5)
    streams = [
        when.raw(4),
        when.raw(4, 1),
        when.raw(4, 0, 1),
        occasion(5, round_number=2).raw(4),
        occasion(5, seed=1).raw(4),
        occasion(6).raw(4),
    ]
    assert len({stream.tobytes() for stream in streams}) == len(streams)
    assert occasion(5, seed=2**64).raw(4).tolist() == when.raw(4).tolist()


def test_a_client_that_never_took_part_counts_as_the_mean_of_the_others():
    """As one example while no client has taken part."""
    table = Known.nothing(3)
    assert sizes(table).tolist() == [1, 1, 1]
    known = Known(
        num_examples=np.array([10, 0, 21]), loss=table.loss, seconds=table.seconds,
        label=table.label, rounds=np.array([1, 0, 2]), last_round=np.array([1, 0, 2]),
        latest_round=2,
    )  # fmt: skip
    assert sizes(known).tolist() == [10, 15, 21]


def test_weights_must_be_numbers_of_the_candidates():
    with pytest.raises((ValueError, IndexError)):
        weighted(occasion(2), ["a", "b"], 1)
