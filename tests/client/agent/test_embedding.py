"""An agent within a program that has an event loop, signal handlers and a life of its own."""

import asyncio
import os
import signal
import threading

import pytest

from fedloom.client import Client, run
from fedloom.protocol.errors import UsageError


@pytest.fixture
def settings(tmp_path):
    """Of an agent whose server is not there."""
    path = tmp_path / "client.toml"
    path.write_text('server = "127.0.0.1:1"\nstate_dir = "state"\nplaintext = "device"\n')
    return path


def test_an_event_loop_that_runs_is_told_what_to_do_instead(settings):
    """And not by asyncio, in words of its own."""

    async def main():
        run(Client(), settings)

    with pytest.raises(UsageError, match="to_thread"):
        asyncio.run(main())


def test_a_program_has_its_signal_handlers_back(settings):
    """A stop signal ends the agent; the next one is the program's again."""
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("term"))
    try:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        run(Client(), settings)
        assert not heard
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == ["term"]
    finally:
        signal.signal(signal.SIGTERM, before)
