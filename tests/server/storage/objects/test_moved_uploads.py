"""An upload that began at the driver and was accepted at a gate is folded as the gate has it."""

import asyncio
from types import SimpleNamespace

import pytest

from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.ledger.rows import AcceptedRow
from fedloom.server.rounds.round_sum import RoundSum
from fedloom.server.threads import Thread

KEY = ("run-abc", 1)
BODIES = {"ann": b"a" * 2500, "bob": b"b" * 2500}


def stored(machine, client, body):
    """Receive a body at a server, all or a part of it; the file's name."""
    header = fleet_pb2.UpdateHeader(client=client, size_bytes=2500)
    file = machine.spool.open(*KEY, header)
    if len(body) == header.size_bytes:
        file.begin()
    file.append(body)
    if len(body) == header.size_bytes:
        file.sync()
    file.close()
    return file.name


@pytest.mark.parametrize("needs", ["sum", "updates"])
def test_a_part_on_the_drivers_disk_is_not_folded(machines, monkeypatch, part_bytes, needs):
    """That of ann is at the driver in part; that of bob, which it accepted, is not fetched anew."""
    gate = machines.new()
    names = {"ann": stored(gate, "ann", BODIES["ann"])}
    driver = machines.new()
    names["bob"] = stored(driver, "bob", BODIES["bob"])
    assert stored(driver, "ann", b"\0" * 1200) == names["ann"]
    before = driver.spool.path(names["bob"]).stat().st_ino
    rows = [
        AcceptedRow(client=client, round=1, file=file, staleness=0, gate=at)
        for (client, file), at in zip(names.items(), ("g", None), strict=True)
    ]
    folded = {}

    async def fetch(file, *, if_kept=False):
        driver.spool.fetch_kept(file) if if_kept else driver.spool.fetch(file)

    async def sealed(_):
        return rows

    def fold(sum_, waiting):
        for each in waiting:
            folded[each.client] = driver.spool.path(each.file).read_bytes()[:2500]
        return [[] for _ in waiting]

    def finish(sum_, accepted):
        if needs == "updates":
            for row in accepted:
                driver.spool.fetch(row.file)
                fold(sum_, [row])

    monkeypatch.setattr(RoundSum, "_fold_in_thread", fold)
    monkeypatch.setattr(RoundSum, "_finish_in_thread", finish)
    monkeypatch.setattr(RoundSum, "_empty", lambda _: None)
    spec = SimpleNamespace(needs=needs, buffer_config=lambda: None)
    plan = SimpleNamespace(key=KEY, number=1, spec=spec)
    thread = Thread("fold")
    context = SimpleNamespace(spool=driver.spool, sealed=sealed, fetch=fetch, in_fold=thread)
    asyncio.run(RoundSum(plan, context).finish(rows))
    thread.close()
    assert folded == BODIES
    assert driver.spool.path(names["bob"]).stat().st_ino == before
