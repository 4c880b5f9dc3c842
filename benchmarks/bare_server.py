"""The server of bare_rounds.py: gRPC under the product's mTLS and options, and nothing behind it.

Usage: bare_server.py STATE_DIR READY_FILE PORT NUM_CLIENTS NUM_BYTES

Begins a round when the last upload of the one before has ended, and writes the time to READY_FILE,
a line for each round.
"""

import asyncio
import signal
import sys
import time
from pathlib import Path

from fedloom.server import app  # first: it tunes the allocator before grpc is loaded

# isort: split

import grpc

from fedloom.protocol.transport import methods
from fedloom.server import config as server_config
from fedloom.server import device_ports
from fedloom.server.pki.authority import Authority


class BareRounds:
    """Rounds of so many clients, one after another."""

    def __init__(self, times, num_clients, num_bytes):
        self._times = times
        self._left = self._num_clients = num_clients
        model, size = bytes(num_bytes), methods.CHUNK_BYTES
        self._chunks = [model[begin : begin + size] for begin in range(0, num_bytes, size)]
        self._streams = []

    async def attend(self, _, context):
        await context.read()
        self._streams.append(context)
        if len(self._streams) == self._num_clients:
            await self._begin()
        await context.read()  # until the client leaves

    async def _begin(self):
        self._left = self._num_clients
        with self._times.open("a") as file:
            print(time.monotonic(), file=file)
        await asyncio.gather(*(stream.write(b"offer") for stream in self._streams))

    async def download(self, _, context):
        for chunk in self._chunks:
            await context.write(chunk)

    async def upload(self, _, context):
        await context.read()
        await context.write(b"proceed")
        for _ in self._chunks:
            await context.read()
        await context.write(b"accepted")
        self._left -= 1
        if not self._left:
            await self._begin()


async def serve(state, ready, port, handlers):
    """Serve methods of the fleet under the product's mTLS and options, until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    certificates = app.Certificates(Authority.load(state / "pki"), server_config.load(state).names)
    server = grpc.aio.server(options=device_ports.SERVER_OPTIONS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(methods.FLEET_SERVICE, handlers),)
    )
    server.add_secure_port(f"127.0.0.1:{port}", certificates.credentials(ask_client=True))
    await server.start()
    ready.touch()
    await stopping.wait()
    await server.stop(0)


async def main(state, ready, port, num_clients, num_bytes):
    rounds = BareRounds(ready, num_clients, num_bytes)
    handlers = {
        "Attend": grpc.stream_stream_rpc_method_handler(rounds.attend),
        "Download": grpc.unary_stream_rpc_method_handler(rounds.download),
        "Upload": grpc.stream_stream_rpc_method_handler(rounds.upload),
    }
    await serve(state, ready, port, handlers)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])))
