"""Readings of a device on a simulated /proc and /sys, and GPUs of a stand-in for nvidia-smi."""

import os
import shutil
import stat

import pytest

from fedloom.client.conditions.linux import Unreadable, memory
from fedloom.client.conditions.readings import MAX_GPUS, DeviceReadings, gpus
from fedloom.client.owner.policy import READINGS

MEMINFO = "MemTotal:        4000 kB\nMemFree:          100 kB\nMemAvailable:    1000 kB\n"


def lay(root, **files):
    """Write files, such as `proc__stat="text"`."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def tablet(root):
    """A warm tablet on battery, with half of its processors busy between two reports."""
    return lay(
        root,
        proc__stat="cpu  100 0 0 100 0 0 0 0 0 0",
        proc__meminfo=MEMINFO,
        sys__class__thermal__thermal_zone0__temp="48200",
        sys__class__power_supply__BAT0__type="Battery",
        sys__class__power_supply__BAT0__capacity="37",
        sys__class__power_supply__BAT0__status="Discharging",
    )


@pytest.fixture
def no_gpu(monkeypatch, tmp_path):
    """A machine without nvidia-smi."""
    monkeypatch.setenv("PATH", str(tmp_path / "none"))


@pytest.mark.usefixtures("no_gpu")
def test_a_device_with_everything(tmp_path):
    readings = DeviceReadings(tablet(tmp_path))
    lay(tmp_path, proc__stat="cpu  130 0 10 150 10 0 0 0 0 0")
    found = readings.read(READINGS)
    assert found.cpu == pytest.approx(40.0)  # 40 of 100 ticks
    assert (found.memory.used_bytes, found.memory.total_bytes) == (3000 * 1024, 4000 * 1024)
    assert (found.temperature, found.battery, found.mains) == (48.2, 37.0, False)
    assert not found.gpus


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("only", READINGS)
def test_nothing_is_read_that_the_owner_did_not_list(tmp_path, only):
    readings = DeviceReadings(tablet(tmp_path))
    lay(tmp_path, proc__stat="cpu  130 0 10 150 10 0 0 0 0 0")
    set_fields = {field.name for field, _ in readings.read((only,)).ListFields()}
    expected = {"battery": {"battery", "mains"}, "gpu": set()}.get(only, {only})
    assert set_fields == expected


@pytest.mark.usefixtures("no_gpu")
def test_what_is_missing_or_implausible_is_left_out(tmp_path):
    """Nothing is guessed."""
    lay(tmp_path, proc__stat="intr 1 2 3", proc__meminfo="MemTotal: 10 kB\nMemAvailable: 11 kB")
    lay(tmp_path, sys__class__thermal__thermal_zone0__temp="-274000")
    readings = DeviceReadings(tmp_path)
    assert readings.read(READINGS).ByteSize() == 0
    with pytest.raises(Unreadable, match="11264 of 10240 bytes available"):
        memory(tmp_path)


def smi(folder, monkeypatch, text, code=0):
    """Put a stand-in for nvidia-smi on the path."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    assert shutil.which("nvidia-smi") == str(program)


def test_gpus_of_nvidia_smi(tmp_path, monkeypatch):
    """A name may have commas; what the program does not know is left out."""
    smi(tmp_path, monkeypatch, "NVIDIA H200, 7, 512, 143771, 34\nOdd, GPU, [N/A], [N/A], 64, [N/A]")
    first, second = gpus()
    assert (first.name, first.busy, first.temperature) == ("NVIDIA H200", 7.0, 34.0)
    assert (first.memory.used_bytes, first.memory.total_bytes) == (512 << 20, 143771 << 20)
    assert second.name == "Odd, GPU"
    assert [second.HasField(n) for n in ("busy", "memory", "temperature")] == [False] * 3


@pytest.mark.parametrize(
    ("text", "code", "count"),
    [
        ("No devices were found", 0, 0),
        ("X, 1, 1, 2, 3", 9, 0),
        ("X, 1, 1, 2, 3\n" * 40, 0, MAX_GPUS),
    ],
)
def test_odd_answers_of_nvidia_smi(tmp_path, monkeypatch, text, code, count):
    smi(tmp_path, monkeypatch, text, code)
    assert len(gpus()) == count


@pytest.mark.parametrize("row", ["X, 101, 5, 4, 900", "X, nan, -1, 4, inf"])
def test_implausible_values_of_a_gpu_are_left_out(tmp_path, monkeypatch, row):
    smi(tmp_path, monkeypatch, row)
    [gpu] = gpus()
    assert [field.name for field, _ in gpu.ListFields()] == ["name"]
