"""Flower's own loop over an example, for run.py: a ServerApp, and its ClientApp in one process.

    python loop.py < settings.json

It is what `flwr run` does in a simulation, without Ray and its order of arrival: the ServerApp gets
a Grid, each message travels as Flower's protobuf, and the ClientApp handles one after another,
with a Context of its own for each node. An answer that took longer than the ServerApp waits is
lost, as if all nodes worked at the same time.
"""

import json
import socket
import subprocess
import sys
import threading
import time
import traceback
import uuid
from multiprocessing.connection import Connection

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as Proto
from flwr.serverapp.grid import Grid
from flwr.supercore.object_ref import load_app
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

RUN, SERVER = 1, 1


def identify(node):
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = RUN, 1, node


def serve(pipe, settings):
    """The nodes: say whether the app loads, then answer messages until the pipe closes."""
    try:
        app = load_app(settings["clientapp"], ImportError, settings["folder"])
    except Exception as error:  # noqa: BLE001 - an app may raise anything
        traceback.print_exc()
        pipe.send(repr(error))
        return
    pipe.send(None)
    contexts = {
        node: Context(RUN, node, config, RecordDict(), dict(settings["run_config"]))
        for node, config in zip(settings["node_ids"], settings["node_configs"], strict=True)
    }
    while True:
        try:
            message = message_from_proto(Proto.FromString(pipe.recv_bytes()))
        except EOFError:
            return
        node = message.metadata.dst_node_id
        identify(node)
        try:
            reply = app(message, contexts[node])
        except Exception as error:  # noqa: BLE001 - an app may raise anything
            traceback.print_exc()
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, repr(error)),
                            reply_to=message)  # fmt: skip
        pipe.send_bytes(message_to_proto(reply).SerializeToString())


class Loop(Grid):
    """A Grid over the nodes behind a pipe."""

    def __init__(self, pipe, node_ids):
        self._pipe, self._node_ids = pipe, node_ids
        self._lock = threading.Lock()  # the older API asks from a thread for each node
        self._replies = {}

    run = property(lambda self: Run.create_empty(RUN))  # noqa: ARG005

    def set_run(self, run):
        raise NotImplementedError

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self):
        return list(self._node_ids)

    def push_messages(self, messages):
        return [self._ask(message) for message in messages]

    def _ask(self, message):
        name = message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
        with self._lock:
            begin = time.monotonic()
            self._pipe.send_bytes(message_to_proto(message).SerializeToString())
            reply = message_from_proto(Proto.FromString(self._pipe.recv_bytes()))
            self._replies[name] = (time.monotonic() - begin, reply)
        return name

    def pull_messages(self, message_ids):
        with self._lock:
            return [self._replies.pop(name)[1] for name in message_ids if name in self._replies]

    def send_and_receive(self, messages, *, timeout=None):
        names = self.push_messages(messages)
        with self._lock:
            replies = [self._replies.pop(name) for name in names]
        return [reply for took, reply in replies if timeout is None or took < timeout]


def main():
    settings = json.load(sys.stdin)
    if len(sys.argv) > 1:
        serve(Connection(int(sys.argv[1])), settings)
        return
    ours, theirs = socket.socketpair()
    # No process of multiprocessing: it would set how the app's own processes begin.
    nodes = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        stdin=subprocess.PIPE, text=True, pass_fds=[theirs.fileno()],
    )  # fmt: skip
    theirs.close()
    json.dump(settings, nodes.stdin)
    nodes.stdin.close()
    here = Connection(ours.detach())
    identify(SERVER)
    try:
        if trouble := here.recv():
            sys.exit(f"The ClientApp cannot be loaded: {trouble}")
        app = load_app(settings["serverapp"], ImportError, settings["folder"])
        context = Context(RUN, SERVER, {}, RecordDict(), dict(settings["run_config"]))
        app(Loop(here, settings["node_ids"]), context)
    finally:
        here.close()
        nodes.wait()


if __name__ == "__main__":
    main()
