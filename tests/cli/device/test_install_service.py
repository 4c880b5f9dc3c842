"""`fedloom client install-service`: a hardened unit that systemd accepts."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedloom.cli.device import install_service
from fedloom.cli.device.systemd_unit import Unit
from fedloom.cli.main import main

ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(
    ANALYZE is None, reason="needs systemd-analyze (Debian: systemd)"
)
EXPOSURE = 2.1
"""Exposure level of systemd, 0 to 10; OK is below 2.5."""

UNIT = Unit(
    command=("/usr/bin/true", "client", "run", "/opt/ward/my client.py:client", "100%"),
    user="root",
    state_directory="fedloom-client",
    working=Path("/"),
    stop_s=10.0,
    compiles=False,
)


@pytest.fixture
def device(tmp_path):
    """Settings and code of an enrolled device."""
    (tmp_path / "client.toml").write_text('server = "h:1"\nstate_dir = "state"\n')
    (tmp_path / "state").mkdir()
    (tmp_path / "mine.py").write_text("client = None\n")
    return tmp_path


def invoke(command, device, *arguments):
    words = ["client", command, *arguments]
    if command == "install-service":
        words += [f"{device}/mine.py:client", "--config", str(device / "client.toml")]
    return CliRunner().invoke(main, words)


def exposure(path):
    done = subprocess.run(
        [ANALYZE, "security", "--offline=yes", "--no-pager", path],
        check=False,
        capture_output=True,
        text=True,
    )
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stderr
    return float(found[1])


@needs_systemd
@pytest.mark.parametrize(
    "unit",
    [
        UNIT,
        replace(UNIT, compiles=True, home=True, temporary=True),
        replace(UNIT, gpu=True, state_directory="", writable=(Path("/var/tmp"),)),
        replace(UNIT, systemd=300),
    ],
)
def test_systemd_accepts_the_unit(unit, tmp_path):
    """`systemd-analyze` reports no warning and a low exposure."""
    path = tmp_path / "fedloom-client.service"
    path.write_text(unit.text())
    done = subprocess.run([ANALYZE, "verify", path], check=False, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if path.name in line]
    new = ("RestartSteps", "RestartMaxDelaySec") if unit.systemd >= 254 else ()
    assert [line for line in said if not any(word in line for word in new)] == []
    assert exposure(path) < EXPOSURE


@needs_systemd
def test_unit_without_sandbox_is_exposed(tmp_path):
    """The exposure level distinguishes units."""
    path = tmp_path / "bare.service"
    path.write_text("[Service]\nExecStart=/usr/bin/true\n")
    assert exposure(path) > 9


def test_spaces_and_percent_signs_are_quoted():
    """A percent sign would begin a specifier of systemd."""
    assert 'ExecStart=/usr/bin/true client run "/opt/ward/my client.py:client" 100%%' in UNIT.text()


def test_only_torch_gets_executable_memory():
    """Writable and executable memory is denied without torch."""
    assert "\nMemoryDenyWriteExecute=yes" in UNIT.text()
    assert "\nMemoryDenyWriteExecute" not in replace(UNIT, compiles=True).text()


def test_stop_timeout_includes_the_agents_stop():
    """The agent has time to save a checkpoint."""
    assert "TimeoutStopSec=25s" in UNIT.text()
    assert "TimeoutStopSec=75s" in replace(UNIT, stop_s=60.0).text()


def test_dry_run_changes_nothing(device):
    """It prints the steps, the user and the unit."""
    before = sorted(device.rglob("*"))
    done = invoke("install-service", device, "--dry-run", "--user", "ward", "--json")
    document = json.loads(done.output)
    assert (done.exit_code, document["done"]) == (0, False)
    assert "create the user ward" in document["steps"][0]
    assert f"{device.resolve()}/mine.py:client" in document["text"]
    assert "User=ward\n" in document["text"]
    assert sorted(device.rglob("*")) == before
    assert "Would, as root:" in invoke("install-service", device, "--dry-run").output


@pytest.mark.parametrize("command", ["install-service", "uninstall-service"])
def test_without_systemd_it_is_refused(command, device, monkeypatch, tmp_path):
    """The error names systemd."""
    monkeypatch.setattr(install_service, "RUNNING", tmp_path / "none")
    done = invoke(command, device)
    assert done.exit_code == 2
    assert "systemd" in done.output


@pytest.mark.parametrize("command", ["install-service", "uninstall-service"])
def test_without_root_it_is_refused(command, device, monkeypatch, tmp_path):
    """The error names sudo."""
    monkeypatch.setattr(install_service, "RUNNING", tmp_path)
    monkeypatch.setattr(install_service.os, "geteuid", lambda: 1000)
    done = invoke(command, device)
    assert done.exit_code == 2
    assert "sudo" in done.output


def test_service_is_installed_and_removed(device, monkeypatch, tmp_path):
    """Only the client's files are given to the user."""
    ran = []
    monkeypatch.setattr(install_service, "RUNNING", tmp_path)
    monkeypatch.setattr(install_service, "UNITS", tmp_path / "units")
    monkeypatch.setattr(install_service.os, "geteuid", lambda: 0)
    monkeypatch.setattr(install_service, "_system", lambda *words: ran.append(words))
    (tmp_path / "units").mkdir()
    done = invoke("install-service", device, "--user", "nobody")
    assert done.exit_code == 0, done.output
    unit = tmp_path / "units" / "fedloom-client.service"
    assert "User=nobody" in unit.read_text()
    given = {words[-1] for words in ran if words[0] == "chown"}
    assert given == {str(device / "client.toml"), str(device / "state")}
    assert ("systemctl", "enable", "--now", "fedloom-client") in ran
    done = invoke("uninstall-service", device)
    assert (done.exit_code, unit.exists()) == (0, False)
    assert ("systemctl", "disable", "--now", "fedloom-client") in ran
    assert invoke("uninstall-service", device).exit_code == 2


@pytest.mark.parametrize("name", ["../x", "a b", "X", ""])
def test_invalid_names_are_refused(name, device):
    """Names become part of paths that root writes."""
    for option in ("--name", "--user"):
        assert invoke("install-service", device, "--dry-run", option, name).exit_code == 2


def test_missing_code_is_refused(device):
    """Before the unit is written."""
    words = ["client", "install-service", "--dry-run", f"{device}/none.py:client"]
    done = CliRunner().invoke(main, [*words, "--config", str(device / "client.toml")])
    assert done.exit_code == 2
    assert "There is no file" in done.output


@needs_systemd
def test_systemd_accepts_the_servers_unit(tmp_path):
    """With a user and a program that exist here."""
    text = (Path(__file__).parents[3] / "deploy/systemd/fedloom-server.service").read_text()
    path = tmp_path / "fedloom-server.service"
    text = text.replace("/opt/fedloom/bin/fedloom", "/usr/bin/true")
    path.write_text(text.replace("User=fedloom", "User=root"))
    done = subprocess.run([ANALYZE, "verify", path], check=False, capture_output=True, text=True)
    assert [line for line in done.stderr.splitlines() if path.name in line] == []
    assert exposure(path) < EXPOSURE
