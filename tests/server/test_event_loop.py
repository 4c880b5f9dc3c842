"""The server's event loop knows how busy it is, and the server runs in it."""

import asyncio
import subprocess
import sys
import time

from fedloom.cli import main as cli
from fedloom.server.event_loop import MEMORY_S, ServerLoop, busy_share


def occupy(seconds):
    """Keep the loop's thread from everything else."""
    time.sleep(seconds)


def in_server_loop(coroutine):
    with asyncio.Runner(loop_factory=ServerLoop) as runner:
        return runner.run(coroutine)


def test_a_loop_whose_callbacks_block_is_busy():
    async def work():
        for _ in range(20):
            occupy(MEMORY_S / 4)
            await asyncio.sleep(0)
        return busy_share()

    assert in_server_loop(work()) > 0.95


def test_a_loop_that_waits_is_not():
    """Also one that was busy before."""

    async def rest():
        occupy(10 * MEMORY_S)
        await asyncio.sleep(0)
        before = busy_share()
        await asyncio.sleep(10 * MEMORY_S)
        return before, busy_share()

    before, after = in_server_loop(rest())
    assert before > 0.95
    assert after < 0.5


def test_another_loop_counts_as_idle():
    async def work():
        occupy(4 * MEMORY_S)
        await asyncio.sleep(0)
        return busy_share()

    assert asyncio.run(work()) == 0.0


SERVER = """
import asyncio, os, pathlib, signal, sys
from fedloom.server import app

async def look(server):
    print(type(asyncio.get_running_loop()).__name__)
    os.kill(os.getpid(), signal.SIGTERM)

app.run(pathlib.Path(sys.argv[1]), beside=look)
"""


def test_the_server_runs_in_such_a_loop(tmp_path):
    """Otherwise its transfers would never see that it is busy."""
    cli.main(["server", "init", "--dir", str(tmp_path)], standalone_mode=False)
    command = [sys.executable, "-c", SERVER, str(tmp_path)]
    found = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, timeout=60)
    assert found.stdout.split() == [ServerLoop.__name__]
