"""A TCP relay that counts bytes and breaks connections after an exact number of bytes.

It runs between a device and the server, in a separate thread. TLS passes through unchanged. A cut
is a reset, which both ends notice at once, or silence: nothing passes any more and no end is
notified, as after the loss of a radio link.
"""

import asyncio
import socket
import struct
import threading
from contextlib import suppress

from support.patience import PATIENCE_S

BLOCK_BYTES = 16 * 1024
BUFFER_BYTES = 64 * 1024
"""Of each socket: what has left a device but not passed the relay stays little."""


class Relay:
    """Passes connections on to a port on loopback.

    Args:
        port: of the server.

    Attributes:
        target: where new connections go; may be changed.
        port: where to connect instead.
        passed: bytes by direction, "up" to the server and "down" from it.
        connections: how many there were.
    """

    def __init__(self, port):
        self.target = port
        self.port = 0
        self.passed = {"up": 0, "down": 0}
        self.connections = 0
        self._cut = None
        self._open = True
        self._live = {}
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._done, self._resumed = asyncio.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._main(),))

    def __enter__(self):
        self._thread.start()
        assert self._up.wait(PATIENCE_S)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def cut_after(self, direction, size_bytes, *, how="reset"):
        """Break all connections once so many more bytes have passed in a direction.

        Args:
            direction: "up" or "down".
            size_bytes: to pass before.
            how: "reset"; "silent", nothing passes any more; "mute", nothing comes from the server;
                "hold", nothing passes in this direction of the connection until `resume`.
        """
        self._cut = (direction, self.passed[direction] + size_bytes, how)

    @property
    def has_cut(self):
        """Whether the requested cut has happened."""
        return self._cut is None

    def cut(self, how="reset"):
        """Break all connections now."""
        self._loop.call_soon_threadsafe(self._break, how)

    def resume(self):
        """Pass on what is held."""
        self._loop.call_soon_threadsafe(self._resumed.set)

    def refuse(self, refusing=True):
        """Reset new connections at once, or accept them again."""
        self._open = not refusing

    # ---- in the thread -----------------------------------------------------------------------

    async def _main(self):
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=BLOCK_BYTES)
        self.port = server.sockets[0].getsockname()[1]
        self._up.set()
        await self._done.wait()
        self._break("reset")
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader, writer):
        near = writer
        if not self._open:
            _reset(near)
            return
        try:
            far_reader, far = await asyncio.open_connection(
                "127.0.0.1", self.target, limit=BLOCK_BYTES
            )
        except OSError:
            _reset(near)
            return
        self.connections += 1
        for each in (near, far):
            sock = each.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            each.transport.set_write_buffer_limits(high=BLOCK_BYTES)
        silenced = set()
        self._live[near] = (far, silenced)
        try:
            await asyncio.gather(
                self._pass(reader, far, "up", silenced),
                self._pass(far_reader, near, "down", silenced),
            )
        except asyncio.CancelledError:
            pass  # the relay ends
        finally:
            self._live.pop(near, None)
            for each in (near, far):
                _reset(each)

    async def _pass(self, reader, writer, direction, silenced):
        with suppress(ConnectionError):
            while block := await reader.read(BLOCK_BYTES):
                if direction in silenced:
                    await asyncio.Event().wait()  # later bytes are not read
                kept = len(block)
                if self._cut is not None and self._cut[0] == direction:
                    kept = min(kept, self._cut[1] - self.passed[direction])
                self.passed[direction] += kept
                writer.write(block[:kept])
                await writer.drain()
                if self._cut is not None and (direction, self.passed[direction]) == self._cut[:2]:
                    how, self._cut = self._cut[2], None
                    if how == "hold":
                        await self._resumed.wait()
                    else:
                        self._break(how)
                    writer.write(block[kept:])
            if direction not in silenced:
                writer.write_eof()

    def _break(self, how):
        for near, (far, silenced) in list(self._live.items()):
            if how == "reset":
                _reset(near)
                _reset(far)
            silenced.update({"down"} if how == "mute" else {"up", "down"})


def _reset(writer):
    """Close with RST, like a device that has rebooted."""
    with suppress(OSError):
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
