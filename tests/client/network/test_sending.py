"""Messages of a client on its stream of offers."""

import asyncio

import grpc

from fedloom.client.config import ClientConfig
from fedloom.client.network.connection import Connection
from fedloom.client.state.store import ClientStore
from fedloom.protocol.transport import methods
from fedloom.protocol.v1 import fleet_pb2
from support.patience import PATIENCE_S

WELCOME = fleet_pb2.ServerMessage(welcome=fleet_pb2.Welcome(federation="f"))
WITHDRAW = fleet_pb2.ServerMessage(withdraw=fleet_pb2.Withdraw(reason="The round is over."))
LONG = fleet_pb2.ClientMessage(task_failed=fleet_pb2.TaskFailed(reason="x" * 1_000_000))


class Server(grpc.GenericRpcHandler):
    """Welcomes a client, and reads no further before it may."""

    def __init__(self):
        self.may_read, self.read = asyncio.Event(), []

    def service(self, details):
        if details.method == methods.ATTEND:
            return grpc.stream_stream_rpc_method_handler(
                self.attend,
                request_deserializer=fleet_pb2.ClientMessage.FromString,
                response_serializer=fleet_pb2.ServerMessage.SerializeToString,
            )
        return None

    async def attend(self, messages, context):
        await context.read()
        await context.write(WELCOME)
        await self.may_read.wait()
        while (message := await context.read()) == LONG:
            self.read.append(message)
        await context.write(WITHDRAW)


async def write_that_waits(connection):
    """Write until the buffers are full; the last write, and the number of all."""
    for number in range(1, 100):
        sending = asyncio.ensure_future(connection.send(LONG))
        done, _ = await asyncio.wait([sending], timeout=0.2)
        if not done:
            return sending, number
    raise AssertionError("no write waits")


def test_a_task_that_is_cancelled_while_it_writes_leaves_the_stream_of_offers(tmp_path):
    """The message is sent whole, and the server is heard afterwards."""

    async def play():
        handler, server = Server(), grpc.aio.server()
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        config = ClientConfig(server=f"127.0.0.1:{port}", state_dir=tmp_path, plaintext="ann")
        connection = Connection(config, ClientStore(tmp_path))
        try:
            async with asyncio.timeout(PATIENCE_S), connection.attending() as (_, stream):
                await connection.greet(stream)
                sending, number = await write_that_waits(connection)
                sending.cancel()
                await asyncio.wait([sending])
                handler.may_read.set()
                await connection.send(fleet_pb2.ClientMessage())
                heard = await stream.read()
        finally:
            await server.stop(None)
        assert fleet_pb2.ServerMessage.FromString(heard) == WITHDRAW
        assert len(handler.read) == number

    asyncio.run(play())
