"""The health of an agent, for systemd, containers and `client health`."""

import asyncio
import json
import os
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.client.identity.leave import wipe
from fedloom.client.state.health_file import FILE, HealthFile, keep_watchdog, read_health
from support.agents import Adder, played, until


def health(config, *arguments):
    return CliRunner().invoke(main, ["client", "health", "--config", str(config), *arguments])


def test_the_health_file_follows_the_agent(tmp_path):
    """From connected to stopped."""

    async def scenario(federation, agents):
        await agents.start("ward", Adder())
        state = agents.configs["ward"].state_dir
        config = agents.directory / "ward" / "client.toml"
        await until(lambda: read_health(state).attends)
        done = await asyncio.to_thread(health, config, "--attending")
        assert (done.exit_code, "connected to 127.0.0.1" in done.output) == (0, True)
        await agents.stop("ward")
        assert not read_health(state).alive
        done = await asyncio.to_thread(health, config, "--json")
        assert (done.exit_code, json.loads(done.output)["error"]["kind"]) == (5, "unavailable")

    played(tmp_path, scenario)


def test_an_agent_that_waits_for_the_server_is_alive(tmp_path):
    """A restart would not help it; `--attending` requires a connection too."""
    (tmp_path / "client.toml").write_text('server = "h:1"\nstate_dir = "state"\n')
    state = tmp_path / "state"
    state.mkdir()
    standing = HealthFile(state, "h:1")
    standing.begins()
    standing.attends()
    standing.waits()
    assert health(tmp_path / "client.toml").exit_code == 0
    done = health(tmp_path / "client.toml", "--attending")
    assert (done.exit_code, "has waited for h:1" in done.output) == (5, True)
    wipe(state)
    assert not state.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": "x"}', '{"pid": null}'])
def test_an_invalid_health_file_means_no_agent(text, tmp_path):
    (tmp_path / FILE).write_text(text)
    assert not read_health(tmp_path).alive


def test_a_killed_process_is_not_alive(tmp_path):
    """Its file remains."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    (tmp_path / FILE).write_text(json.dumps({"pid": done.pid, "attends": True}))
    assert not read_health(tmp_path).alive


def test_systemd_is_notified(tmp_path, monkeypatch):
    """Through its socket, and often enough for its watchdog."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        standing = HealthFile(tmp_path, "h:1")
        standing.begins()
        standing.attends()
        standing.ends()
        heard = [listener.recv(1000) for _ in range(3)]
        assert heard[0].startswith(b"READY=1\n")
        assert heard[1:] == [b"STATUS=Attends h:1", b"STOPPING=1"]
        monkeypatch.setenv("WATCHDOG_USEC", "20000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        listener.settimeout(10)

        async def beat():
            task = asyncio.ensure_future(keep_watchdog())
            found = [await asyncio.to_thread(listener.recv, 100) for _ in range(3)]
            task.cancel()
            return found

        assert asyncio.run(beat()) == [b"WATCHDOG=1"] * 3


def test_errors_of_socket_and_disk_do_not_end_the_agent(tmp_path, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    standing = HealthFile(tmp_path / "gone", "h:1")
    standing.begins()
    standing.attends()
    standing.ends()
