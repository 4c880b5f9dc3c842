"""`fedloom store check`: what works of an object store, what fails, and what to do about it."""

import json

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.server import config
from fedloom.server.storage.objects.folder import FolderObjects


@pytest.fixture
def check(tmp_path):
    """Check the store of a state directory."""

    def check(*words, store="objects"):
        url = (tmp_path / store).as_uri() if store else ""
        config.write(tmp_path, config.ServerConfig(store=url))
        return CliRunner().invoke(main, ["store", "check", "--dir", str(tmp_path), *words])

    return check


def test_a_store_that_works(check):
    """It says so for each step."""
    done = check()
    assert done.exit_code == 0, done.output
    assert done.output.count(" ok\n") == 5
    found = json.loads(check("--json").stdout)
    assert set(found["steps"].values()) == {"ok"}


def test_a_store_that_fails(check, monkeypatch):
    """Exit code 5, and what to do."""
    monkeypatch.setattr(FolderObjects, "get", lambda *_: b"of an older copy")
    done = check()
    assert done.exit_code == 5
    assert "GET after PUT" in done.output
    assert "use its primary" in done.stderr


def test_a_server_without_a_store(check):
    done = check(store="")
    assert done.exit_code == 2
    assert "models and updates are files of this state directory" in done.stderr
