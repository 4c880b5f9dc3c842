"""Recent failures, and the time without offers that follows from them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.protocol.errors import UsageError
from fedloom.server.client_failures import ClientRules, Failures

RULES = ClientRules(failing_after=3, cool_off_s=600.0, longest_cool_off_s=4000.0)


def after(count, at=1000.0):
    """A client that failed so often in a row, the last time at `at`."""
    found = Failures()
    for i in range(count):
        found = found.plus_one(at - (count - 1 - i))
    return found


@pytest.mark.parametrize(
    ("count", "failing", "pause_s"),
    [(0, False, 0), (2, False, 0), (3, True, 600), (4, True, 1200), (5, True, 2400),
     (6, True, 4000), (7, True, 4000), (5000, True, 4000)],
)  # fmt: skip
def test_each_further_failure_doubles_the_pause_up_to_a_limit(count, failing, pause_s):
    found = after(count)
    assert found.is_failing(RULES) is failing
    assert found.cools_until(RULES) == (1000.0 + pause_s if pause_s else 0.0)


def played(outcomes, rules=RULES):
    """Whether a client is failing after each of its tasks.

    Of `outcomes`, "f" failed and "s" counted; capitals only evaluated.
    """
    found, failing = Failures(), []
    for at, outcome in enumerate(outcomes):
        evaluating = outcome.isupper()
        if outcome in "fF":
            found = found.plus_one(float(at), evaluating=evaluating)
        else:
            found = found.after_success(evaluating=evaluating)
        failing.append(found.is_failing(rules))
    return failing


@pytest.mark.parametrize(
    ("outcomes", "since"),
    [("f" * 24 + "s", 2), ("fS", 4), ("ffffs", 5), ("ffs", None), ("fs", None),
     ("sssssssssf", None),
     ("Fs", None)],
    ids=["24 of 25", "all training, no evaluation", "4 of 5", "2 of 3", "half", "1 of 10",
         "all evaluation, no training"],
)  # fmt: skip
def test_a_client_that_fails_most_of_its_tasks_stays_failing(outcomes, since):
    """Repeated for long; from the task `since` on it is failing at each moment."""
    found = played(outcomes * 20)
    if since is None:
        assert not all(found[-len(outcomes) :])
    else:
        assert not any(found[:2])
        assert all(found[since:])


def test_a_client_that_was_mended_is_soon_well():
    """However often it failed; but an evaluation alone does not show that it trains."""
    assert played("f" * 1000 + "s" * 9)[-2:] == [True, False]
    assert played("f" * 24 + "S" * 100)[-1]
    assert not played("F" * 24 + "S" * 100)[-1]


def test_by_default_a_failing_client_gets_offers():
    assert after(50).is_failing(ClientRules())
    assert after(50).cools_until(ClientRules()) == 0.0


@given(
    st.integers(0, 10_000), st.integers(1, 50), st.floats(0.001, 1e6), st.floats(0, 1e9),
    st.floats(0, 4e9),
)  # fmt: skip
def test_a_pause_is_finite_and_does_not_shrink_with_failures(count, least, first_s, more_s, at):
    rules = ClientRules(
        failing_after=least, cool_off_s=first_s, longest_cool_off_s=first_s + more_s
    )
    found = Failures(count, at)
    until, next_one = found.cools_until(rules), found.plus_one(at).cools_until(rules)
    assert math.isfinite(until)
    assert next_one >= until
    if count >= least:
        assert until >= at


def test_a_longest_pause_below_the_first_is_refused():
    with pytest.raises(UsageError, match="longest_cool_off_s >= cool_off_s = 90"):
        ClientRules(cool_off_s=90.0, longest_cool_off_s=60.0)
