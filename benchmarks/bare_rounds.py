"""The limit of rounds.py: what a round costs with gRPC and mTLS, and nothing behind them.

A round is an offer to each client, its download of the model and its upload of as many bytes, with
the certificates, options, chunks and processes of the product. Nothing is checked, computed, kept
or written.
"""

import asyncio
import itertools
import time
from functools import partial

import grpc
from deployment import READY_S, cpu_s, free_port
from wire import open_channel

from fedloom.protocol.transport import methods

SCRIPT = "bare_server.py"


def attend(config, server):
    """One client, until it is ended."""
    asyncio.run(_attend(config, server))


async def _attend(config, server):
    channel = open_channel(config, server=server)
    stream = channel.stream_stream(methods.ATTEND)()
    await stream.write(b"hello")
    while await stream.read() is not grpc.aio.EOF:
        chunks = [chunk async for chunk in channel.unary_stream(methods.DOWNLOAD)(b"model")]
        call = channel.stream_stream(methods.UPLOAD)()
        await call.write(b"header")
        await call.read()
        for chunk in chunks:
            await call.write(chunk)
        await call.read()
        await call.done_writing()


def measure(deployment, attending, num_values, num_rounds, warm_up):
    """Seconds of each round after the warm-up, and what they cost a round.

    Args:
        deployment: whose certificates are used.
        attending: begins a client's process for each, as in rounds.py.
        num_values: float32 values of the model.
        num_rounds: that are counted.
        warm_up: rounds that are not.
    """
    port, num_clients = free_port(), len(deployment.clients)
    server = deployment.launch(SCRIPT, str(port), str(num_clients), str(4 * num_values))
    times = deployment.directory / f"{SCRIPT}.ready"

    def ended(number):
        """Wait for the end of so many rounds; their seconds, and the processor's until now."""
        deadline = time.monotonic() + READY_S + number * READY_S
        while len(begun := [*map(float, times.read_text().split())]) <= number:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the bare rounds do not end:\n{deployment.log()}")
            time.sleep(0.01)
        seconds = [end - begin for begin, end in itertools.pairwise(begun)]
        return seconds, cpu_s(server.pid), sum(map(cpu_s, pids))

    with attending(deployment, partial(attend, server=f"127.0.0.1:{port}")) as pids:
        early, *before = ended(warm_up)
        seconds, *after = ended(warm_up + num_rounds)
    between = len(seconds) - len(early)
    server_s, clients_s = ((b - a) / between for a, b in zip(before, after, strict=True))
    return {
        "values": num_values,
        "clients": num_clients,
        "seconds": seconds[warm_up:],
        "server_cpu_s": server_s,
        "clients_cpu_s": clients_s,
    }
