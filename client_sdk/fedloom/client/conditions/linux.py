"""Probes of a Linux device: they read small files of /proc and /sys on demand.

Sources: the kernel's Documentation/ABI/testing/sysfs-class-power and sysfs-class-thermal, and
proc_stat(5). Nothing here keeps a file open or runs between two calls.

Invariant: a probe returns a reading or raises `Unreadable` with the reason; an implausible value is
unreadable.
"""

import fnmatch
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from fedloom.client import process_tree

ROOT = Path("/")
SAMPLE_S = 0.5
"""Time between two readings of the processors' counters."""
NMCLI_S = 5.0


class Unreadable(Exception):  # noqa: N818 - a normal result of a probe
    """A probe has no reading."""


def power(root: Path = ROOT) -> tuple[bool, float | None]:
    """Whether the device runs on mains power, and its battery's charge in percent, if any."""
    folder = root / "sys/class/power_supply"
    if not folder.is_dir():
        raise Unreadable(f"there is no {folder}")
    supplies = [p for p in sorted(folder.iterdir()) if _text(p / "scope") != "Device"]
    batteries = [p for p in supplies if _text(p / "type") == "Battery"]
    if not batteries:
        return True, None
    adapters = [p for p in supplies if p not in batteries]
    states = {_text(p / "status") for p in batteries}
    plugged = any(_text(p / "online") == "1" for p in adapters)
    mains = plugged or ("Discharging" not in states and bool(states & {"Charging", "Full"}))
    if not mains and not adapters and "Discharging" not in states:
        raise Unreadable(f"the battery's status is {', '.join(sorted(states)) or 'missing'}")
    return mains, _charge(batteries)


def _charge(batteries: Sequence[Path]) -> float | None:
    found = [_number(p / "capacity") for p in batteries]
    fit = [c for c in found if c is not None and 0 <= c <= 100]
    return sum(fit) / len(fit) if fit and len(fit) == len(found) else None


def load(root: Path = ROOT) -> float:
    """One-minute load average per processor."""
    path = root / "proc/loadavg"
    try:
        return float(_text(path).split()[0]) / (os.cpu_count() or 1)
    except (ValueError, IndexError):
        raise Unreadable(f"{path} has no load average") from None


def idle_cpu(root: Path = ROOT, sample_s: float = SAMPLE_S) -> float:
    """Percent of the processors' time that no other process used, over a sample."""
    before, own = ticks(root), _own_ticks()
    time.sleep(sample_s)
    after, own_after = ticks(root), _own_ticks()
    # A training process that ended meanwhile has no second reading.
    used = sum(ticks - own.get(pid, 0) for pid, ticks in own_after.items())
    return idle_between(before, after, used)


def idle_between(before: Sequence[int], after: Sequence[int], own: float) -> float:
    """Percent of idle time between two readings of /proc/stat; this process counts as idle.

    Args:
        before: ticks as user nice system idle iowait irq softirq steal.
        after: the same, later.
        own: ticks that this process used between the two.
    """
    spent = [b - a for a, b in zip(before, after, strict=True)]
    if sum(spent) <= 0:
        raise Unreadable("the counters of /proc/stat do not advance")
    idle = spent[3] + spent[4] + own
    return round(100 * min(1.0, idle / sum(spent)), 1)


def ticks(root: Path = ROOT) -> list[int]:
    """Processor times since the start: user nice system idle iowait irq softirq steal."""
    path = root / "proc/stat"
    line = _text(path).splitlines()[:1]
    words = line[0].split() if line else []
    try:
        found = [int(word) for word in words[1:9]]  # guests are in user already
    except ValueError:
        found = []
    if len(found) != 8 or words[0] != "cpu":
        raise Unreadable(f"{path} has no processor times")
    return found


def _own_ticks() -> dict[int, int]:
    """By process: of this one and of all that it started, such as the training process."""
    return process_tree.processor_ticks(process_tree.tree(os.getpid()))


def memory(root: Path = ROOT) -> tuple[int, int]:
    """Used and total memory, bytes; what can be freed without swapping is not used."""
    path = root / "proc/meminfo"
    found = dict(line.partition(":")[::2] for line in _text(path).splitlines())
    try:
        total, free = (1024 * int(found[n].split()[0]) for n in ("MemTotal", "MemAvailable"))
    except (KeyError, ValueError, IndexError):
        raise Unreadable(f"{path} has no total and available memory") from None
    if not 0 <= free <= total or not total:
        raise Unreadable(f"{path} has {free} of {total} bytes available")
    return total - free, total


def temperature(root: Path = ROOT) -> float:
    """Temperature of the hottest thermal zone, °C."""
    folder = root / "sys/class/thermal"
    found = [_number(path / "temp") for path in sorted(folder.glob("thermal_zone*"))]
    # A disabled zone has no value, or one that is no temperature.
    fit = [t / 1000 for t in found if t is not None and -50_000 < t < 200_000]
    if not fit:
        raise Unreadable(f"there is no thermal zone with a temperature in {folder}")
    return max(fit)


def metered(free: Sequence[str] = (), root: Path = ROOT) -> bool:
    """Whether the network of the default route is metered.

    Args:
        free: patterns (globs) of unmetered interfaces; empty: NetworkManager decides.
        root: folder of /proc.
    """
    interface = default_interface(root)
    if free:
        return not any(fnmatch.fnmatchcase(interface, pattern) for pattern in free)
    return _of_network_manager(interface)


def default_interface(root: Path = ROOT) -> str:
    """The interface of the default route with the least metric, IPv4 before IPv6."""
    routes = []
    for line in _text(root / "proc/net/route").splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and words[1] == words[7] == "00000000" and words[6].isdigit():
            routes.append((int(words[6]), words[0]))
    for line in [] if routes else _text(root / "proc/net/ipv6_route").splitlines():
        words = line.split()
        if len(words) > 9 and words[1] == "00" and set(words[0]) == {"0"} and words[9] != "lo":
            routes.append((int(words[5], 16), words[9]))
    if not routes:
        raise Unreadable(f"there is no default route in {root / 'proc/net/route'}")
    return min(routes)[1]


def _of_network_manager(interface: str) -> bool:
    program = shutil.which("nmcli")
    if program is None:
        raise Unreadable("nmcli is not installed: set conditions.unmetered_interfaces")
    command = [program, "-t", "-f", "GENERAL.METERED", "device", "show", interface]
    try:
        done = subprocess.run(  # noqa: S603 - the interface's name is the kernel's
            command, capture_output=True, text=True, timeout=NMCLI_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreadable(f"nmcli does not answer ({error})") from None
    answer = done.stdout.strip().rpartition(":")[2].split()[:1]
    if answer not in (["yes"], ["no"]):
        raise Unreadable(f"nmcli does not know whether {interface} is metered")
    return answer == ["yes"]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> float | None:
    try:
        return float(_text(path))
    except ValueError:
        return None
