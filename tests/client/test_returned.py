"""What a client's code returns wrongly is told by name, with what was expected and what came."""

import datetime as dt

import numpy as np
import pytest

from fedloom.client import Client, MaskOf, SliceOf
from fedloom.protocol.errors import UsageError

PARAMS = {"w": np.zeros((2, 3), np.float32)}


class Returns(Client):
    """Returns what it was given."""

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
    "text": (
        ({"w": [["a"] * 3] * 2}, 1, {}),
        "real numbers for 'w' .* array of <U",
    ),
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
    "text for a count": ((GOOD, "ten", {}), "num_examples .* got 'ten'"),
    "nan examples": ((GOOD, float("nan"), {}), "num_examples .* got nan"),
    "minus five examples": ((GOOD, -5, {}), "num_examples .* got -5"),
    "half an example": ((GOOD, 0.5, {}), "num_examples .* got 0.5"),
    "too many examples": ((GOOD, 10**30, {}), "num_examples .* got 1000"),
    "no metrics": ((GOOD, 1, None), "metrics from train as a mapping .* got NoneType"),
    "a nameless metric": ((GOOD, 1, {3: 1.0}), "names of metrics from train as text, got 3"),
    "a metric of text": ((GOOD, 1, {"loss": "low"}), "metric 'loss' from train .* got 'low'"),
    "a metric of many": ((GOOD, 1, {"loss": np.ones(2)}), "metric 'loss' from train .* got array"),
    "nothing": (None, "got NoneType"),
}


@pytest.mark.parametrize(("trained", "message"), WRONG.values(), ids=WRONG)
def test_what_train_returns_wrongly_is_told(updates_of, trained, message):
    """Before anything is made of it."""
    with pytest.raises(UsageError, match=message):
        updates_of(Returns(trained), PARAMS, weighting="examples")


def test_what_evaluate_returns_wrongly_is_told(updates_of):
    """With its own name."""
    with pytest.raises(UsageError, match="metrics from evaluate as a mapping"):
        updates_of(Returns((GOOD, 1, {}), evaluated=(1, None)), PARAMS, weighting="examples")


@pytest.mark.parametrize("count", [3, 3.0, np.int64(3), np.float32(3), np.array(3)])
@pytest.mark.parametrize("loss", [1, np.float32(1), np.array(1.0), float("nan")])
def test_whatever_stands_for_a_number_is_one(updates_of, count, loss):
    """Whether it is finite is for the door to say."""
    trained = GOOD, count, {"loss": loss}
    header = updates_of(Returns(trained), PARAMS, weighting="examples")
    assert header.training.num_examples == 3
    assert np.isnan(loss) or header.training.values["loss"] == 1
