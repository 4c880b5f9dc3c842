"""A task on a SuperNode is done once: its replies stay until it has ended."""

import asyncio
import threading
import time

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: make flower")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from fedloom.client.budgets import Budgets
from fedloom.client.state.store import ClientStore
from fedloom.client.supernodes.apps import AppBundle, FirstConfigs
from fedloom.client.supernodes.mailbox import StaleError
from fedloom.client.supernodes.mailboxes import Mailboxes
from fedloom.client.supernodes.remote_app import Places, RemoteApp, SupernodeThread
from fedloom.protocol.errors import UsageError
from support.tasks import task

MODEL = {"w": np.ones((2, 3)), "b": np.ones(3)}


APP = AppBundle(b"", "0" * 64, "tests/plainmean", "1.0.0", {"slow": 0.0})


@pytest.fixture
def begin(tmp_path):
    """Begins with what is on disk, as a bridge does: the mailboxes, the client and its thread."""

    def make():
        boxes, places = Mailboxes(tmp_path / "mailbox"), Places()
        first = FirstConfigs(tmp_path / "first")
        client = RemoteApp(APP, boxes, first, 5, places, client_fn=False, evaluates=True)
        store = ClientStore(tmp_path / "state")
        return boxes, client, SupernodeThread(places, boxes, client, store, Budgets())

    return make


def answer(boxes, said):
    """Answer the next message with ones, as a SuperNode would."""
    while (held := boxes.pending()) is None:
        time.sleep(0.01)
    head = held.messages_list[0]
    said.append(head.metadata.message_type)
    assert boxes.run(head.metadata.run_id).run_id == head.metadata.run_id
    assert boxes.object(held.message_object_trees[0].object_id)
    metrics = MetricRecord({"num-examples": 3})
    content = RecordDict({"metrics": metrics})
    if said[-1] == "train":
        content["arrays"] = ArrayRecord({name: Array(value) for name, value in MODEL.items()})
    message = Message(content, reply_to=message_from_proto(head))
    message.metadata.__dict__["_message_id"] = message.object_id
    objects = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
    reply = message_to_proto(remove_content_from_message(message))
    wanted, session = boxes.begin_reply(reply, get_object_tree(message))
    assert all(boxes.put(session, name, objects[name]) for name in wanted)


def perform(client, thread):
    """Evaluate and train, within the thread of the bridge."""

    def both():
        count, _ = client.evaluate(dict(MODEL), asked)
        return count, client.train(dict(MODEL), asked)

    asked = task(config={"slow": 0.0})
    late = threading.Timer(5.0, asked.stop)
    late.start()
    try:
        return asyncio.run(thread.run(both, asked))
    finally:
        late.cancel()


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_task_that_is_done_again_evaluates_and_trains_once(tmp_path, begin):
    """A SIGKILL before the update is in the outbox: while it is converted, at the latest."""
    boxes, client, _ = begin()
    said = []
    node = threading.Thread(target=lambda: [answer(boxes, said) for _ in range(2)], daemon=True)
    node.start()
    asked = task(config={"slow": 0.0})
    assert client.evaluate(dict(MODEL), asked)[0] == 3
    client.train(dict(MODEL), asked)
    node.join(10)
    assert said == ["evaluate", "train"]
    assert files(tmp_path / "mailbox")

    boxes, client, thread = begin()
    count, trained = perform(client, thread)  # nobody answers: the replies are there
    assert (count, trained.num_examples) == (3, 3)
    np.testing.assert_array_equal(trained.params["w"], MODEL["w"])
    assert not files(tmp_path / "mailbox")


def test_replies_are_kept_while_a_supernode_is_away_and_removed_after_an_error(tmp_path, begin):
    """An error ends the task; an absence does not."""
    boxes, client, thread = begin()
    said = []
    node = threading.Thread(target=lambda: answer(boxes, said), daemon=True)
    node.start()

    def fail():
        client.train(dict(MODEL), asked)
        node.join(10)
        raise UsageError("as the update's check")

    asked = task(config={"slow": 0.0})
    boxes.suspend()
    with pytest.raises(UsageError):
        asyncio.run(thread.run(fail, asked))
    assert files(tmp_path / "mailbox")
    boxes.resume()
    with pytest.raises(UsageError):  # the reply is there
        asyncio.run(thread.run(fail, asked))
    assert said == ["train"]
    assert not files(tmp_path / "mailbox")


def test_calls_about_no_message_are_stale(begin):
    """Of neither kind."""
    boxes, *_ = begin()
    with pytest.raises(StaleError):
        boxes.run(1)
    assert boxes.pending() is None
    assert boxes.object("0" * 64) is None
    assert not boxes.put("", "0" * 64, b"")
