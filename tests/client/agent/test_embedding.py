"""An agent within a program that has its own event loop and signal handlers."""

import asyncio
import os
import signal
import threading

import pytest

from fedloom.client import Client, run
from fedloom.protocol.errors import UsageError


@pytest.fixture
def settings(tmp_path):
    """Settings of an agent whose server is unreachable."""
    path = tmp_path / "client.toml"
    path.write_text('server = "127.0.0.1:1"\nstate_dir = "state"\nplaintext = "device"\n')
    return path


def test_run_within_an_event_loop_is_refused(settings):
    """The message names the alternative."""

    async def main():
        run(Client(), settings)

    with pytest.raises(UsageError, match="to_thread"):
        asyncio.run(main())


def test_the_programs_signal_handlers_are_restored(settings):
    """A stop signal ends the agent; the program handles the next one."""
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
