"""The peer of an upload benchmark: gRPC under the same mTLS and options, and nothing behind it.

Usage: sink.py STATE_DIR READY_FILE PORT

It speaks the upload's protocol (proceed, bytes, accepted), counts the bytes and forgets them.
"""

import asyncio
import sys
from pathlib import Path

from bare_server import serve  # first: it tunes the allocator before grpc is loaded

# isort: split

import grpc

from fedloom.protocol.v1 import fleet_pb2


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


if __name__ == "__main__":
    handlers = {"Upload": grpc.stream_stream_rpc_method_handler(take)}
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), handlers))
