"""The sums of a gate, when an update cannot be added."""

import asyncio
from types import SimpleNamespace

import pytest

from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.ledger import AcceptedUpdate
from fedloom.server.metrics.meters import Meters
from fedloom.server.planning import limits
from fedloom.server.replicas import gate_sums
from fedloom.server.replicas.gate_sums import GateSums
from fedloom.server.threads import Thread

KEY = ("r", 1)
CLIENTS = ["one", "three", "two"]


class Storage:
    """The spool and the ledger of a gate: notes what is kept and sealed."""

    def __init__(self, directory):
        self.directory, self.kept, self.sealed = directory, [], []

    def path(self, name):
        return self.directory / name

    def header(self, _):
        return fleet_pb2.UpdateHeader(size_bytes=1)

    def keep(self, name, *_key):
        self.kept.append(name)

    def release_copy(self, name):
        pass

    def seal(self, _gate, _key, _file, members):
        self.sealed.append(members)
        return True


@pytest.mark.parametrize("broken", ["", "two"])
def test_a_sum_that_has_an_update_in_part_is_not_sealed(tmp_path, monkeypatch, broken):
    """Reading it failed in the middle: the driver folds the bodies of all members."""
    storage = play(tmp_path, monkeypatch, lambda sums: sums.seal(KEY), broken)
    assert storage.sealed == ([] if broken else [CLIENTS])
    assert len(storage.kept) == (0 if broken else 1)


@pytest.mark.parametrize("limit", ["MOST_UPDATES", "MOST_BYTES"])
@pytest.mark.parametrize("how", ["closed", "drained"])
def test_a_full_sum_is_sealed_and_another_one_begins(tmp_path, monkeypatch, limit, how):
    """At two updates, or at their bytes; the rest when the round closes, or the gate stops."""
    monkeypatch.setattr(gate_sums, limit, 2)

    async def end(sums):
        await sums._sealing.settled()
        assert storage.sealed == [CLIENTS[:2]]
        await (sums.seal(KEY) if how == "closed" else sums.drain())

    storage = Storage(tmp_path)
    play(tmp_path, monkeypatch, end, storage=storage)
    assert storage.sealed == [CLIENTS[:2], CLIENTS[2:]]


@pytest.mark.parametrize("broken", ["one", "two"])
def test_only_the_sum_with_an_update_in_part_is_lost(tmp_path, monkeypatch, broken):
    monkeypatch.setattr(gate_sums, "MOST_UPDATES", 2)
    storage = play(tmp_path, monkeypatch, lambda sums: sums.drain(), broken)
    assert storage.sealed == ([["two"]] if broken == "one" else [CLIENTS[:2]])


def play(tmp_path, monkeypatch, end, broken="", storage=None):
    """Add the clients' updates to the sums of a gate, and end; its storage."""
    storage = storage or Storage(tmp_path)
    spec = SimpleNamespace(needs="sum", buffer_config=lambda: None)
    plan = SimpleNamespace(key=KEY, spec=spec, manifest=None)

    def fold(self, updates, _):
        if broken in updates:
            raise OSError("the disk does not answer")
        self.folded.update(updates)

    monkeypatch.setattr(gate_sums.Folder, "fold", fold)
    monkeypatch.setattr(gate_sums.Folder, "save", lambda *_: [])
    monkeypatch.setattr(limits, "empty_sum", lambda *_: None)

    async def scene():
        names = ("in_fold", "in_fold_helpers", "in_bodies", "in_ledger")
        threads = {name: Thread(name) for name in names}
        server = SimpleNamespace(meters=Meters(), spool=storage, ledger=storage, **threads)
        sums = GateSums(server, "gate")
        for client in CLIENTS:
            size = {"identity": client, "size_bytes": 1, "weight": 1.0, "norm": 1.0}
            sums.add(plan, AcceptedUpdate(run="r", round=1, client=client, file=client, **size))
        await end(sums)
        for thread in threads.values():
            thread.close()

    asyncio.run(scene())
    return storage
