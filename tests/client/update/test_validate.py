"""Errors in what training code returns name the value, what was expected and what came."""

import datetime as dt
import pickle

import numpy as np
import pytest

from fedloom.client import Client, MaskOf, SliceOf, Update
from fedloom.client.update.validate import Finding, ReturnedError
from fedloom.protocol.errors import UsageError

PARAMS = {"w": np.zeros((2, 3), np.float32)}


class Returns(Client):
    """A client with fixed results."""

    def __init__(self, trained, evaluated=(1, {})):
        self.trained = trained
        self.evaluated = evaluated

    def train(self, params, task):
        return self.trained

    def evaluate(self, params, task):
        return self.evaluated


GOOD = {"w": np.ones((2, 3), np.float32)}
WRONG = {
    "a list of arrays": (([GOOD["w"]], 1, {}), "params as a mapping of names to arrays, got list"),
    "text": (({"w": [["a"] * 3] * 2}, 1, {}), "real numbers for 'w' .* array of <U"),
    "objects": (({"w": [[None] * 3] * 2}, 1, {}), "real numbers for 'w' .* array of object"),
    "complex numbers": (({"w": GOOD["w"] * 1j}, 1, {}), "real numbers for 'w' .* complex"),
    "times": (
        ({"w": np.full((2, 3), dt.datetime(2026, 1, 1), "datetime64[s]")}, 1, {}),
        "real numbers for 'w' .* datetime64",
    ),
    "a slice of text": (
        ({"w": SliceOf(np.array([["a", "b", "c"]]), ((0, 1), (0, 3)))}, 1, {}),
        "real numbers for 'w'",
    ),
    "a mask of text": (
        ({"w": MaskOf(np.array([["a"] * 3] * 2), mask=np.ones((2, 3), bool))}, 1, {}),
        "real numbers for 'w'",
    ),
    "no count": ((GOOD, None, {}), "num_examples from train as a whole number .* got None"),
    "nan examples": ((GOOD, float("nan"), {}), "num_examples .* got nan"),
    "minus five examples": ((GOOD, -5, {}), "num_examples .* got -5"),
    "half an example": ((GOOD, 0.5, {}), "num_examples .* got 0.5"),
    "no examples": ((GOOD, 0, {}), "num_examples .* above 0, got 0: .* can_train return False"),
    "a number of examples as text": ((GOOD, "7", {}), "num_examples .* got '7'. Return how many"),
    "more than 64 bits": ((GOOD, 2**70, {}), f"num_examples .* got {2**70}. Return how many"),
    "a boolean": ((GOOD, True, {}), "num_examples .* got True. Return how many"),
    "a boolean of numpy": ((GOOD, np.True_, {}), "num_examples .* got np.True_. Return how many"),
    "some counts": ((GOOD, np.array([3, 4]), {}), "num_examples .* got array"),
    "booleans": (
        ({"w": GOOD["w"] > 0}, 1, {}),
        "real numbers for 'w' .* bool. Return it as float32",
    ),
    "no metrics": ((GOOD, 1, None), "metrics from train as a mapping .* got NoneType"),
    "a nameless metric": ((GOOD, 1, {3: 1.0}), "from train as printable text, got 3"),
    "a metric that cannot be printed": ((GOOD, 1, {"a\nb": 1.0}), r"printable text, got 'a\\nb'"),
    "a metric of text": ((GOOD, 1, {"loss": "low"}), "metric 'loss' from train .* got 'low'"),
    "a metric of many": ((GOOD, 1, {"loss": np.ones(2)}), "metric 'loss' from train .* got array"),
    "nothing": (None, "got NoneType"),
}


@pytest.mark.parametrize(("trained", "message"), WRONG.values(), ids=WRONG)
def test_an_invalid_result_of_train_is_refused(updates_of, trained, message):
    with pytest.raises(UsageError, match=message):
        updates_of(Returns(trained), PARAMS, weighting="examples")


@pytest.mark.parametrize(
    ("evaluated", "message"),
    [
        ((1, None), "metrics from evaluate as a mapping"),
        ((-1, {}), "num_examples from evaluate as a whole number .* got -1"),
        (None, r"evaluate to return \(num_examples, metrics\), got NoneType"),
        (0.5, "evaluate to return .* got float"),
        ((GOOD, 1, {}), "evaluate to return .* got tuple of 3"),
    ],
)
def test_an_invalid_result_of_evaluate_is_refused(updates_of, evaluated, message):
    with pytest.raises(UsageError, match=message):
        updates_of(Returns((GOOD, 1, {}), evaluated=evaluated), PARAMS, weighting="examples")


@pytest.mark.parametrize("weight", [None, 0, -1.0, float("nan"), float("inf"), "7", True])
def test_an_invalid_weight_is_refused_if_the_run_weights_by_client(updates_of, weight):
    update = Update(GOOD, 1, weight=weight)
    message = f"a weight above 0 from train, got {weight!r}: .* Return an Update that has one"
    with pytest.raises(UsageError, match=message):
        updates_of(Returns(update), PARAMS, weighting="client")
    assert updates_of(Returns(update), PARAMS, weighting="uniform").weight == 1.0


def test_an_error_can_be_pickled():
    """With its check, for worker processes."""
    error = ReturnedError(Finding("shapes", "Expected another shape."))
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.finding) == (str(error), error.finding)


def test_zero_examples_are_accepted_unless_the_run_weights_by_examples(updates_of):
    """A client may not know their number."""
    assert updates_of(Returns((GOOD, 0, {})), PARAMS, weighting="uniform").weight == 1.0


@pytest.mark.parametrize("count", [3, 3.0, np.int64(3), np.float32(3), np.array(3)])
@pytest.mark.parametrize("loss", [1, np.float32(1), np.array(1.0), float("nan")])
def test_arrays_of_one_value_count_as_numbers(updates_of, count, loss):
    """Whether a metric is finite is checked by the server's admission."""
    trained = GOOD, count, {"loss": loss}
    header = updates_of(Returns(trained), PARAMS, weighting="examples")
    assert header.training.num_examples == 3
    assert np.isnan(loss) or header.training.values["loss"] == 1
