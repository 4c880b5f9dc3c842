"""The commands of `scripts/cluster`: what they refuse, and which processes they end."""

import socket
import sys

import pytest

from cluster import haproxy, postgresql
from cluster.prerequisites import check
from cluster.processes import Processes
from cluster.settings import Settings
from cluster.stopping import stop
from fedloom.protocol.errors import UnavailableError, UsageError
from support.ports import port_block

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def processes(tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir()
    Settings(port=8443, num_devices=1).write(folder)
    made = Processes(folder)
    made.create()
    yield made
    made.stop([each for each in made.all() if each.is_alive])


@pytest.fixture
def installed(monkeypatch):
    """As if haproxy and PostgreSQL were installed."""
    monkeypatch.setattr(haproxy, "program", lambda: "haproxy")
    monkeypatch.setattr(postgresql, "programs", lambda: "bin")


@pytest.mark.parametrize(
    ("program", "package"), [("haproxy.program", "haproxy"), ("postgresql.programs", "postgresql")]
)
def test_a_missing_program_is_named_with_its_package(
    program, package, tmp_path, installed, monkeypatch
):
    monkeypatch.setattr(f"cluster.{program}", lambda: None)
    with pytest.raises(UsageError, match=f"apt-get install {package}"):
        check(tmp_path / "new", Settings(port=8443, num_devices=1))


def test_a_port_that_is_taken_is_named_with_its_use(tmp_path, installed):
    """Here that of PostgreSQL, one after haproxy's."""
    settings = Settings(port=port_block(), num_devices=1)
    with (
        socket.create_server(("127.0.0.1", settings.database_port)),
        pytest.raises(UsageError, match=f"Expected port {settings.database_port} .* PostgreSQL"),
    ):
        check(tmp_path / "new", settings)


def test_a_cluster_is_not_started_twice(processes, installed, tmp_path):
    with pytest.raises(UsageError, match="`make cluster-stop` removes it"):
        check(tmp_path / "cluster", Settings(port=8443, num_devices=1))


@pytest.mark.parametrize(("port", "devices"), [(80, 6), (65530, 6), (8443, 0), (8443, 101)])
def test_settings_out_of_range_are_refused(port, devices):
    with pytest.raises(UsageError, match="Expected"):
        Settings(port=port, num_devices=devices)


def test_every_port_has_one_use():
    settings = Settings(port=8443, num_devices=1)
    assert len(settings.ports) == 3 + 3 * 4


def test_processes_are_ended_with_their_folder(processes, tmp_path, capsys):
    processes.start("device-1", SLEEP)
    [device] = processes.all()
    assert device.is_alive
    stop(tmp_path / "cluster", keep=False)
    assert not device.is_alive
    assert not (tmp_path / "cluster").exists()
    assert "1 processes ended." in capsys.readouterr().out


def test_a_later_process_with_a_recorded_number_is_left_alone(processes, tmp_path):
    """Its start differs, or the machine has booted since."""
    processes.start("device-1", SLEEP)
    path = tmp_path / "cluster" / "pids" / "device-1"
    [device], recorded = processes.all(), path.read_text()
    head, _, tail = recorded.partition(")")
    fields = tail.split(" ")
    fields[20] = str(int(fields[20]) + 1)
    for changed in (f"{head}){' '.join(fields)}", recorded.replace(device.boot, "earlier\n")):
        path.write_text(changed)
        [found] = processes.all()
        assert found.pid == device.pid
        assert not found.is_alive
        processes.stop([found])
        assert device.is_alive
    path.write_text(recorded)


def test_only_the_folder_of_a_cluster_is_removed(tmp_path, capsys):
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match="no cluster"):
        stop(folder, keep=False)
    assert (folder / "thesis.tex").exists()
    stop(tmp_path / "nothing", keep=False)
    assert "There is no cluster" in capsys.readouterr().out


def test_a_process_that_ends_is_reported_with_the_end_of_its_log(processes):
    processes.start("fl-1", [sys.executable, "-c", "raise SystemExit('Expected another port')"])
    with pytest.raises(UnavailableError, match=r"fl-1 has ended.*\n.*Expected another port"):
        processes.wait(lambda: False, "it listens", ["fl-1"])
