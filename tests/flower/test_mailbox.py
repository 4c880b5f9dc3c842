"""A bridge's mailbox: one message and one reply on disk, through kills and bad replies."""

import json
import os
import threading
import tracemalloc
from hashlib import sha256

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: make flower")

from flwr.app import Array, ArrayRecord, Message, Metadata, RecordDict
from flwr.app.message.message import make_message, remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.run_pb2 import Run
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedloom.client.supernodes import mailbox as module
from fedloom.client.supernodes.mailbox import Mailbox, MalformedReplyError, StaleError
from fedloom.protocol.errors import UsageError

RUN = Run(run_id=7)


def content(*values):
    return RecordDict({"arrays": ArrayRecord({f"{i}": Array(v) for i, v in enumerate(values)})})


SIX = (np.arange(6.0),)


def question(values=SIX, round_number=1):
    """Builds a message of a round by the time of its creation."""

    def build(created_at):
        metadata = Metadata(
            run_id=RUN.run_id, message_id="", src_node_id=1, dst_node_id=5, reply_to_message_id="",
            group_id=f"{round_number}", created_at=created_at, ttl=100.0, message_type="train",
        )  # fmt: skip
        return make_message(metadata, content(*values))

    return build


class Supernode:
    """What a SuperNode does with a mailbox, with flwr's own objects."""

    def __init__(self, box):
        self.box = box

    def receive(self):
        """The message, as its objects say."""
        held = self.box.pending()
        names = [each.object_id for each in _nodes(held.message_object_trees[0])]
        contents = {name: self.box.object(name) for name in names}
        message = inflate_object_from_contents(held.message_object_trees[0].object_id, contents)
        message.metadata.__dict__["_message_id"] = held.messages_list[0].metadata.message_id
        return message

    def reply(self, to, *values):
        """A reply: its head, tree and objects."""
        message = Message(content(*values), reply_to=to)
        message.metadata.__dict__["_message_id"] = message.object_id
        objects = {n: o.deflate() for n, o in get_all_nested_objects(message).items()}
        head = message_to_proto(remove_content_from_message(message))
        return head, get_object_tree(message), objects

    def send(self, head, tree, objects):
        wanted, session = self.box.begin_reply(head, tree)
        return [self.box.put(session, name, objects[name]) for name in wanted]


def _nodes(tree):
    yield tree
    for child in tree.children:
        yield from _nodes(child)


def values_of(message):
    return [a.numpy() for a in message.content["arrays"].values()]


def files(folder):
    return [p for p in folder.rglob("*") if p.is_file()]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "mailbox"


def test_a_message_goes_and_its_reply_comes(folder):
    """Through flwr's objects, in pieces; then nothing is left."""
    box = Mailbox(folder)
    big = np.arange(2_000_000.0)  # 16 MB: four objects
    box.post(question((big, np.ones((2, 2)))), RUN, 10.0)
    node = Supernode(box)
    received = node.receive()
    assert received.metadata.created_at == 10.0
    np.testing.assert_array_equal(values_of(received)[0], big)
    assert box.run(7) == RUN
    assert not box.wait(0.0)
    assert all(node.send(*node.reply(received, big + 1)))
    assert box.wait(0.0)
    np.testing.assert_array_equal(values_of(box.reply())[0], big + 1)
    assert box.pending() is None
    box.clear()
    assert not files(folder)


def test_a_reply_of_equal_chunks_is_whole(folder):
    """Zeros: the same object occurs twice in the tree, and is sent once."""
    zeros = np.zeros(3_000_000)
    box = Mailbox(folder)
    box.post(question((zeros,)), RUN, 0.0)
    node = Supernode(box)
    node.send(*node.reply(node.receive(), zeros, zeros))
    assert all(not value.any() for value in values_of(box.reply()))


def test_the_same_message_after_a_kill_keeps_the_reply(folder):
    """A SuperNode that answered while the bridge was away is not asked again."""
    before = Mailbox(folder)
    before.post(question(), RUN, 10.0)
    received = Supernode(before).receive()
    after = Mailbox(folder)
    assert after.pending() is None  # no task waits yet
    node = Supernode(after)
    node.send(*node.reply(received, np.ones(2)))
    again = Mailbox(folder)
    posted = threading.Event()
    again._posted = posted.set
    again.post(question(), RUN, 99.0)
    assert posted.is_set()
    assert again.wait(0.0)
    np.testing.assert_array_equal(values_of(again.reply())[0], np.ones(2))


@pytest.mark.parametrize("values", [SIX, (np.zeros(6),)])
def test_another_message_replaces_one_left_by_a_kill(folder, values):
    """Of another round, or of another model."""
    left = Mailbox(folder)
    left.post(question(), RUN, 10.0)
    old = Supernode(left).receive()
    box = Mailbox(folder)
    box.post(question(values, round_number=2), RUN, 20.0)
    node = Supernode(box)
    with pytest.raises(StaleError):
        node.send(*node.reply(old, np.ones(1)))
    np.testing.assert_array_equal(values_of(node.receive())[0], values[0])


def test_a_damaged_message_is_sent_anew(folder):
    """As after a loss of power: its files may be empty."""
    Mailbox(folder).post(question(), RUN, 10.0)
    (folder / "message").write_bytes(b"\xff\xff")
    box = Mailbox(folder)
    assert not files(folder)
    box.post(question(), RUN, 20.0)
    assert Supernode(box).receive().metadata.created_at == 20.0


def test_a_damaged_reply_fails_the_task(folder):
    """An object on disk that differs from its digest is never used."""
    box = Mailbox(folder)
    box.post(question(), RUN, 0.0)
    node = Supernode(box)
    node.send(*node.reply(node.receive(), np.ones(2)))
    damaged = max((folder / "in").iterdir(), key=os.path.getsize)
    damaged.write_bytes(b"0" * damaged.stat().st_size)
    with pytest.raises(UsageError, match="is damaged"):
        box.reply()


def test_a_second_reply_replaces_an_unfinished_one_and_never_a_whole_one(folder):
    """A SuperNode that was killed in its push trains again, with another message."""
    box = Mailbox(folder)
    box.post(question(), RUN, 0.0)
    node = Supernode(box)
    received = node.receive()
    head, tree, objects = node.reply(received, np.ones(2))
    wanted, session = box.begin_reply(head, tree)
    assert box.put(session, wanted[0], objects[wanted[0]])
    assert all(node.send(*node.reply(received, np.full(2, 2.0))))
    assert not box.put(session, wanted[1], objects[wanted[1]])
    with pytest.raises(StaleError):
        box.begin_reply(head, tree)
    np.testing.assert_array_equal(values_of(box.reply())[0], [2.0, 2.0])
    assert len(list((folder / "in").iterdir())) == len(objects)


def test_a_repeated_push_continues_where_it_was(folder):
    """Objects that are here are not asked for again."""
    box = Mailbox(folder)
    box.post(question(), RUN, 0.0)
    node = Supernode(box)
    head, tree, objects = node.reply(node.receive(), np.ones(2))
    wanted, session = box.begin_reply(head, tree)
    box.put(session, wanted[0], objects[wanted[0]])
    assert box.begin_reply(head, tree)[0] == wanted[1:]


def test_a_push_goes_on_after_a_restart(folder):
    """In its session: flwr drops a reply, and trains again, if an object is not stored."""
    box = Mailbox(folder)
    box.post(question(), RUN, 0.0)
    node = Supernode(box)
    head, tree, objects = node.reply(node.receive(), np.ones(2))
    wanted, session = box.begin_reply(head, tree)
    assert box.put(session, wanted[0], objects[wanted[0]])
    box = Mailbox(folder)
    assert all(box.put(session, name, objects[name]) for name in wanted[1:])
    assert box.put(session, wanted[1], objects[wanted[1]])  # its first answer was lost
    box.post(question(), RUN, 0.0)
    np.testing.assert_array_equal(values_of(box.reply())[0], np.ones(2))


@pytest.mark.parametrize("bad", ["bytes", "tree", "root", "many"])
def test_a_malformed_reply_fails_the_task_with_the_reason(folder, bad, monkeypatch):
    """Wrong bytes, paths as names, another root, and a tree without end."""
    monkeypatch.setattr(module, "REPLY_OBJECTS", 10)
    box = Mailbox(folder)
    box.post(question(), RUN, 0.0)
    node = Supernode(box)
    head, tree, _ = node.reply(node.receive(), np.ones(2))
    if bad == "bytes":
        wanted, session = box.begin_reply(head, tree)
        with pytest.raises(MalformedReplyError, match="digest"):
            box.put(session, wanted[0], b"others")
    else:
        if bad == "tree":
            tree.children.append(ObjectTree(object_id="../../message"))
        elif bad == "root":
            head.metadata.message_id = "0" * 64
        else:
            names = (sha256(b"%d" % i).hexdigest() for i in range(100))
            tree.children.extend(ObjectTree(object_id=name) for name in names)
        with pytest.raises(MalformedReplyError):
            box.begin_reply(head, tree)
    assert box.wait(0.0)
    with pytest.raises(UsageError, match="was refused"):
        box.reply()
    assert box.pending() is None  # it is not asked again and again


def test_a_reply_that_is_too_long_is_refused_and_bounded_on_disk(folder, monkeypatch):
    """The bound follows from the message."""
    monkeypatch.setattr(module, "REPLY_BYTES", 1000)
    box = Mailbox(folder)
    box.post(question((np.zeros(1000),)), RUN, 0.0)
    node = Supernode(box)
    with pytest.raises(MalformedReplyError, match="bytes"):
        node.send(*node.reply(node.receive(), *(np.full(1000, float(i)) for i in range(10))))
    sent = sum(p.stat().st_size for p in (folder / "out").iterdir())
    assert sum(p.stat().st_size for p in (folder / "in").iterdir()) <= 4 * sent + 1000


@pytest.mark.parametrize(
    "root", [b"ArrayRecord  0\x00", b"Array  3\x00{}!", b"nonsense", b"Message  2\x00\xff\xff", b""]
)
def test_a_reply_that_cannot_be_read_fails_the_task(folder, root):
    """Any bytes with the right digest."""
    box = Mailbox(folder)
    box.post(question(), RUN, 0.0)
    node = Supernode(box)
    head, _, _ = node.reply(node.receive(), np.ones(2))
    name = sha256(root).hexdigest()
    head.metadata.message_id = name
    node.send(head, ObjectTree(object_id=name), {name: root})
    with pytest.raises(UsageError, match="SuperNode"):
        box.reply()


def swollen(objects, times):
    """Objects of a reply in which each array lists its chunks `times` times, and their tree."""
    named = {}
    made = {}

    def add(old):
        head, _, body = objects[old].partition(b"\0")
        kind, children, _ = head.decode().split(" ")
        trees = [add(child) for child in children.split(",") if child]
        if kind == "Array":
            described = json.loads(body)
            described["arraychunk_ids"] *= times
            body = json.dumps(described).encode()
        for before, after in named.items():
            body = body.replace(before.encode(), after.encode())
        ids = ",".join(tree.object_id for tree in trees)
        data = f"{kind} {ids} {len(body)}".encode() + b"\0" + body
        name = named[old] = sha256(data).hexdigest()
        made[name] = data
        return ObjectTree(object_id=name, children=trees)

    return add, made


@pytest.mark.parametrize(("times", "fits"), [(40, True), (50_000, False)])
def test_an_array_that_lists_a_chunk_again_and_again_is_bounded(folder, times, fits):
    """A reply of 200 KB that would take 600 MB of memory; it is gone after its refusal."""
    box = Mailbox(folder)
    box.post(question(), RUN, 0.0)
    node = Supernode(box)
    head, tree, objects = node.reply(node.receive(), np.zeros(1500))
    add, made = swollen(objects, times)
    tree = add(tree.object_id)
    head.metadata.message_id = tree.object_id
    assert all(node.send(head, tree, made))
    box = Mailbox(folder)  # after a restart too
    box.post(question(), RUN, 0.0)
    tracemalloc.start()
    try:
        if fits:
            array = box.reply().content["arrays"]["0"]
            assert len(array.data) == times * (1500 * 8 + 128)
        else:
            with pytest.raises(UsageError, match="arrays of at most"):
                box.reply()
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
    assert bool(files(folder)) is fits


def test_an_array_of_arrays_is_refused(folder):
    """Each could list the one below again and again."""
    box = Mailbox(folder)
    box.post(question(), RUN, 0.0)
    node = Supernode(box)
    head, tree, objects = node.reply(node.receive(), np.zeros(15))
    add, made = swollen(objects, 10)
    add(tree.object_id)
    inner = next(name for name, data in made.items() if data.startswith(b"Array "))
    body = b'{"dtype": "f8", "shape": [1], "stype": "x", "arraychunk_ids": [0, 0]}'
    outer = f"Array {inner} {len(body)}".encode() + b"\0" + body
    chunk = made[inner].split(b" ")[1].decode()
    name = sha256(outer).hexdigest()
    head.metadata.message_id = name
    parts = [ObjectTree(object_id=inner, children=[ObjectTree(object_id=chunk)])]
    tree = ObjectTree(object_id=name, children=parts)
    assert all(node.send(head, tree, made | {name: outer}))
    with pytest.raises(UsageError, match=r"\(Array\) do not match"):
        box.reply()
    assert not files(folder)


def test_objects_are_served_by_digest_only(folder):
    """Not by path, and not of the reply."""
    box = Mailbox(folder)
    box.post(question(), RUN, 0.0)
    assert box.object("../message") is None
    assert box.object("0" * 64) is None
    assert box.run(8) is None


def test_messages_on_the_wire_have_no_content(folder):
    """It goes in objects."""
    box = Mailbox(folder)
    box.post(question(), RUN, 0.0)
    head = message_from_proto(box.pending().messages_list[0])
    assert not len(head.content)


def test_a_closed_message_waits_for_the_same_task(folder):
    """As when a SuperNode is out of reach for a while, or the bridge restarts."""
    box = Mailbox(folder)
    box.post(question(), RUN, 10.0)
    received = Supernode(box).receive()
    box.close()
    assert box.pending() is None
    node = Supernode(box)
    assert all(node.send(*node.reply(received, np.ones(2))))
    box.post(question(), RUN, 20.0)
    np.testing.assert_array_equal(values_of(box.reply())[0], np.ones(2))
    box.clear()
    assert not files(folder)
