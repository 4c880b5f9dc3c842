"""Limits of an offer: each name and number outside them is refused."""

import math

import pytest

from fedloom.client.offers import checks
from fedloom.client.offers.checks import check_offer
from fedloom.protocol.errors import Refusal
from fedloom.protocol.v1 import fleet_pb2


def offer():
    """A valid offer."""
    task = fleet_pb2.Task(
        key=fleet_pb2.TaskKey(run="digits-1", round=3),
        model=fleet_pb2.ModelRef(digest="ab" * 32, size_bytes=512),
        deadline_s=600.0,
    )
    task.differences.add(
        base="cd" * 32, difference=fleet_pb2.ModelRef(digest="ef" * 32, size_bytes=8)
    )
    return task


def setter(path, value):
    """Set a field of an offer, `a.b.c`."""

    def change(task):
        *parents, name = path.split(".")
        for parent in parents:
            task = getattr(task, parent)
        setattr(task, name, value)

    return change


def many_differences(task):
    task.differences.extend([task.differences[0]] * checks.MAX_DIFFERENCES)


def bad_difference(task):
    task.differences[0].difference.digest = "../" + "e" * 61


def bad_base(task):
    task.differences[0].base = "../" + "e" * 61


BAD = {
    "no run": setter("key.run", ""),
    "a path": setter("key.run", "../up"),
    "a long run": setter("key.run", "ä" * 101),
    "round 0": setter("key.round", 0),
    "a long name of the run": setter("run_name", "x" * (checks.MAX_RUN_BYTES + 1)),
    "a model without a digest": setter("model.digest", ""),
    "a model that is too large": setter("model.size_bytes", checks.MAX_MODEL_BYTES + 1),
    "received tensors that are too large": lambda task: (
        setter("received.digest", "ab" * 32)(task),
        setter("received.size_bytes", checks.MAX_MODEL_BYTES + 1)(task),
    ),
    "too many differences": many_differences,
    "a difference that is a path": bad_difference,
    "a difference from a path": bad_base,
    "years of epochs": setter("train.epochs", checks.MAX_EPOCHS + 1),
    "years of steps": setter("train.steps", checks.MAX_STEPS + 1),
    "years of patience": setter("train.patience", checks.MAX_EPOCHS + 1),
    "years of a head's epochs": setter("personal.head_epochs", checks.MAX_EPOCHS + 1),
    "a batch that is too large": setter("train.batch_size", checks.MAX_BATCH + 1),
    "NaN as learning rate": setter("train.learning_rate", math.nan),
    "a negative clip": setter("train.clip_norm", -1.0),
    "an infinite budget": setter("train.time_budget_s", math.inf),
    "an infinite width": lambda task: task.train.widths.append(math.inf),
    "NaN as deadline": setter("deadline_s", math.nan),
    "a clip norm of 0": setter("privacy.noise_multiplier", 1.0),
    "a session of two": setter("masking.group", 2),
    "a session of too many": setter("masking.group", 129),
    "noise from a seed in a masked task": lambda task: (
        setter("masking.group", 16)(task),
        setter("privacy.clip", 1.0)(task),
        setter("privacy.seeded", True)(task),
    ),
}


def test_a_valid_offer_passes():
    """Also at the limits."""
    task = offer()
    check_offer(task)
    task.differences.extend([task.differences[0]] * (checks.MAX_DIFFERENCES - 1))
    task.train.epochs = checks.MAX_EPOCHS
    task.key.run = "ä" * 100
    check_offer(task)


@pytest.mark.parametrize("name", BAD)
def test_an_offer_with_one_invalid_field_is_refused(name):
    """The message states what was expected."""
    task = offer()
    BAD[name](task)
    with pytest.raises(Refusal, match="Expected"):
        check_offer(task)
