"""What a server gives is held against what a sane one would: each bound by itself."""

import json
import math

import numpy as np
import pytest

from fedloom.client.offers import checks
from fedloom.client.offers.checks import UnfitError, check_model, check_offer
from fedloom.protocol.errors import Refusal
from fedloom.protocol.tensors.container import write_file
from fedloom.protocol.v1 import fleet_pb2


def offer():
    """An offer as a sane server gives it."""
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
    "a model without a digest": setter("model.digest", ""),
    "an endless model": setter("model.size_bytes", checks.MAX_MODEL_BYTES + 1),
    "something endless beside it": lambda task: (
        setter("received.digest", "ab" * 32)(task),
        setter("received.size_bytes", checks.MAX_MODEL_BYTES + 1)(task),
    ),
    "more differences than anybody keeps": many_differences,
    "a difference that is a path": bad_difference,
    "a difference from a path": bad_base,
    "years of epochs": setter("train.epochs", checks.MAX_EPOCHS + 1),
    "years of steps": setter("train.steps", checks.MAX_STEPS + 1),
    "years of patience": setter("train.patience", checks.MAX_EPOCHS + 1),
    "years of a head's epochs": setter("personal.head_epochs", checks.MAX_EPOCHS + 1),
    "an endless batch": setter("train.batch_size", checks.MAX_BATCH + 1),
    "no number as rate": setter("train.learning_rate", math.nan),
    "a negative clip": setter("train.clip_norm", -1.0),
    "an endless budget": setter("train.time_budget_s", math.inf),
    "an endless width": lambda task: task.train.widths.append(math.inf),
    "no number as deadline": setter("deadline_s", math.nan),
    "a clip of nothing": setter("privacy.noise_multiplier", 1.0),
}


def test_a_sane_offer_passes():
    """Also at the bounds."""
    task = offer()
    check_offer(task)
    task.differences.extend([task.differences[0]] * (checks.MAX_DIFFERENCES - 1))
    task.train.epochs = checks.MAX_EPOCHS
    task.key.run = "ä" * 100
    check_offer(task)


@pytest.mark.parametrize("name", BAD)
def test_one_thing_that_makes_no_sense_is_enough(name):
    """It is refused with a sentence that says what was expected."""
    task = offer()
    BAD[name](task)
    with pytest.raises(Refusal, match="Expected"):
        check_offer(task)


def test_a_list_of_tensors_has_a_length(tmp_path, monkeypatch):
    """It is looked at before it is parsed, which takes many times its size in memory."""
    path = tmp_path / "model"
    write_file(path, {"w": np.zeros(2, np.float32)})
    check_model(path)
    monkeypatch.setattr(checks, "MAX_HEADER_BYTES", 16)
    with pytest.raises(UnfitError, match="header of at most 16 bytes"):
        check_model(path)


@pytest.mark.parametrize("name", ["w\x1b[2J", "w\n", "w" * (checks.MAX_NAME + 1)])
def test_names_of_tensors_can_be_shown_to_the_owner(tmp_path, name):
    """No escape sequence, no line end, and nothing without end."""
    entry = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "model"
    path.write_bytes(len(entry).to_bytes(8, "little") + entry + bytes(4))
    with pytest.raises(UnfitError, match="printable"):
        check_model(path)


def test_not_a_number_is_found_wherever_it_is(tmp_path):
    """In the last value of the last tensor, too; infinity is the model's own affair."""
    path, values = tmp_path / "model", np.zeros(100_000, np.float32)
    values[-1] = np.inf
    write_file(path, {"a": np.zeros(1, np.float32), "w": values})
    check_model(path)
    values[-1] = np.nan
    write_file(path, {"a": np.zeros(1, np.float32), "w": values})
    with pytest.raises(UnfitError, match="'w'"):
        check_model(path)
