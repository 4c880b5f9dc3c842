"""The peer of an upload benchmark: gRPC under the same mTLS and options, and nothing behind it.

Usage: sink.py STATE_DIR READY_FILE PORT

It speaks the upload's protocol (proceed, bytes, accepted), counts the bytes and forgets them.
"""

import asyncio
import signal
import sys
from pathlib import Path

from fedloom.server import app  # first: it tunes the allocator before grpc is loaded

# isort: split

import grpc

from fedloom.protocol.transport import methods
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server import config as server_config
from fedloom.server import device_ports
from fedloom.server.pki.authority import Authority


async def take(_, context):
    header = fleet_pb2.UpdateHeader.FromString(await context.read())
    proceed = fleet_pb2.UploadReply(proceed=fleet_pb2.Proceed(offset=0))
    await context.write(proceed.SerializeToString())
    received = 0
    while received < header.size_bytes:
        received += len(await context.read())
    await context.read()
    accepted = fleet_pb2.UploadReply(accepted=fleet_pb2.Accepted())
    await context.write(accepted.SerializeToString())


async def main(state, ready, port):
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    certificates = app.Certificates(Authority.load(state / "pki"), server_config.load(state).names)
    server = grpc.aio.server(options=device_ports.SERVER_OPTIONS)
    handlers = {"Upload": grpc.stream_stream_rpc_method_handler(take)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(methods.FLEET_SERVICE, handlers),)
    )
    server.add_secure_port(f"127.0.0.1:{port}", certificates.credentials(ask_client=True))
    await server.start()
    ready.write_text(f"{port}\n")
    await stopping.wait()
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
