"""Accepts a second of one gate and of three, on a PostgreSQL whose commits take 5 ms.

Each gate is a process with the real ledger and the accept path of a gate: what waits together is
accepted in one transaction, which locks the round's row until its commit. Uploads are made before:
their bodies' rows are in the ledger. Commits are delayed by PostgreSQL's own `commit_delay`. Each
gate has so many uploads that wait at once. Prints a table and writes out/gate_accepts.json.
"""

import argparse
import asyncio
import hashlib
import multiprocessing
import statistics
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import sqlalchemy as sa
from deployment import machine, report

from fedloom.server.ledger import AcceptedUpdate, Ledger
from fedloom.server.ledger.replicas import gate_queues
from fedloom.server.ledger.replicas.batch_accepts import GateUpload
from fedloom.server.ledger.replicas.gate_queues import GateLease
from fedloom.server.ledger.tables import clients, spool_objects, updates
from fedloom.server.threads import Grouped, Thread
from support.postgresql import PostgreSQL

SPAWN = multiprocessing.get_context("spawn")
DELAY_S = 0.005
HEADER = b"header"
RUN = "r"


def serve(url, gate, names, how, pipe):
    """Accept the updates of these clients, so many at once."""
    at_once, one_by_one = how
    if one_by_one:
        gate_queues.together = lambda _: []
    asyncio.run(_serve(url, gate, names, at_once, pipe))


async def _serve(url, gate, names, at_once, pipe):
    ledger, in_ledger = Ledger(url), Thread("ledger")
    rows = ledger.lease_rows()
    rows.join(gate, "machine")
    ledger.fence(GateLease(gate).check)
    accept = Grouped(in_ledger, partial(ledger.accept_at_gate, gate, 0))
    waiting = [upload(name) for name in names]
    staying = asyncio.ensure_future(_stay(rows, gate))
    pipe.send("ready")
    await asyncio.to_thread(pipe.recv)
    cpu = time.process_time()

    async def one_after_another():
        while waiting:
            each = waiting.pop()
            try:
                assert await accept(each) is not None
            except sa.exc.OperationalError:  # it waited 2 s for the round's row
                waiting.append(each)

    await asyncio.gather(*(one_after_another() for _ in range(at_once)))
    pipe.send((time.monotonic(), time.process_time() - cpu))
    staying.cancel()
    ledger.close()


async def _stay(rows, gate):
    while True:
        await asyncio.to_thread(rows.stay, gate)
        await asyncio.sleep(1.0)


def upload(name):
    """A small update of a client, whose body is in the ledger."""
    update = AcceptedUpdate(
        client=name, run=RUN, round=1, identity=hashlib.sha256(HEADER).hexdigest(), file=file(name),
        size_bytes=9, weight=1.0, norm=1.0, training={"loss": 0.5}, evaluation={},
    )  # fmt: skip
    return GateUpload(update=update, capacity=10**6, parts=1)


def file(name):
    return f"{RUN}.1.{name}"


def fill(url, names):
    """A run in its first round, whose members' bodies are stored."""
    ledger = Ledger(url)
    ledger.add_run({"id": RUN, "name": RUN, "spec": {}, "state": "running", "model": "m"}, 9)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        known = {"status": "active", "enrolled_at": 1.0}
        connection.execute(clients.insert(), [{"name": name, **known} for name in names])
    round_ = {
        "run": RUN, "number": 1, "kind": "train", "opened_at": 1.0, "deadline_at": 9.0,
        "model_in": "m",
    }  # fmt: skip
    ledger.open_round(round_, names)
    with engine.begin() as connection:
        bodies = [
            {
                "object": f"updates/{name}", "file": file(name), "run": RUN, "round": 1,
                "header": HEADER, "size_bytes": 9, "parts": [[7, "0"]], "begun_at": 1.0,
            } for name in names
        ]  # fmt: skip
        connection.execute(spool_objects.insert(), bodies)
    engine.dispose()
    ledger.close()


def measure(database, num_gates, names, at_once, one_by_one):
    """Accepts a second, and the gates' processor time for one, in milliseconds."""
    url = database.create(f"accepts{time.monotonic_ns()}")
    fill(url, names)
    pipes = []
    for number in range(num_gates):
        here, there = SPAWN.Pipe()
        own = names[number::num_gates]
        arguments = (url, f"g{number}", own, (at_once // num_gates, one_by_one), there)
        SPAWN.Process(target=serve, args=arguments, daemon=True).start()
        pipes.append(here)
    for pipe in pipes:
        pipe.recv()
    begun = time.monotonic()
    for pipe in pipes:
        pipe.send("go")
    ended, cpu = zip(*(pipe.recv() for pipe in pipes), strict=True)
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = connection.execute(sa.select(sa.func.count()).select_from(updates)).scalar_one()
    engine.dispose()
    assert found == len(names)
    return len(names) / (max(ended) - begun), 1000 * sum(cpu) / len(names)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--waiting", type=int, default=300, help="uploads that wait at once")
    parser.add_argument("--one-by-one", action="store_true", help="within a transaction")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    names = [f"c{number:06d}" for number in range(arguments.updates)]
    database, found = PostgreSQL(), {1: [], 3: []}
    try:
        for setting in (f"commit_delay = {round(DELAY_S * 1e6)}", "commit_siblings = 0"):
            database.execute(f"ALTER SYSTEM SET {setting}")
        database.execute("SELECT pg_reload_conf()")
        for _ in range(arguments.repeats):
            for num_gates, each in found.items():
                each.append(
                    measure(database, num_gates, names, arguments.waiting, arguments.one_by_one)
                )
                print(num_gates, each[-1], machine()["load"], flush=True)
    finally:
        database.close()
    rows = [
        (
            f"{num_gates} gates", *(statistics.median(column) for column in zip(*each, strict=True))
        ) for num_gates, each in found.items()
    ]  # fmt: skip
    print(f"load {machine()['load']}")
    report("gate_accepts", ("", "accepts a second", "ms of a gate's CPU for one"), rows)


if __name__ == "__main__":
    main()
