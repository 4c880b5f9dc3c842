"""The machine and the software that a simulation ran on, so that it can be repeated.

No host name, no user and no address is recorded.
"""

import importlib.metadata
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedloom.protocol.version import __version__

_PACKAGES = ("torch", "numpy", "scikit-learn", "ray", "optuna", "flwr-datasets")


def describe() -> dict[str, Any]:
    """The environment in plain values, ready for JSON.

    GPUs are listed only if torch is already loaded: loading it takes two seconds, and without it
    nothing was trained on a GPU.
    """
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cpus": available_cpus(),
        "cpus_of_machine": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "gpus": _gpus(),
        "packages": {"fedloom": __version__} | _versions(),
    }


def available_cpus() -> int:
    """Number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    """The processor's name, as the system reports it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "Processor"):
                return value.strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _gpus() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    found = []
    for place in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(place)
        memory = f"{properties.total_memory / 2**30:.0f} GiB"
        found.append(f"{properties.name}, {memory}, CUDA {torch.version.cuda}")
    return found
