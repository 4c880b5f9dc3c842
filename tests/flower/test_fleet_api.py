"""Calls to a bridge that are slow, many, or of nobody in particular, without a network."""

import asyncio
import math
import threading
from http import HTTPStatus
from types import SimpleNamespace

import httpx
import pytest

pytest.importorskip("flwr", reason="needs Flower: make flower")

from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.run_pb2 import GetRunRequest, Run
from starlette.requests import Request

from fedloom.client.supernodes import fleet_api as module
from fedloom.client.supernodes.fleet_api import CallError, FleetApi
from fedloom.client.supernodes.mailboxes import Mailboxes
from fedloom.client.supernodes.node import allowed

NODE = SimpleNamespace(id=5)
BEAT = SendNodeHeartbeatRequest(heartbeat_interval=30)


def api():
    return FleetApi(lambda _: None, None)


def arriving(chunks, every_s):
    """A call whose body arrives chunk by chunk."""
    left = list(chunks)

    async def receive():
        await asyncio.sleep(every_s)
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


def test_a_slow_body_arrives_and_a_stalled_one_does_not(monkeypatch):
    """An object of 5 MiB takes minutes on a slow line; bytes that drip hold no place."""
    monkeypatch.setattr(module, "STEP_S", 0.3)
    monkeypatch.setattr(module, "STEP_BYTES", 1000)
    sent = PushObjectRequest(object_content=bytes(20_000)).SerializeToString()
    chunks = [sent[at : at + 2000] for at in range(0, len(sent), 2000)]

    async def receive(chunks):
        return await api()._parsed(NODE, arriving(chunks, 0.05), PushObjectRequest)

    assert asyncio.run(receive(chunks)).object_content == bytes(20_000)  # 0.55 s
    with pytest.raises(CallError, match="more, or the end") as caught:
        asyncio.run(receive([b"\0"] * 100))
    assert caught.value.status is HTTPStatus.REQUEST_TIMEOUT
    assert caught.value.response().headers["connection"] == "close"


def test_slow_replies_hold_up_no_small_calls_and_no_other_node(monkeypatch):
    """One SuperNode has few bodies in memory; its heartbeats pass."""
    monkeypatch.setattr(module, "BODIES", 6)
    other = SimpleNamespace(id=6)

    async def main():
        served = module.FleetApi(lambda _: None, None)
        slow = [
            asyncio.ensure_future(served._parsed(NODE, arriving([b"x"], 1000.0), kind))
            for kind in (PushObjectRequest, PushMessagesRequest) * 4
        ]
        await asyncio.sleep(0.01)
        async with asyncio.timeout(5):
            data = BEAT.SerializeToString()
            for node in (NODE, other):
                assert await served._parsed(node, arriving([data], 0.0), type(BEAT)) == BEAT
            part = PushObjectRequest(object_content=b"part")
            data = part.SerializeToString()
            assert await served._parsed(other, arriving([data], 0.0), type(part)) == part
        for each in slow:
            each.cancel()

    asyncio.run(main())


def test_the_loop_does_not_wait_for_a_mailbox(tmp_path):
    """Its lock is held while an object is written."""
    holding, released, waited = threading.Event(), threading.Event(), []

    def hold(box):
        with box._lock:
            holding.set()
            waited.append(released.wait(5))

    async def main():
        boxes = Mailboxes(tmp_path)
        node = SimpleNamespace(mailboxes=boxes, posted=asyncio.Event(), seen=lambda: None)
        boxes.of("train")._run = Run(run_id=7)
        holder = threading.Thread(target=hold, args=(boxes.of("train"),))
        holder.start()
        holding.wait(5)
        served = api()
        calls = [
            asyncio.ensure_future(served._pull(node, PullMessagesRequest())),
            asyncio.ensure_future(served._run(node, GetRunRequest(run_id=7))),
        ]
        await asyncio.sleep(0.05)
        boxes.suspend()
        boxes.resume()
        released.set()
        assert (await calls[1]).run.run_id == 7
        calls[0].cancel()
        holder.join()

    asyncio.run(main())
    assert waited == [True]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/", 404),
        ("POST", "/v1/fleet/pull-messages/", 404),
        ("GET", "/v1/fleet/pull-messages", 405),
        ("POST", "/v1/fleet/activate-node", 412),
        ("POST", "/v1/fleet/register-node", 412),
        ("POST", "/v1/fleet/pull-messages", 401),
    ],
)
def test_answers_to_strangers_close_the_connection(method, path, status):
    """Else it would be kept for more than a minute."""

    async def main():
        transport = httpx.ASGITransport(api().app)
        async with httpx.AsyncClient(transport=transport, base_url="https://bridge") as client:
            return await client.request(method, path)

    answer = asyncio.run(main())
    assert (answer.status_code, answer.headers.get("connection")) == (status, "close")
    assert set(answer.json()) == {"code", "detail"}


@pytest.mark.parametrize(
    ("asked", "given"),
    [(30, 30), (1, 10), (-math.inf, 10), (1e9, 1800), (math.inf, 1800), (math.nan, 10)],
)
def test_the_time_between_heartbeats_is_bounded(asked, given):
    """NaN would reach the clock of the loop."""
    assert allowed(asked) == given
