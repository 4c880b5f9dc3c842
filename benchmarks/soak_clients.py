"""The clients of a soak: thousands of bare streams in a process, some of which leave and come back.

Each attends over its own mTLS connection, downloads the model it is offered, waits as if it
trained, and uploads a small valid update. A client leaves in one of three ways: it closes its
connection; its connection is reset; or it vanishes: the server hears nothing more, not even the end
of the connection.
"""

import asyncio
import json
import random
import socket
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import grpc
from upload import Body
from wire import Stream, download, header_for, offered, open_channel

from fedloom.client.config import load
from fedloom.client.network import transfer
from fedloom.protocol.errors import FedloomError, Refusal

AT_ONCE = 16
"""Handshakes under way at a time in one process."""
ENDS = {"close": 0.5, "reset": 0.25, "vanish": 0.25}
"""How connections end, with the probability of each."""
RETRY_S = 1.0


@dataclass(frozen=True)
class Work:
    """What the clients of a process do.

    Attributes:
        body: the update that all send.
        training_s: least and most seconds from the model to the update.
        churn_per_s: share of the clients that leave in a second.
        away_s: most seconds for which a client is away; the least is 1.
        silence_s: seconds after which the connection of a vanished client is reset; the server may
            notice before.
        seed: of all draws.
    """

    body: Body
    training_s: tuple[float, float]
    churn_per_s: float
    away_s: float
    silence_s: float
    seed: int


class Clients:
    """The clients of one process.

    Attributes:
        stays: of every stay that has ended, the client, begin and end in seconds since the epoch.
        tally: what happened how often.
    """

    def __init__(self, configs, work):
        self.work = work
        self.rng = random.Random(work.seed)
        self.gate = asyncio.Semaphore(AT_ONCE)
        self.stays = []
        self.tally = Counter()
        self.present = {}
        self.all = [Client(path, self) for path in configs]

    async def start(self):
        """Returns when every client attends."""
        self.running = [asyncio.ensure_future(client.live()) for client in self.all]
        while len(self.present) < len(self.all):
            await asyncio.sleep(0.1)
            _check(self.running)

    async def churn(self):
        """Have clients leave at random, for ever."""
        rate = self.work.churn_per_s * len(self.all)
        while rate:
            await asyncio.sleep(self.rng.expovariate(rate))
            if self.present:
                self.rng.choice(list(self.present.values())).leaving.set()

    def found(self):
        """What happened until now; those present stay until now."""
        now = time.time()
        stays = [*self.stays, *((c.name, c.since, now) for c in self.present.values())]
        return {"stays": stays, "tally": dict(self.tally)}


class Client:
    """One client; `since` is when it was welcomed."""

    def __init__(self, path, clients):
        self.path, self.name, self._clients = path, path.parent.name, clients
        self.leaving = asyncio.Event()
        self.since = 0.0
        self._tasks = {}

    async def live(self):
        """Attend, leave, come back, for ever."""
        clients, first = self._clients, True
        while True:
            try:
                end = clients.rng.choices(list(ENDS), ENDS.values())[0]
                await self._attend(end)
                clients.tally[end] += 1
                await asyncio.sleep(clients.rng.uniform(1.0, clients.work.away_s))
                first = False
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, RuntimeError) as error:
                if first:
                    raise
                clients.tally["connections that failed"] += 1
                print(f"{self.name} cannot connect: {error}", file=sys.stderr)
                await asyncio.sleep(RETRY_S)

    async def _attend(self, end):
        link = None if end == "close" else Link()
        async with self._clients.gate:
            server = "" if link is None else await link.open(self.path)
            channel = open_channel(self.path, server=server)
            stream = await Stream(self.name, channel).begin()
        self.since = time.time()
        self.leaving.clear()
        self._clients.present[self.name] = self
        serving = asyncio.ensure_future(self._serve(stream))
        leaving = asyncio.ensure_future(self.leaving.wait())
        try:
            await asyncio.wait({serving, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                self._clients.tally["streams that the server ended"] += 1
                print(f"{self.name} lost its stream: {await stream.details()}", file=sys.stderr)
        finally:
            del self._clients.present[self.name]
            self._clients.stays.append((self.name, self.since, time.time()))
            if link is not None:
                link.cut(end, self._clients.work.silence_s)
            for each in (serving, leaving, *self._tasks.values()):
                each.cancel()
            await asyncio.wait({serving, leaving})
            await channel.close()

    async def _serve(self, stream):
        async for message in stream.messages():
            if (task := offered(message)) is not None:
                self._clients.tally["offers"] += 1
                self._start(stream, task)
            elif message.HasField("withdraw"):
                self._clients.tally["withdrawals"] += 1
                key = (message.withdraw.task.run, message.withdraw.task.round)
                if key in self._tasks:
                    self._tasks[key].cancel()

    def _start(self, stream, task):
        key = (task.key.run, task.key.round)
        if key not in self._tasks:
            working = self._tasks[key] = asyncio.ensure_future(self._work(stream, task))
            working.add_done_callback(lambda _: self._tasks.pop(key))

    async def _work(self, stream, task):
        work, tally = self._clients.work, self._clients.tally
        channel = stream.channel
        await stream.accept(task)
        await self._persist(partial(download, channel, task.model.digest))
        await asyncio.sleep(self._clients.rng.uniform(*work.training_s))
        header = header_for(work.body.header, self.name, task)
        body = _OneBody(work.body.path)
        if await self._persist(partial(transfer.upload, channel, header, body, "the server")):
            tally["updates"] += 1

    async def _persist(self, attempt):
        """Try until it succeeds, as an agent does; returns whether it was not refused for good."""
        while True:
            try:
                await attempt()
            except (FedloomError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                what = error.code if isinstance(error, Refusal) else type(error).__name__
                self._clients.tally[f"transfers that failed: {what}"] += 1
                if isinstance(error, FedloomError) and not transfer.may_retry(error):
                    return False
                await asyncio.sleep(RETRY_S)
            else:
                return True


@dataclass(frozen=True)
class _OneBody:
    """A store whose updates all have one body."""

    path: Path

    def body_path(self, _run, _number):
        return self.path


def _check(tasks):
    for task in tasks:
        if task.done():
            task.result()


# ---- connections that break ----------------------------------------------------------------------


class Link:
    """One TCP connection passed on to the server; its two ends know nothing of each other's end."""

    _vanished: ClassVar[set["Link"]] = set()

    def __init__(self):
        self._near = self._far = None
        self._is_cut = False

    async def open(self, path):
        """Accept one connection; returns where."""
        host, _, port = load(path).server.rpartition(":")
        loop = asyncio.get_running_loop()

        self._to = (host, int(port))
        accepted = partial(_End, self._connected)
        self._listener = await loop.create_server(accepted, "127.0.0.1", 0)
        return f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def _connected(self, near):
        self._listener.close()
        self._near = near
        self._joining = asyncio.ensure_future(self._join(near))

    async def _join(self, near):
        loop = asyncio.get_running_loop()
        _, self._far = await loop.create_connection(lambda: _End(lambda _: None), *self._to)
        near.pass_to(self._far)
        self._far.pass_to(near)

    def cut(self, how, silence_s):
        """Break it: both ends are reset, or the server's is left open and unread for a time."""
        for each in filter(None, (self._near, self._far)):
            each.drop()
        if self._near is not None:
            self._near.reset()
        if self._far is None:
            return
        if how == "reset":
            self._far.reset()
        else:
            self._far.transport.pause_reading()
            self._vanished.add(self)
            asyncio.get_running_loop().call_later(silence_s, self._forget)

    def _forget(self):
        self._vanished.discard(self)
        self._far.reset()


class _End(asyncio.Protocol):
    """One end of a link; keeps what arrives before it has another end."""

    def __init__(self, connected):
        self._connected = connected
        self._other = None
        self._early = []

    def pass_to(self, other):
        self._other = other
        other.transport.write(b"".join(self._early))

    def drop(self):
        self._other = None

    def connection_made(self, transport):
        self.transport = transport
        self._connected(self)

    def data_received(self, data):
        if self._other is None:
            self._early.append(data)
        else:
            self._other.transport.write(data)

    def connection_lost(self, _):
        if self._other is not None:
            self._other.transport.close()

    def reset(self):
        """Close with RST."""
        sock = self.transport.get_extra_info("socket")
        if not self.transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


# ---- the process ---------------------------------------------------------------------------------


def hold(configs, work, pipe):
    """Run clients as the parent says: all attend, then they churn, then the process ends."""
    asyncio.run(_hold(configs, work, pipe))


async def _hold(configs, work, pipe):
    clients = Clients(configs, work)
    await clients.start()
    pipe.send(len(clients.present))
    await asyncio.to_thread(pipe.recv)
    churning = asyncio.ensure_future(clients.churn())
    while (path := await asyncio.to_thread(pipe.recv)) is not None:
        _check([churning, *clients.running])
        await asyncio.to_thread(Path(path).write_text, json.dumps(clients.found()))
        pipe.send(path)
