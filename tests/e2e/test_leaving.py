"""A device leaves: the server records it, and the device deletes fedloom's files."""

import os
from dataclasses import replace

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.client.agent.agent import Agent
from fedloom.client.identity import leave
from fedloom.client.owner import journal
from fedloom.protocol.errors import Code, Refusal
from support.agents import Adder, Agents, until
from support.hostile import scene
from support.locks import hold
from support.ports import steady_port

pytestmark = pytest.mark.e2e


def status(federation, name):
    return next(row.status for row in federation.ledger.list_clients() if row.name == name)


def wiped(config):
    """Whether the client's state is deleted."""
    return not config.state_dir.exists()


def test_a_running_agent_ends_and_the_ledger_has_it_as_left(runner, federation, tmp_path):
    """Its certificate is refused afterwards; a repeat changes nothing."""

    async def scenery():
        async with scene(federation, tmp_path, "leaver") as s:
            await s.takes_part()
            config = s.agents.configs["leaver"]
            assert await leave.notify_server(config) == leave.LeaveNotice(True)
            with pytest.raises(Refusal) as caught:
                await s.agents.tasks.pop("leaver")
            assert caught.value.code is Code.REVOKED
            assert "has left" in str(caught.value)
            assert status(federation, "leaver") == "left"
            assert await leave.notify_server(config) == leave.LeaveNotice(True)
            with pytest.raises(Refusal, match="has left"):
                await Agent(Adder(), config).run()
            assert leave.wipe(config.state_dir) == []
            assert wiped(config)
            assert await leave.notify_server(config) == leave.LeaveNotice(True)
            assert leave.wipe(config.state_dir) == []

    runner.run(scenery())


def test_a_client_that_left_may_enrol_again_with_a_token(runner, federation, tmp_path):
    """Under the same name."""

    async def scenery():
        agents = Agents(federation, tmp_path)
        await agents.enrol("returner")
        await leave.notify_server(agents.configs["returner"])
        leave.wipe(agents.configs["returner"].state_dir)
        leave.put_aside(tmp_path / "returner" / "client.toml")
        del agents.configs["returner"]
        await agents.start("returner", Adder())
        assert status(federation, "returner") == "active"
        await agents.stop()
        await until(lambda: federation.contexts.fleet.get("returner") is None)

    runner.run(scenery())


def test_an_offline_device_can_leave(runner, federation, tmp_path, monkeypatch):
    """The command reports that the server could not be notified."""
    monkeypatch.setattr(leave, "CONNECT_S", 0.5)

    async def scenery():
        agents = Agents(federation, tmp_path)
        await agents.enrol("offline")
        return agents.configs["offline"]

    config = runner.run(scenery())
    gone = replace(config, server=f"127.0.0.1:{steady_port()}")
    farewell = runner.run(leave.notify_server(gone))
    assert not farewell.notified
    assert farewell.why
    assert leave.wipe(config.state_dir) == []
    assert wiped(config)
    assert status(federation, "offline") == "active"


@pytest.fixture
def enrolled(runner, federation, tmp_path):
    """A device that is enrolled and has a file of its owner's in its state directory."""
    name = f"device-{tmp_path.name[-20:]}".replace("_", "-")

    async def scenery():
        agents = Agents(federation, tmp_path)
        await agents.enrol(name)
        return agents.configs[name]

    config = runner.run(scenery())
    return config, ["client", "leave", "--config", str(config.state_dir.parent / "client.toml")]


def answer(words, text=""):
    # The server's event loop does not run during the call, so the command is offline.
    return CliRunner().invoke(main, words, input=text)


def test_nothing_is_deleted_without_confirmation(enrolled):
    """The question describes the effect."""
    config, words = enrolled
    before = sorted(config.state_dir.rglob("*"))
    done = answer(words, "n\n")
    assert done.exit_code == 1
    assert "are deleted" in done.output
    assert sorted(config.state_dir.rglob("*")) == before
    assert answer([*words, "--json"]).exit_code == 2


def test_the_command_wipes_and_can_be_repeated(enrolled, monkeypatch):
    """Keys are overwritten, and other files stay."""
    monkeypatch.setattr(leave, "CONNECT_S", 0.3)
    config, words = enrolled
    owners = config.state_dir / "photo.jpg"
    owners.write_text("mine")
    key = (config.state_dir / "identity.pem").read_bytes()
    os.link(config.state_dir / "identity.pem", config.state_dir.parent / "hard-link")
    (config.state_dir / "models" / "m.safetensors").write_bytes(b"x")
    done = answer([*words, "--yes"])
    assert done.exit_code == 0, done.output
    assert "could not be notified" in done.output
    assert str(owners) in done.output
    assert list(config.state_dir.iterdir()) == [owners]
    overwritten = (config.state_dir.parent / "hard-link").read_bytes()
    assert len(overwritten) == len(key)
    assert b"PRIVATE KEY" in key
    assert b"PRIVATE KEY" not in overwritten
    assert not (config.state_dir.parent / "client.toml").exists()
    again = answer([*words, "--yes"])
    assert (again.exit_code, again.output) == (0, "This device has already left.\n")


@pytest.mark.long
def test_nothing_is_wiped_while_an_agent_runs(enrolled, monkeypatch):
    """It would write the files again; the error names the process to stop."""
    monkeypatch.setattr(leave, "CONNECT_S", 0.3)
    config, words = enrolled
    process, _ = hold(config.state_dir)
    try:
        before = sorted(config.state_dir.rglob("*"))
        for yes in ([], ["--yes"]):
            done = answer([*words, *yes])
            assert done.exit_code == 2
            assert f"(process {process.pid}): stop it first" in done.output
            assert "are deleted" not in done.output  # no question is printed
        assert sorted(config.state_dir.rglob("*")) == before
        assert (config.state_dir.parent / "client.toml").exists()
    finally:
        process.kill()
        process.communicate()
    assert answer([*words, "--yes"]).exit_code == 0
    assert wiped(config)


def test_the_journal_is_kept_on_request(enrolled, monkeypatch):
    """The departure is its last entry."""
    monkeypatch.setattr(leave, "CONNECT_S", 0.3)
    config, words = enrolled
    assert answer([*words, "--yes", "--keep-log"]).exit_code == 0
    events = [entry["event"] for entry in journal.read(config.state_dir)]
    assert events[0] == "enrolled"
    assert events[-1] == "left"
    assert not (config.state_dir / "identity.pem").exists()


def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    """Neither for a key nor for a folder: the target is not fedloom's."""
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    state.mkdir()
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("mine")
    (state / "models").symlink_to(elsewhere)
    (state / "identity.pem").symlink_to(elsewhere / "precious")
    assert leave.wipe(state) == []
    assert (elsewhere / "precious").read_text() == "mine"
    assert not state.exists()
