"""State of server and devices is private to its user, whatever the umask and the folder's mode."""

import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.client.state.store import ClientStore
from fedloom.protocol.trust.private_files import make_private
from support.stage import Stage, model

PUBLIC = ("root.pem",)
"""Certificates, which are no secret."""


@pytest.fixture
def open_umask():
    """New files are readable and writable by all users, unless their mode is given."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def wide(*directories):
    """Paths in and below directories which other users may read or write."""
    paths = [*directories, *(path for each in directories for path in each.rglob("*"))]
    return [str(path) for path in paths if mode(path) & 0o077 and path.name not in PUBLIC]


@pytest.mark.long
def test_files_of_a_round_are_private(tmp_path, open_umask):
    """Ledger and its logs, models, spool and sockets; a device's models, updates and health."""
    with Stage(tmp_path, ["ann"]) as stage:
        ann = stage.start("ann")
        stage.online(1)
        cohort = {"goal": 1, "quorum": 1, "deadline_s": 3600.0, "patience_s": 3600.0}
        run = stage.submit(model(10_000), cohort=cohort)
        stage.finished(run)
        assert (stage.state / "ledger.sqlite-wal").exists()
        assert list((stage.state / "models").iterdir())
        assert list((ann.state / "models").iterdir())
        assert wide(stage.state, ann.state) == []


@pytest.mark.long
def test_server_takes_open_files_from_other_users_and_says_so(tmp_path, open_umask):
    """Of earlier versions, or of a backup that was restored."""
    with Stage(tmp_path, []) as stage:
        stage.stop_server()
        (stage.state / "models" / "left.safetensors").write_bytes(b"")
        for name in ("", "ledger.sqlite", "models"):
            path = stage.state / name
            path.chmod(0o755 if path.is_dir() else 0o644)
        stage.start_server()
        assert wide(stage.state) == []
        log = (tmp_path / "server.log").read_text()
        assert "took 4 files and folders from other users" in log
        assert f"{stage.state / 'ledger.sqlite'} (mode 644)" in log


def test_init_in_an_open_folder_closes_it(tmp_path):
    """And prints the mode that it had; other files in the folder are left alone."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    (folder / "notes.txt").write_text("mine")
    (folder / "notes.txt").chmod(0o644)
    result = CliRunner().invoke(main, ["server", "init", "--dir", str(folder)])
    assert result.exit_code == 0, result.output
    assert mode(folder) == 0o700
    assert f"{folder} (mode 755)" in result.stdout.replace("\n", "")
    assert wide(folder) == [str(folder / "notes.txt")]


def test_device_closes_its_open_state(tmp_path, caplog):
    """Its folder, and models that another tool put there."""
    ClientStore(tmp_path / "state")
    (tmp_path / "state" / "models" / "m.safetensors").touch(0o644)
    (tmp_path / "state" / "models" / "m.safetensors").chmod(0o644)
    (tmp_path / "state").chmod(0o755)
    ClientStore(tmp_path / "state")
    assert wide(tmp_path / "state") == []
    assert "m.safetensors (mode 644)" in caplog.text


def test_links_and_other_names_are_left_alone(tmp_path):
    """A link could lead to a file elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (elsewhere / "file").touch(0o644)
    state = tmp_path / "state"
    (state / "models").mkdir(parents=True)
    for path in (state, state / "models"):
        path.chmod(0o755)
    (state / "models" / "link").symlink_to(elsewhere / "file")
    (state / "spool").symlink_to(elsewhere)
    found = make_private(state, ("models", "spool", "missing"))
    assert [Path(each.partition(" ")[0]).name for each in found] == ["state", "models"]
    assert mode(elsewhere) & 0o055
