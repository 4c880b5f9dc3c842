"""What is in flight with offers: a client that does not read leaves the others their offers."""

import asyncio
from types import SimpleNamespace

from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.fleet import offered_models
from fedloom.server.fleet.offered_models import OfferedModels
from fedloom.server.rounds.member_records import Record


class Peer:
    """A client's stream; it takes a model once `reads` is set."""

    def __init__(self):
        self.reads, self.got = asyncio.Event(), []

    async def write(self, message):
        if isinstance(message, bytes):
            await self.reads.wait()
        self.got.append(message)


def test_a_client_that_does_not_read_holds_up_no_other(tmp_path, monkeypatch):
    """Its model stays in flight: others get their offers alone until it ends."""
    monkeypatch.setattr(offered_models, "IN_FLIGHT_BYTES", 150)
    (tmp_path / "m").write_bytes(bytes(100))
    server = SimpleNamespace(
        models=SimpleNamespace(path=lambda digest: tmp_path / digest),
        meters=SimpleNamespace(sent=SimpleNamespace(inc=lambda size: None)),
    )
    records = {name: Record() for name in ("stuck", "other", "later")}
    rounds = SimpleNamespace(record_of=lambda client, digest: (records[client], True))
    model = fleet_pb2.ModelRef(digest="m", size_bytes=100)

    def offer():
        return fleet_pb2.ServerMessage(offer=fleet_pb2.Task(model=model))

    async def play():
        models, peers = OfferedModels(server, rounds), {name: Peer() for name in records}
        senders = {name: models.sender(name, peer, 1000) for name, peer in peers.items()}
        stuck = asyncio.ensure_future(senders["stuck"](offer()))
        await asyncio.sleep(0)
        await senders["other"](offer())
        stuck.cancel()
        await asyncio.wait([stuck])
        peers["later"].reads.set()
        await senders["later"](offer())
        return {name: peer.got for name, peer in peers.items()}

    got = asyncio.run(play())
    assert [message.model_follows for (message,) in (got["stuck"], got["other"])] == [True, False]
    assert (got["later"][0].model_follows, got["later"][1:]) == (True, [bytes(100)])
    assert {name: each.bytes_down for name, each in records.items()} == {
        "stuck": 0, "other": 0, "later": 100,
    }  # fmt: skip
