"""Probes on a simulated /proc and /sys, in a temporary folder."""

import pytest

from fedloom.client.conditions import linux
from fedloom.client.conditions.linux import Unreadable

ROUTES = """\
Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
wlan0	00000000	0102A8C0	0003	0	0	600	00000000	0	0	0
eth0	00000000	0101A8C0	0003	0	0	100	00000000	0	0	0
eth0	0001A8C0	00000000	0001	0	0	100	00FFFFFF	0	0	0
"""


def lay(root, **files):
    """Write files, such as `sys__class__x="text"`."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def supply(root, name, **files):
    return lay(root, **{f"sys__class__power_supply__{name}__{k}": v for k, v in files.items()})


def test_a_machine_without_a_battery_is_on_mains(tmp_path):
    """A battery of a peripheral does not count."""
    (tmp_path / "sys/class/power_supply").mkdir(parents=True)
    assert linux.power(tmp_path) == (True, None)
    supply(
        tmp_path, "hid-mouse", type="Battery", scope="Device", capacity="5", status="Discharging"
    )
    assert linux.power(tmp_path) == (True, None)


@pytest.mark.parametrize(
    ("online", "status", "mains"),
    [
        ("1", "Charging", True),
        ("0", "Discharging", False),
        ("1", "Not charging", True),
        ("0", "Unknown", False),
    ],
)
def test_an_adapter_determines_mains_power(tmp_path, online, status, mains):
    supply(tmp_path, "AC", type="Mains", online=online)
    supply(tmp_path, "BAT0", type="Battery", status=status, capacity="80")
    assert linux.power(tmp_path) == (mains, 80.0)


def test_without_an_adapter_the_battery_status_determines_mains_power(tmp_path):
    """As on boards whose supply is not listed; an unknown status is unreadable."""
    supply(tmp_path, "BAT0", type="Battery", status="Charging", capacity="40")
    supply(tmp_path, "BAT1", type="Battery", status="Full", capacity="100")
    assert linux.power(tmp_path) == (True, 70.0)
    supply(tmp_path, "BAT0", status="Discharging")
    assert linux.power(tmp_path) == (False, 70.0)
    supply(tmp_path, "BAT0", status="Unknown")
    supply(tmp_path, "BAT1", status="Unknown")
    with pytest.raises(Unreadable, match="Unknown"):
        linux.power(tmp_path)


@pytest.mark.parametrize("capacity", ["", "full", "255", "-1"])
def test_an_implausible_charge_is_unknown(tmp_path, capacity):
    """It must not count as a full battery."""
    supply(tmp_path, "BAT0", type="Battery", status="Discharging", capacity=capacity)
    assert linux.power(tmp_path) == (False, None)


def test_the_load_is_per_processor(tmp_path, monkeypatch):
    """A load of 2 on four processors is 0.5."""
    monkeypatch.setattr(linux.os, "cpu_count", lambda: 4)
    assert linux.load(lay(tmp_path, proc__loadavg="2.00 1.00 0.50 1/200 4242")) == 0.5
    with pytest.raises(Unreadable):
        linux.load(lay(tmp_path, proc__loadavg=""))


def test_idle_time_includes_io_wait_and_this_process():
    """A training must not stop itself."""
    before, after = [0] * 8, [40, 0, 10, 40, 10, 0, 0, 0]
    assert linux.idle_between(before, after, 0.0) == 50.0
    assert linux.idle_between(before, after, 30.0) == 80.0
    with pytest.raises(Unreadable, match="do not advance"):
        linux.idle_between(after, after, 0.0)


def test_this_machines_processors_can_be_read():
    """With the real /proc/stat."""
    assert 0 <= linux.idle_cpu(sample_s=0.2) <= 100


@pytest.mark.parametrize("text", ["", "cpu 1 2 3", "cpu a b c d e f g h", "intr 1 2 3 4 5 6 7 8"])
def test_malformed_processor_times_are_unreadable(tmp_path, text):
    with pytest.raises(Unreadable, match="proc/stat"):
        linux.idle_cpu(lay(tmp_path, proc__stat=text), sample_s=0)


def test_the_hottest_zone_with_a_plausible_temperature_counts(tmp_path):
    for number, text in enumerate(["45000", "61500", "", "-274000", "2147483647"]):
        lay(tmp_path, **{f"sys__class__thermal__thermal_zone{number}__temp": text})
    assert linux.temperature(tmp_path) == 61.5


def test_without_a_thermal_zone_the_temperature_is_unreadable(tmp_path):
    """As in most virtual machines."""
    with pytest.raises(Unreadable, match="no thermal zone"):
        linux.temperature(tmp_path)


def test_the_default_route_decides_whether_the_network_is_metered(tmp_path):
    """The route of least metric, by patterns of its interface."""
    lay(tmp_path, proc__net__route=ROUTES)
    assert linux.default_interface(tmp_path) == "eth0"
    assert linux.metered(("eth*",), tmp_path) is False
    assert linux.metered(("wl*", "enp*"), tmp_path) is True


def test_the_default_route_may_be_ipv6(tmp_path):
    """The unreachable route of lo does not count."""
    zeros = "0" * 32
    lay(
        tmp_path,
        proc__net__route=ROUTES.splitlines()[0],
        proc__net__ipv6_route=f"{zeros} 00 {zeros} 00 {zeros} 00000001 00000001 0 00200200 lo\n"
        f"{zeros} 00 {zeros} 00 fe80{zeros[4:]} 00000400 1 0 00000003 wwan0",
    )
    assert linux.default_interface(tmp_path) == "wwan0"


def test_without_a_default_route_the_network_is_unreadable(tmp_path):
    with pytest.raises(Unreadable, match="no default route"):
        linux.metered(("eth*",), tmp_path)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("yes", True),
        ("no", False),
        ("yes (guessed)", True),
        ("no (guessed)", False),
        ("unknown", None),
    ],
)
def test_without_patterns_network_manager_decides(tmp_path, monkeypatch, answer, expected):
    """By its command, replaced here by a script with the same output."""
    lay(tmp_path, proc__net__route=ROUTES)
    program = tmp_path / "nmcli"
    program.write_text(f'#!/bin/sh\n[ "$6" = eth0 ] && echo "GENERAL.METERED:{answer}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if expected is None:
        with pytest.raises(Unreadable, match="does not know"):
            linux.metered((), tmp_path)
    else:
        assert linux.metered((), tmp_path) is expected
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(Unreadable, match="unmetered_interfaces"):
        linux.metered((), tmp_path)
