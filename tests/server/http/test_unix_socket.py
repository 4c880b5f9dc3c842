"""The operator's socket: private, one server at a time, and removed with the server."""

import asyncio
import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys

import pytest
from fastapi import FastAPI

from fedloom.protocol.errors import UnavailableError
from fedloom.protocol.transport import local_socket
from fedloom.server.http import unix_socket
from fedloom.server.http.unix_socket import listening, serve
from support.door import Door, write_model
from support.modules import like


def _listen(path):
    async def listen():
        async with listening(path):
            return stat.S_IMODE(path.stat().st_mode)

    return asyncio.run(listen())


def test_socket_is_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        assert _listen(tmp_path / "control.sock") == 0o600
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert not (tmp_path / "control.sock").exists()


def test_socket_has_its_name_once_it_listens(tmp_path, monkeypatch):
    """Scripts wait for the file, and connect as soon as it exists."""
    path, seen = tmp_path / "control.sock", []

    class Watched(socket.socket):
        def listen(self, *args):
            seen.append(path.exists())
            super().listen(*args)

    monkeypatch.setattr(unix_socket, "socket", like(socket, socket=Watched))
    assert _listen(path) == 0o600
    assert seen == [False]
    assert [each.name for each in tmp_path.iterdir()] == ["control.lock"]


def test_second_server_is_refused(tmp_path):
    """The socket of the running one stays."""
    path = tmp_path / "control.sock"

    async def both():
        async with listening(path):
            inode = path.stat().st_ino
            with pytest.raises(UnavailableError, match="Another server is running"):
                async with listening(path):
                    pass
            assert path.stat().st_ino == inode

    asyncio.run(both())


@pytest.mark.long
def test_socket_of_a_killed_server_is_replaced(tmp_path):
    """SIGKILL leaves the file and the lock file; the kernel has released the lock."""
    path = tmp_path / "control.sock"
    code = (
        "import asyncio, pathlib, signal, sys\n"
        "from fedloom.server.http.unix_socket import listening\n"
        "async def main():\n"
        "    async with listening(pathlib.Path(sys.argv[1])):\n"
        "        signal.raise_signal(signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, path], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.exists()
    assert _listen(path) == 0o600


def test_state_directory_may_be_deep(tmp_path):
    """A path longer than a socket's address."""
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    path = deep / "control.sock"
    assert len(str(path)) > local_socket.MAX_BYTES

    async def meet():
        async with listening(path) as listener:
            with local_socket.address(path) as address, socket.socket(socket.AF_UNIX) as caller:
                caller.connect(address)
                accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
                accepted.close()

    asyncio.run(meet())


def test_serving_handles_no_signals_and_stops_when_cancelled(tmp_path):
    path = tmp_path / "control.sock"

    async def main():
        before = signal.getsignal(signal.SIGTERM)
        async with listening(path) as listener:
            serving = asyncio.ensure_future(serve(FastAPI(), listener))
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 404")
            assert signal.getsignal(signal.SIGTERM) is before
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving
            assert serving.cancelled()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        with pytest.raises(FileNotFoundError):
            await asyncio.open_unix_connection(str(path))

    asyncio.run(main())


@pytest.mark.long
def test_server_stops_during_an_upload(tmp_path):
    """A silent caller delays the stop by at most the grace period."""
    with Door(tmp_path / "state") as door:
        data = write_model(tmp_path / "m.safetensors", size=1 << 16).read_bytes()
        connection = door.connect()
        connection.putrequest("PUT", "/v1/models")
        connection.putheader("Content-Length", str(len(data)))
        connection.endheaders(data[: len(data) // 2])
        assert any(door.ask("GET", "/server") and door.temporaries() for _ in range(1000))
    assert door.temporaries() == []
    connection.close()
