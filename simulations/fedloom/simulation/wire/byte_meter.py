"""A relay that counts every byte between clients and a server.

    python -m fedloom.simulation.wire.byte_meter 127.0.0.1:4000 127.0.0.1:5000 bytes.json

It relays TCP unchanged, so the bytes of TLS, HTTP/2 and gRPC are counted too.
"""

import asyncio
import contextlib
import json
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from fedloom.protocol.atomic_files import write_whole

_READ_BYTES = 1 << 18


@dataclass(slots=True)
class Counts:
    """Relayed bytes.

    Attributes:
        up: from clients to the server.
        down: from the server to clients.
        connections: number of connections.
    """

    up: int = 0
    down: int = 0
    connections: int = 0


def read(path: Path) -> Counts:
    """The counts of a relay that has ended."""
    return Counts(**json.loads(path.read_text()))


class ByteMeter:
    """Relays connections to one address.

    Attributes:
        counts: so far.
        open: number of open connections.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self.counts = Counts()
        self.open = 0

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection until both sides have ended it."""
        self.counts.connections += 1
        writers = [writer]
        self.open += 1
        try:
            onward_reader, onward_writer = await asyncio.open_connection(self._host, self._port)
            writers.append(onward_writer)
            await asyncio.gather(
                self._pass(reader, onward_writer, "up"), self._pass(onward_reader, writer, "down")
            )
        except OSError:
            pass  # the target does not answer: the client's connection ends
        finally:
            for each in writers:
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()
            self.open -= 1

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                setattr(self.counts, way, getattr(self.counts, way) + len(data))
                writer.write(data)
                await writer.drain()
            writer.write_eof()


async def serve(listen: str, target: str, listening: Path) -> Counts:
    """Relay until SIGTERM; writes its address to `listening`, and returns the counts."""
    host, _, port = listen.rpartition(":")
    onward, _, onward_port = target.rpartition(":")
    meter = ByteMeter(onward, int(onward_port))
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    server = await asyncio.start_server(meter.relay, host, int(port), limit=_READ_BYTES)
    async with server:
        own = server.sockets[0].getsockname()[1]
        await asyncio.to_thread(write_whole, listening, f"{host}:{own}")
        await stopping.wait()
    return meter.counts


if __name__ == "__main__":
    written = Path(sys.argv[3])
    counted = asyncio.run(serve(sys.argv[1], sys.argv[2], written.with_suffix(".listening")))
    written.write_text(json.dumps(asdict(counted)))
