"""Calls that a bridge refuses, while a stock SuperNode beside them trains on."""

import socket
import ssl
import threading
from base64 import b64encode
from contextlib import suppress

import httpx
import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: make flower")
pytest.importorskip("sqlalchemy", reason="needs the server's extra")

from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse, PushObjectRequest
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER

from support.flower import APPS
from support.supernodes import Driven, bridged

pytestmark = [pytest.mark.e2e, pytest.mark.long]

APP = APPS / "plainmean"
RUN = """
name = "beside"
rounds = 4
evaluate = false
[cohort]
goal = 2
quorum = 1
deadline_s = 60
[train]
epochs = 1
learning_rate = 1.0
"""
BEAT = SendNodeHeartbeatRequest(heartbeat_interval=30)


def record(*values):
    arrays = ArrayRecord({name: Array(value) for name, value in zip("wb", values, strict=False)})
    metrics = MetricRecord({"num-examples": 1})
    return RecordDict({"arrays": arrays, "metrics": metrics})


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """A server, a bridge, and the keys of two enrolled SuperNodes; the second is driven."""
    with bridged(tmp_path_factory.mktemp("calls"), APP) as (here, bridge):
        keys = [bridge.enrol(f"node-{number}") for number in range(2)]
        bridge.begin()
        yield here, bridge, keys


@pytest.fixture
def node(stage):
    """The second SuperNode, activated."""
    _, bridge, keys = stage
    with Driven(bridge, keys[1]) as made:
        made.activate()
        yield made


def test_calls_of_a_key_that_is_not_enrolled_are_refused(stage):
    """Also with a key that another call claims."""
    _, bridge, _ = stage
    with Driven(bridge, bridge.key("stranger")) as stranger:
        activate = ActivateNodeRequest(public_key=stranger.public, heartbeat_interval=30)
        assert stranger.call("activate-node", activate)[0] == 412
        assert stranger.call("register-node", RegisterNodeFleetRequest())[0] == 412
        assert stranger.call("send-node-heartbeat", BEAT)[0] == 401


def test_calls_without_proof_of_the_key_are_refused(stage, node):
    """A time that is signed by it and is now; a node that is its own."""
    old = {TIMESTAMP_HEADER: "2020-01-01T00:00:00+00:00"}
    for change in (
        old,
        {TIMESTAMP_HEADER: "yesterday"},
        {TIMESTAMP_HEADER: "2020-01-01T00:00:00"},  # without a zone
        {FLEET_HTTP_SIGNATURE_HEADER: ""},
        {FLEET_HTTP_SIGNATURE_HEADER: "!"},
        {FLEET_HTTP_PUBLIC_KEY_HEADER: ""},
        {FLEET_HTTP_PUBLIC_KEY_HEADER: "AAAA"},
    ):
        assert node.call("send-node-heartbeat", BEAT, change=change)[0] == 401, change
    with Driven(stage[1], stage[2][0]) as other:  # the other's signature under its name
        claim = {FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(node.public).decode()}
        assert other.call("send-node-heartbeat", BEAT, change=claim, node=node.id)[0] == 401
        mismatch = ActivateNodeRequest(public_key=other.public, heartbeat_interval=30)
    assert node.call("send-node-heartbeat", BEAT, node=1)[0] == 401
    assert node.call("activate-node", mismatch)[0] == 401
    status, body = node.call("send-node-heartbeat", BEAT)
    assert (status, SendNodeHeartbeatResponse.FromString(body).success) == (200, True)


def test_calls_that_are_too_long_or_malformed_are_refused(node):
    """By limits of each call; other apps and objects are not served."""
    assert node.call("pull-messages", b"\xff\xff\xff")[0] == 400
    for name, message in (
        ("send-node-heartbeat", b"\0" * (9 << 20)),
        ("push-object", PushObjectRequest(object_content=bytes(17 << 20))),
    ):
        with suppress(httpx.TransportError):  # it may end while the body is sent
            assert node.call(name, message)[0] == 413
    assert node.call("push-messages", PullMessagesRequest())[0] == 400
    assert node.call("get-fab", GetFabRequest(hash_str="0" * 64))[0] == 403
    assert node.call("get-run", GetRunRequest(run_id=1))[0] == 403
    status, body = node.call("pull-object", PullObjectRequest(object_id="../message"))
    assert (status, PullObjectResponse.FromString(body).object_found) == (200, False)
    assert node.call("send-node-heartbeat", BEAT)[0] == 200


def test_a_silent_connection_is_closed(stage):
    """One that makes no call in its first seconds."""
    _, bridge, _ = stage
    tls = ssl.create_default_context(cafile=str(bridge.root))
    with (
        socket.create_connection(("127.0.0.1", bridge.port)) as raw,
        tls.wrap_socket(raw, server_hostname="127.0.0.1") as connection,
    ):
        connection.settimeout(30)
        connection.sendall(b"POST /v1/fleet/")
        assert connection.recv(1) == b""


def test_a_hostile_supernode_fails_its_own_tasks_only(stage, node):
    """Wrong bytes, too many, and no arrays: its tasks fail, the rounds have the other's updates."""
    here, bridge, keys = stage
    first = here.directory / "init.safetensors"
    here.call("model", "init", "--flower", "plainmean.client_app:initial", "--out", first)
    bridge.attend("node-0", 0, 2, keys[0])
    online = ("client", "list", "--state", "online", "--dir", here.server)
    here.waited(lambda: len(here.call(*online)["clients"]) == 2)
    run = here.submit(RUN, first)
    said = []

    def behave():
        call, objects = node.reply(node.pull(), record(np.ones((2, 3)), np.ones(3)))
        said.append(node.push(call, dict.fromkeys(objects, b"other bytes")))
        call, objects = node.reply(node.pull(), record(np.arange(6 << 20, dtype=np.float64)))
        said.append(node.push(call, objects))
        head = node.pull()
        stale, things = call, objects
        call, objects = node.reply(head, RecordDict())
        said.extend([node.push(stale, things), node.push(call, objects)])
        call, objects = node.reply(node.pull(), record(np.ones((2, 3)), np.full(3, np.nan)))
        said.append(node.push(call, objects))

    behaving = threading.Thread(target=behave, daemon=True)
    behaving.start()
    status = here.ended(run)
    behaving.join(30)
    assert status["state"] == "finished", here.logs()
    assert said == [400, 400, 403, 200, 200], here.logs()
    listed = here.call("client", "list", "--dir", here.server)["clients"]
    assert {c["name"]: (c["counted"], c["failed"], c["refused"]) for c in listed} == {
        "node-0": (4, 0, 0), "node-1": (0, 3, 1),  # NaN is refused by the server, as any client's
    }  # fmt: skip
    for value in here.model().values():
        np.testing.assert_array_equal(value, np.full(value.shape, 2.5))
    here.waited(lambda: not bridge.objects())
