"""How long an accept takes while all of a large round upload at once: 200 clients of 1 MB.

An accept is the time from the last byte that a client has sent to `accepted`: the rest of the
checks, the sync to disk, the ledger's row and the answer. The clients are streams over mTLS, one
connection each, in a few processes; their bodies were made before. Prints a table and writes
out/accepts.json.
"""

import argparse
import asyncio
import itertools
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

import grpc
from deployment import cpu_s, deployed, model, report
from upload import make_body
from wire import Stream, header_for, open_channel

from fedloom.protocol.transport import methods
from fedloom.protocol.v1 import fleet_pb2

SPAWN = multiprocessing.get_context("spawn")


def attend(configs, body, pipe):
    """Several clients in one process, until it is ended."""
    asyncio.run(_attend(configs, body, pipe))


async def _attend(configs, body, pipe):
    content = body.path.read_bytes()

    async def one(name, path):
        stream = await Stream(name, open_channel(path)).begin()
        async for task in stream.offers():
            await stream.accept(task)
            header = header_for(body.header, name, task)
            pipe.send((task.key.round, await upload(stream.channel, header, content)))

    await asyncio.gather(*(one(name, path) for name, path in configs.items()))


async def upload(channel, header, content):
    """Send an update; returns the seconds of its accept."""
    call = channel.stream_stream(methods.UPLOAD)()
    await call.write(header.SerializeToString())
    if await call.read() is grpc.aio.EOF:
        raise RuntimeError(f"no proceed: {await call.details()}")
    for start in range(0, len(content), methods.CHUNK_BYTES):
        await call.write(content[start : start + methods.CHUNK_BYTES])
    await call.done_writing()
    sent = time.monotonic()
    reply = await call.read()
    if reply is grpc.aio.EOF:
        raise RuntimeError(f"not accepted: {await call.details()}")
    fleet_pb2.UploadReply.FromString(reply)
    return time.monotonic() - sent


def received(pipes):
    """What the processes have sent until now."""
    for pipe in pipes:
        while pipe.poll():
            yield pipe.recv()


def measure(arguments, directory):
    """The seconds of each accept and of each round, without the first, and the server's CPU."""
    names = [f"c{i:04d}" for i in range(arguments.clients)]
    params = model(arguments.values)
    body = make_body(directory, params)
    cohort = {"goal": len(names), "quorum": len(names), "deadline_s": 3600.0}
    spec = {
        "name": "accepts",
        "rounds": arguments.rounds + 1,
        "evaluate": False,
        "cohort": cohort,
        "train": {"steps": 1, "learning_rate": 1.0},
    }
    fast = {"max_fast_transfers": arguments.fast} if arguments.fast else {}
    with deployed(names, **fast) as deployment:
        pipes, processes = [], []
        for number in range(arguments.processes):
            here, there = SPAWN.Pipe(duplex=False)
            mine = dict(list(deployment.clients.items())[number :: arguments.processes])
            process = SPAWN.Process(target=attend, args=(mine, body, there), daemon=True)
            process.start()
            there.close()
            pipes.append(here)
            processes.append(process)
        try:
            deployment.wait_online(len(names))
            before = cpu_s(deployment.pid)
            run = deployment.submit(params, spec)
            row = deployment.until(run, every_s=1.0)
            cpu = cpu_s(deployment.pid) - before
            rows = deployment.rounds(run)
            found = list(received(pipes))
        finally:
            for process in processes:
                process.kill()
                process.join()
    opened = [each.opened_at for each in rows] + [row["ended_at"]]
    return {
        "accept_s": [seconds for number, seconds in found if number > 1],
        "round_s": [end - begin for begin, end in itertools.pairwise(opened)][1:],
        "server_cpu_s": cpu / (arguments.rounds + 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--values", type=int, default=250_000, help="float32 of the model")
    parser.add_argument("--rounds", type=int, default=10, help="after one that warms up")
    parser.add_argument("--fast", type=int, help="max_fast_transfers of the server")
    parser.add_argument("--processes", type=int, default=2, help="of the clients")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(arguments, Path(temporary))
    accepts = sorted(found["accept_s"])
    expected = arguments.clients * arguments.rounds
    if len(accepts) != expected:
        raise RuntimeError(f"Expected {expected} accepts, got {len(accepts)}.")
    row = (
        f"{arguments.clients} clients",
        1e3 * statistics.median(accepts),
        1e3 * statistics.quantiles(accepts, n=100)[-1],
        1e3 * accepts[-1],
        statistics.median(found["round_s"]),
        found["server_cpu_s"],
    )
    columns = ("", "accept, ms", "99th of 100", "most", "s a round", "server CPU s")
    report("accepts", columns, [row], runs=found)


if __name__ == "__main__":
    main()
