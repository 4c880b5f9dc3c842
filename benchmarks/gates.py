"""Processor time of servers for each gigabyte of updates, with one gate and with three.

Clients upload the same bodies over mTLS in each round, to the gates in turn, a few at once however
many gates there are: the machine is loaded alike. Counted is the time of all servers, from the
first round to the commit of the last one, without the threads that talk to the object store, which
are shown apart. A run of one round goes before, in which every server loads what it needs: two
seconds of numba alone. Both are measured in turns, on servers of their own. Prints a table and
writes out/gates.json.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import time
from pathlib import Path

from deployment import TICKS, machine, model, report
from gated import Gated, wait_for
from upload import make_body
from wire import Stream, header_for, open_channel

from fedloom.client.config import load
from fedloom.client.network import transfer
from fedloom.client.state.store import ClientStore
from fedloom.protocol.tensors.container import write_file

SPAWN = multiprocessing.get_context("spawn")
READY_S = 300.0
AT_ONCE = 6
"""Uploads in progress, of all gates."""
STORE_THREADS = "tokio"
"""Begins the names of the threads in which obstore sends and receives."""


def play(given, body, rounds, pipe):
    """Clients in one process: each answers every offer with the body."""
    asyncio.run(_play(given, body, rounds, pipe))


async def _play(given, body, rounds, pipe):
    clients = [await _begin(*each) for each in given]
    pipe.send("attending")
    places = asyncio.Semaphore(AT_ONCE)
    await asyncio.gather(*(_answer(each, body, rounds, places) for each in clients))
    pipe.recv()


async def _begin(path, server):
    channel = open_channel(path, server=server)
    store = ClientStore(load(path).state_dir)
    return await Stream(path.parent.name, channel).begin(), channel, store


async def _answer(client, body, rounds, places):
    (stream, channel, store), done = client, 0
    async for task in stream.offers():
        await stream.accept(task)
        header = header_for(body.header, stream.name, task)
        path = store.body_path(task.key.run, task.key.round)
        path.unlink(missing_ok=True)
        path.hardlink_to(body.path)
        async with places:
            await transfer.upload(channel, header, store, "the server")
        path.unlink()
        done += 1
        if done == rounds:
            return


def cpu_s(server):
    """Seconds of processor time of a server: of threads of the object store, and of all others."""
    store = others = 0
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        head, _, tail = (task / "stat").read_text().rpartition(")")
        used = sum(map(int, tail.split()[11:13]))
        if head.partition("(")[2].startswith(STORE_THREADS):
            store += used
        else:
            others += used
    return store / TICKS, others / TICKS


def measure(num_gates, num_clients, num_values, rounds):
    """Seconds of processor time for a gigabyte: of the store's threads, and of all others."""
    with Gated(num_gates) as gated:
        folder, params = gated.folder, model(num_values)
        body = make_body(folder, params)
        initial = folder / "initial.safetensors"
        write_file(initial, params)
        configs = gated.enrol([f"c{number:02d}" for number in range(num_clients)])
        places = [gate.settings.fleet for gate in gated.gates]
        given = [(path, places[n % num_gates]) for n, path in enumerate(configs.values())]
        here, there = SPAWN.Pipe()
        SPAWN.Process(target=play, args=(given, body, 1 + rounds, there), daemon=True).start()
        if not here.poll(READY_S):
            raise RuntimeError("the clients do not answer")
        here.recv()
        wait_for(lambda: gated.driver.online() == num_clients, gated.driver.log)
        servers = [gated.driver, *gated.gates]
        cohort = {"goal": num_clients, "quorum": num_clients, "deadline_s": 3000.0}
        train = {"steps": 1, "learning_rate": 1.0}
        spec = {"evaluate": False, "cohort": cohort, "train": train}
        first = gated.driver.submit(spec | {"name": "first", "rounds": 1}, initial)
        gated.driver.ended(first)
        before, begun = [cpu_s(each) for each in servers], time.monotonic()
        run = gated.driver.submit(spec | {"name": "gates", "rounds": rounds}, initial)
        gated.driver.ended(run)
        passed = time.monotonic() - begun
        used = [
            [now - then for now, then in zip(cpu_s(server), old, strict=True)]
            for server, old in zip(servers, before, strict=True)
        ]
        here.send("end")
        size = body.path.stat().st_size * num_clients * rounds / 1e9
        store, others = (sum(column) / size for column in zip(*used, strict=True))
        print(
            f"{num_gates} gates: {others:.2f} and {store:.2f} s a GB, {size:.2f} GB in "
            f"{passed:.0f} s, load {machine()['load'][0]}",
            flush=True,
        )
        return others, store


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=600)
    parser.add_argument("--values", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    found = {1: [], 3: []}
    for _ in range(arguments.repeats):
        for num_gates, each in found.items():
            each.append(measure(num_gates, arguments.clients, arguments.values, arguments.rounds))
    rows = [
        (f"{number} gates", *(statistics.median(column) for column in zip(*each, strict=True)))
        for number, each in found.items()
    ]
    ratios = [three[0] / one[0] for one, three in zip(found[1], found[3], strict=True)]
    rows.append(("3 to 1", statistics.median(ratios), ""))
    report("gates", ("", "s a GB", "of the store's threads"), rows)


if __name__ == "__main__":
    main()
