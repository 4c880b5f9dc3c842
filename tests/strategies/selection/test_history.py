"""Knowledge about clients follows only from the committed rounds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.strategies.selection import History, Observation

NAMES = [f"client-{number}" for number in range(8)]
NUMBERS = st.one_of(st.just(math.nan), st.floats(0, 100))
OBSERVED = st.builds(
    Observation,
    client=st.sampled_from(NAMES),
    counted=st.booleans(),
    num_examples=st.integers(0, 1000),
    loss=NUMBERS,
    label=NUMBERS,
    seconds=NUMBERS,
)
ROUNDS = st.lists(st.lists(OBSERVED, unique_by=lambda seen: seen.client), max_size=6)


def told(rounds):
    history = History()
    for number, seen in enumerate(rounds, start=1):
        history.add(2 * number, seen)
    return history


def facts(history, names=NAMES):
    known = history.of(names)
    columns = ("num_examples", "loss", "seconds", "label", "rounds", "last_round")
    return [getattr(known, name).tobytes() for name in columns], known.latest_round


@pytest.mark.long
@given(ROUNDS, st.randoms())
def test_the_order_within_a_round_does_not_matter(rounds, random):
    """Nor the order of the clients in a query."""
    mixed = [random.sample(seen, len(seen)) for seen in rounds]
    assert facts(told(rounds)) == facts(told(mixed))
    known = told(rounds).of(NAMES[::-1])
    np.testing.assert_array_equal(known.loss[::-1], told(rounds).of(NAMES).loss)


@pytest.mark.long
@given(ROUNDS)
def test_a_history_is_written_and_read_back(rounds):
    """And further rounds can be added."""
    history = told(rounds)
    again = History.from_arrays(history.to_arrays())
    assert facts(again) == facts(history)
    assert len(again) == len(history)
    more = [Observation(client="client-0", num_examples=3), Observation(client="newcomer")]
    for each in (history, again):
        each.add(99, more)
    assert facts(again, [*NAMES, "newcomer"]) == facts(history, [*NAMES, "newcomer"])


def test_the_last_round_counts():
    """Examples, loss and label are those of the last update; other clients are unknown."""
    history = History()
    history.add(1, [Observation(client="a", num_examples=5, loss=2.0, label=1.0, seconds=3.0)])
    history.add(4, [Observation(client="a", num_examples=7, loss=1.0)])
    known = history.of(["a", "b"])
    assert known.num_examples.tolist() == [7, 0]
    assert known.rounds.tolist() == [2, 0]
    assert known.last_round.tolist() == [4, 0]
    assert known.loss[0] == 1.0
    assert np.isnan([known.loss[1], known.label[0], known.seconds[1]]).all()
    assert known.seconds[0] == 3.0  # measured once, not since
    assert known.latest_round == history.latest_round == 4


def test_unfinished_members_have_a_lower_bound_of_their_time():
    """Until they finish once."""
    history = History()
    history.add(1, [Observation(client="a", counted=False, seconds=60.0, num_examples=9)])
    known = history.of(["a"])
    assert (known.seconds[0], known.rounds[0], known.num_examples[0]) == (60.0, 0, 0)
    history.add(2, [Observation(client="a", counted=False, seconds=20.0)])
    assert history.of(["a"]).seconds[0] == 60.0
    history.add(3, [Observation(client="a", seconds=30.0)])
    assert history.of(["a"]).seconds[0] == 30.0


def test_rounds_are_added_once_and_in_order():
    history = History()
    history.add(3, [])
    for number in (3, 2):
        with pytest.raises(ValueError, match="Expected a round after 3"):
            history.add(number, [])


def test_thousands_of_clients_fit():
    """The table grows, and a cached answer is not returned for other clients."""
    history = History()
    names = [f"{number:05}" for number in range(5000)]
    assert np.isnan(history.of(names).loss).all()
    for number in range(1, 6):
        batch = names[1000 * (number - 1) : 1000 * number]
        history.add(number, [Observation(client=name, loss=float(name)) for name in batch])
        known = history.of(names)
        np.testing.assert_array_equal(known.loss[: 1000 * number], np.arange(1000.0 * number))
        assert np.isnan(known.loss[1000 * number :]).all()
    assert history.of(names[7:9]).loss.tolist() == [7.0, 8.0]
