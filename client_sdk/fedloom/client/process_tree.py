"""A process with all that it started: its memory, its processor time, its end.

Source: proc(5) for stat, statm and smaps_rollup. Where there is no /proc, a process has no known
descendants, and its memory and time are 0.
"""

import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
_PARENT, _USER, _SYSTEM, _BORN = 1, 11, 12, 19
"""Fields of /proc/PID/stat after the name, which may hold any character."""


def tree(root: int) -> list[int]:
    """A process and its descendants, parents first."""
    children = defaultdict(list)
    with suppress(OSError):
        for folder in PROC.iterdir():
            if folder.name.isdigit() and (fields := _stat(int(folder.name))):
                children[int(fields[_PARENT])].append(int(folder.name))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def memory_bytes(pids: Iterable[int]) -> int:
    """Memory of processes, bytes; of a page that n processes share, each has an n-th (PSS)."""
    return sum(map(_memory_bytes, pids))


def _memory_bytes(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    if sys.platform == "win32":
        return 0
    with suppress(OSError, ValueError, IndexError):
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def processor_ticks(pids: Iterable[int]) -> dict[int, int]:
    """Processor time that each process has used, clock ticks; without those that have ended."""
    stats = ((pid, _stat(pid)) for pid in pids)
    return {pid: int(found[_USER]) + int(found[_SYSTEM]) for pid, found in stats if found}


def _stat(pid: int) -> list[str]:
    with suppress(OSError):
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def births(pids: Iterable[int]) -> dict[int, str]:
    """When processes began: a process id alone may be another process's later."""
    return {pid: fields[_BORN] for pid in pids if (fields := _stat(pid))}


def kill(found: Mapping[int, str]) -> None:
    """Kill processes that `births` found, with the groups that they lead, if they still run."""
    if sys.platform == "win32":
        return  # it shows no descendants: `births` finds none
    for pid, _ in births(found).items() & found.items():
        kill_group(pid)
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def kill_group(leader: int) -> None:
    """Kill the processes of a group, or what its leader has left of it."""
    if sys.platform != "win32":
        with suppress(OSError):  # there is no such group
            os.killpg(leader, signal.SIGKILL)


def reap(leader: int, others: Iterable[int]) -> None:
    """Remove ended processes that became children of this one, as in a container without an init.

    Args:
        leader: of an ended process group, whose own end was already waited for.
        others: further processes that nothing else waits for.
    """
    if sys.platform == "win32":
        return
    for pid in (-leader, *others):
        with suppress(OSError):  # none is our child
            while os.waitpid(pid, os.WNOHANG)[0]:
                pass
