"""Free memory of a Linux machine, and lower priorities and thread counts for training.

Sources: proc(5) for MemAvailable and statm; the kernel's Documentation/admin-guide/cgroup-v2.rst
for memory.max; ioprio_set(2).
"""

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "armv7l": 314, "armv6l": 314, "riscv64": 30}
_WHO_PROCESS, _CLASS_IDLE = 1, 3 << 13
_SETTERS = (
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "scipy_openblas_set_num_threads64_",
)


def available_bytes(root: Path = ROOT) -> float:
    """Memory available without swapping: the machine's, or the container's if less.

    Infinite if neither can be read.
    """
    return min(_of_machine(root), *_of_cgroup(root))


def _of_machine(root: Path) -> float:
    with suppress(OSError, ValueError), (root / "proc/meminfo").open() as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    return float("inf")


def _of_cgroup(root: Path) -> Iterator[float]:
    yield float("inf")
    folder = root / "sys/fs/cgroup"
    with suppress(OSError, ValueError, KeyError):
        most = int((folder / "memory.max").read_text())  # "max" raises ValueError: no limit
        used = int((folder / "memory.current").read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        yield float(most - used + int(stat["inactive_file"]))


def resident_bytes() -> int:
    """Resident memory of this process, bytes; 0 if it cannot be read."""
    if sys.platform == "win32":
        return 0
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def step_back(nice: int, *, idle_io: bool) -> None:
    """Lower the priority of this thread and of those that it starts. Linux only."""
    if sys.platform != "linux":
        return
    me = threading.get_native_id()
    if nice > os.getpriority(os.PRIO_PROCESS, me):
        os.setpriority(os.PRIO_PROCESS, me, nice)
    number = _IOPRIO_SET.get(platform.machine())
    if idle_io and number is not None:
        ctypes.CDLL(None).syscall(number, _WHO_PROCESS, 0, _CLASS_IDLE)


def use_threads(most: int) -> None:
    """Limit the threads of torch and OpenBLAS, if they are loaded."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > most:
        torch.set_num_threads(most)
    for path in _loaded("openblas"):
        with suppress(OSError):
            library = ctypes.CDLL(path)
            for name in _SETTERS:
                if hasattr(library, name):
                    getattr(library, name)(most)


def _loaded(part: str) -> set[str]:
    with suppress(OSError):
        lines = Path("/proc/self/maps").read_text().splitlines()
        paths = {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6}
        return {path for path in paths if part in Path(path).name}
    return set()
