"""What does not work with an object store is refused by name, before anything is lost."""

from types import SimpleNamespace

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server import config
from fedloom.server.planning.spec import parse
from fedloom.server.rounds.messages import app_runner
from fedloom.site import process

APP = {
    "name": "app", "rounds": 1, "flower": {"server_app": "krum"},
}  # fmt: skip


def test_runs_of_a_serverapp():
    """Their replies are on the machine's disk."""
    with pytest.raises(UsageError, match="on a server with an object store"):
        app_runner.check(parse(APP), SimpleNamespace(remote=object(), apps={}))
    with pytest.raises(UsageError, match=r"a name in \[flower_apps\]"):
        app_runner.check(parse(APP), SimpleNamespace(remote=None, apps={}))


def test_sites(tmp_path):
    """They keep their sums for the parent on the machine's disk."""
    config.write(tmp_path, config.ServerConfig(store="file:///srv/objects"))
    settings = tmp_path / "client.toml"
    settings.write_text('server = "localhost:7443"\nstate_dir = "state"\n')
    with pytest.raises(UsageError, match="Expected --upstream or an object store, got both"):
        process.run(tmp_path, settings)
