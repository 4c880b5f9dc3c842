"""A thousand idle clients on one server: what each costs, and how fast one word reaches them all.

Each client has a certificate and a connection of its own (mTLS); a few processes hold them all,
attending by a bare stream with the transport settings of the real agent. Measured: the server's
resident memory per client, its CPU while nothing happens, and, when a run that wants everybody is
submitted, the time from the first offer received to the last. Prints a table and writes
out/idle.json.
"""

import argparse
import asyncio
import multiprocessing
import time

from deployment import cpu_s, deployed, memory_bytes, model, report
from wire import Stream, open_channel

SPAWN = multiprocessing.get_context("spawn")
AT_ONCE = 16
"""Handshakes under way at a time in one process."""
PATIENCE_S = 300.0


def hold(configs, pipe):
    """Attend for each of these clients; send the time at which each got its offer."""
    asyncio.run(_hold(configs, pipe))


async def _hold(configs, pipe):
    places = asyncio.Semaphore(AT_ONCE)
    streams = await asyncio.gather(*(attend(config, places) for config in configs))
    pipe.send(len(streams))
    pipe.send(await asyncio.gather(*map(_offered, streams)))
    await asyncio.to_thread(pipe.recv)


async def attend(path, places, **to):
    """Begin the stream of a client once there is a place; `to` as of `open_channel`."""
    async with places:
        return await Stream(path.parent.name, open_channel(path, **to)).begin()


async def _offered(stream):
    async for task in stream.offers():
        at = time.monotonic()
        await stream.accept(task)
        return at
    raise RuntimeError(f"Expected an offer, got {await stream.details()}")


def answer(pipe, patience_s=PATIENCE_S):
    """What a client process sends next."""
    if not pipe.poll(patience_s):
        raise RuntimeError("the clients do not answer")
    return pipe.recv()


def measure(num_clients, num_processes, idle_s):
    names = [f"c{i:05d}" for i in range(num_clients)]
    with deployed(names) as deployment:
        # A first client's connection makes what all share: that is the idle process.
        time.sleep(1.0)
        before, _ = memory_bytes(deployment.pid)
        begin = time.monotonic()
        pipes = spread(hold, list(deployment.clients.values()), num_processes)
        sum(map(answer, pipes))
        deployment.wait_online(num_clients)
        connected_s = time.monotonic() - begin
        time.sleep(2.0)
        resident, _ = memory_bytes(deployment.pid)
        cpu = cpu_s(deployment.pid)
        time.sleep(idle_s)
        idle_cpu = (cpu_s(deployment.pid) - cpu) / idle_s
        spec = {
            "name": "idle",
            "rounds": 1,
            "evaluate": False,
            "cohort": {"goal": num_clients, "quorum": 1, "deadline_s": 3600.0},
            "train": {"steps": 1, "learning_rate": 1.0},
        }
        params = model(1000)
        cpu = cpu_s(deployment.pid)
        submitted = time.monotonic()
        run = deployment.submit(params, spec)
        offered = [at for pipe in pipes for at in answer(pipe)]
        broadcast_cpu = cpu_s(deployment.pid) - cpu
        after, _ = memory_bytes(deployment.pid)
        deployment.status(run)
        for pipe in pipes:
            pipe.send("end")
    return {
        "clients": num_clients,
        "connected_s": connected_s,
        "kib_per_client": (resident - before) / num_clients / 1024,
        "kib_per_client_after_broadcast": (after - before) / num_clients / 1024,
        "server_mib_without_clients": before / 2**20,
        "idle_percent_of_a_core": 100 * idle_cpu,
        "first_to_last_offer_s": max(offered) - min(offered),
        "submitted_to_last_offer_s": max(offered) - submitted,
        "broadcast_server_cpu_s": broadcast_cpu,
    }


def spread(work, configs, num_processes):
    """Start processes that each do their share of this work; their pipes."""
    pipes = []
    for number in range(num_processes):
        here, there = SPAWN.Pipe()
        arguments = (configs[number::num_processes], there)
        SPAWN.Process(target=work, args=arguments, daemon=True).start()
        pipes.append(here)
    return pipes


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--idle", type=float, default=20.0, help="seconds of idling measured")
    arguments = parser.parse_args()
    found = measure(arguments.clients, arguments.processes, arguments.idle)
    targets = {
        "kib_per_client": "< 100",
        "idle_percent_of_a_core": "< 2",
        "first_to_last_offer_s": "< 1",
    }
    rows = [(name, value, targets.get(name, "")) for name, value in found.items()]
    report("idle", ("", "measured", "target"), rows)


if __name__ == "__main__":
    main()
