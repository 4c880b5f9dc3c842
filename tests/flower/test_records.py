"""Conversion of arrays and metrics, contexts, and initial models."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: make flower")

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app import ConfigRecord as Config
from flwr.clientapp import ClientApp

from fedloom.client.flower import flower_client, initial, records
from fedloom.client.flower.contexts import KEEP_STEPS, Contexts
from fedloom.protocol.errors import UsageError
from fedloom.protocol.task_kind import Kind
from fedloom.strategies import Adapters
from support import tasks

MODEL = {"w": np.zeros((2, 3)), "b": np.zeros(3)}


def test_numbered_arrays_match_names_by_order():
    """For an app with a list of arrays."""
    found = records.from_arrays(ArrayRecord([np.ones((2, 3)), np.full(3, 2.0)]), MODEL)
    assert {name: value.flat[0] for name, value in found.items()} == {"w": 1.0, "b": 2.0}


def test_numbered_names_are_sorted_numerically():
    """10 after 9, for any order in the file."""
    shuffled = {str(n): np.zeros(1) for n in (10, 2, 0, 9, 1)}
    assert records.in_order(shuffled) == ["0", "1", "2", "9", "10"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([np.ones((2, 3))], "Expected 2 arrays .* got 1"),
        ([np.ones((3, 2)), np.ones(3)], r"Expected shape \(2, 3\) for 'w', array 0"),
    ],
)
def test_mismatched_lists_are_refused(arrays, message):
    """The error names the counts, or the tensor and its shape."""
    with pytest.raises(UsageError, match=message):
        records.from_list(arrays, MODEL)


def test_a_list_of_several_types_needs_numbers():
    """A file has wider types first, so names do not give the order."""
    mixed = {"a": np.zeros(2, np.float32), "n": np.zeros((), np.int64)}
    with pytest.raises(UsageError, match="model init --flower"):
        records.check_listable(mixed)
    records.check_listable({"0": mixed["a"], "1": mixed["n"]})


def test_metrics_are_separated_from_the_number_of_examples():
    """Lists are flattened."""
    told = MetricRecord({"num-examples": 5, "loss": 0.5, "per": [1, 2]})
    assert records.metrics_of({"metrics": told}) == (5, {"loss": 0.5, "per.0": 1.0, "per.1": 2.0})
    assert records.metrics_of({"metrics": MetricRecord({"loss": 1.0})}) == (None, {"loss": 1.0})


@pytest.mark.parametrize("kind", [Kind.TRAIN, Kind.EVALUATE])
def test_an_app_gets_the_number_of_the_training_round(tmp_path, kind):
    """As in Flower's loop, where the evaluation after a training has the same number."""
    app, seen = ClientApp(), []

    def answer(message, context):
        del context
        seen.append(message.content["config"]["server-round"])
        told = MetricRecord({"num-examples": 3, "loss": 0.5})
        return Message(
            RecordDict({"arrays": message.content["arrays"], "metrics": told}), reply_to=message
        )

    app.train()(answer)
    app.evaluate()(answer)
    client = flower_client(app, state_dir=tmp_path)
    for task in (tasks.task(kind=kind, round_=5, training_round=3), tasks.task(round_=7)):
        (client.train if kind is Kind.TRAIN else client.evaluate)(dict(MODEL), task)
    assert seen == [3, 7]  # an older server gives no number


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_an_app_that_cannot_tell_its_scale_refuses_a_run_that_sets_it(tmp_path, kind):
    """Before the app is called."""
    client = flower_client(ClientApp(), state_dir=tmp_path)
    with pytest.raises(UsageError, match=r"scaled by 2, .*, got a client that cannot tell"):
        getattr(client, kind)(dict(MODEL), tasks.task(adapters=Adapters(scale=2.0)))


def test_a_repeated_task_gets_the_same_context(tmp_path):
    """Each step reads the context of earlier steps; old contexts are deleted."""
    contexts = Contexts(tmp_path, {"partition-id": 1})

    def leave(step, number):
        context = contexts.load("run.1", "alice", step, {})
        before = context.state.get("n", Config({"n": 0}))["n"]
        contexts.save("run.1", step, RecordDict({"n": Config({"n": number})}))
        return before

    assert [leave((1, 0), 1), leave((1, 1), 2), leave((2, 0), 3)] == [0, 1, 2]
    assert leave((2, 0), 3) == 2
    for number in range(3, 9):
        leave((number, 1), number)
    assert len(list((tmp_path / "flower").iterdir())) == KEEP_STEPS
    assert contexts.load("run.10", "alice", (1, 0), {}).state == RecordDict()


def test_a_damaged_context_is_an_error(tmp_path):
    """The error names the file."""
    contexts = Contexts(tmp_path, {})
    contexts.save("r", (1, 0), RecordDict({"n": Config({"n": 1})}))
    next((tmp_path / "flower").iterdir()).write_bytes(b"\xff\xff\xff")
    with pytest.raises(UsageError, match=r"r\.1\.0\.records"):
        contexts.load("r", "alice", (1, 1), {})


def test_other_objects_are_refused(tmp_path):
    """A Flower app must be a `ClientApp`."""
    with pytest.raises(UsageError, match="ClientApp, got a dict"):
        flower_client({}, tmp_path)


def test_initial_models_have_many_forms():
    """Lists are numbered, names are kept."""
    assert list(initial([np.ones(1), np.ones(2)])) == ["0", "1"]
    assert list(initial(ArrayRecord({"w": records.Array(np.ones(1))}))) == ["w"]
    with pytest.raises(UsageError, match="torch module"):
        initial("text")
