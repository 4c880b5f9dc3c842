"""`fedloom client service-file`: files that the parsers of their formats read back."""

import getpass
import plistlib
import shlex
import sys
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main


@pytest.fixture
def device(tmp_path):
    """Settings and code of an enrolled device, in a folder with a space."""
    folder = tmp_path / "ward 3"
    folder.mkdir()
    (folder / "client.toml").write_text(
        'server = "h:1"\nstate_dir = "state"\n[interruptions]\nstop_s = 20\n'
    )
    (folder / "mine.py").write_text("client = None\n")
    return folder


def written(device, system, *options):
    out = device / "out"
    words = ["client", "service-file", system, f"{device}/mine.py:client", *options]
    done = CliRunner().invoke(
        main, [*words, "--out", str(out), "--config", str(device / "client.toml")]
    )
    assert done.exit_code == 0, done.output
    return out.read_bytes(), done.output


def expected(device):
    code, config = f"{device}/mine.py:client", str(device / "client.toml")
    return [sys.executable, "-m", "fedloom.cli.main", "client", "run", code, "--config", config]


def test_a_job_of_launchd(device):
    """It starts at boot, restarts after failures, and may take its time to stop."""
    raw, said = written(device, "launchd")
    job = plistlib.loads(raw)
    assert job["ProgramArguments"] == expected(device)
    assert job["WorkingDirectory"] == str(device)
    assert (job["RunAtLoad"], job["KeepAlive"]) == (True, {"SuccessfulExit": False})
    assert job["ExitTimeOut"] == 35
    assert job["Umask"] == 0o077
    assert job["UserName"] == getpass.getuser()
    assert "launchctl bootstrap system" in said


def test_a_job_of_launchd_runs_as_a_user(device):
    """Never as root by omission; a task has its own account."""
    raw, _ = written(device, "launchd", "--user", "_fedloom")
    assert plistlib.loads(raw)["UserName"] == "_fedloom"
    with pytest.raises(AssertionError, match="Expected --user with launchd"):
        written(device, "task-scheduler", "--user", "_fedloom")


def test_a_task_of_task_scheduler(device):
    """In UTF-16, as schtasks reads it; the arguments are quoted."""
    raw, said = written(device, "task-scheduler")
    task = ET.fromstring(raw)
    assert raw[:2] in (b"\xff\xfe", b"\xfe\xff")
    values = {each.tag.rpartition("}")[2]: each.text for each in task.iter()}
    assert values["Command"] == sys.executable
    assert shlex.split(values["Arguments"]) == expected(device)[1:]
    assert values["WorkingDirectory"] == str(device)
    assert values["ExecutionTimeLimit"] == "PT0S"
    assert values["UserId"] == "S-1-5-19"
    assert [each.tag.rpartition("}")[2] for each in task] == [
        "Triggers", "Principals", "Settings", "Actions"
    ]  # fmt: skip
    assert "schtasks /Create /TN fedloom-client /XML" in said
