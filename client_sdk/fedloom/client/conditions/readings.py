"""The readings of a device that its owner lets leave: load, memory, temperature, battery, GPUs.

GPUs are read by `nvidia-smi`, where it is installed. A reading that fails or is implausible is left
out.
"""

import math
import shutil
import subprocess
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from fedloom.client.conditions import linux
from fedloom.protocol.v1 import fleet_pb2

MAX_GPUS = 16
MAX_NAME = 80
"""Characters of a GPU's name."""
_SMI_S = 5.0
_SMI = (
    "--query-gpu=name,utilization.gpu,memory.used,memory.total,temperature.gpu",
    "--format=csv,noheader,nounits",
)


class DeviceReadings:
    """Reads a Linux device; the load is that since the reading before.

    Args:
        root: folder of /proc and /sys.
    """

    def __init__(self, root: Path = linux.ROOT) -> None:
        self._root = root
        self._ticks = _tried(lambda: linux.ticks(root))

    def read(self, wanted: Collection[str]) -> fleet_pb2.DeviceReport:
        """Read what the owner lets leave; it may take seconds, for a GPU.

        Args:
            wanted: of `fedloom.client.owner.policy.READINGS`.
        """
        root, report = self._root, fleet_pb2.DeviceReport()
        if "cpu" in wanted and (cpu := self._cpu()) is not None:
            report.cpu = cpu
        if "memory" in wanted and (memory := _tried(lambda: linux.memory(root))) is not None:
            report.memory.used_bytes, report.memory.total_bytes = memory
        heat = _tried(lambda: linux.temperature(root)) if "temperature" in wanted else None
        if heat is not None:
            report.temperature = heat
        if "battery" in wanted and (power := _tried(lambda: linux.power(root))) is not None:
            report.mains, charge = power
            if charge is not None:
                report.battery = charge
        if "gpu" in wanted:
            report.gpus.extend(gpus())
        return report

    def _cpu(self) -> float | None:
        before, self._ticks = self._ticks, _tried(lambda: linux.ticks(self._root))
        if before is None or self._ticks is None:
            return None
        after = self._ticks
        idle = _tried(lambda: linux.idle_between(before, after, own=0.0))
        return None if idle is None else min(100.0, max(0.0, 100.0 - idle))


def gpus() -> list[fleet_pb2.Gpu]:
    """The NVIDIA GPUs of the device, as `nvidia-smi` lists them; none without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            [program, *_SMI], capture_output=True, text=True, timeout=_SMI_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [line.rsplit(",", 4) for line in done.stdout.splitlines()] if not done.returncode else []
    return [_gpu(row) for row in rows if len(row) == 5][:MAX_GPUS]


def _gpu(row: Sequence[str]) -> fleet_pb2.Gpu:
    """A line of `nvidia-smi`, whose memory is in MiB; `[N/A]` for what it does not know."""
    gpu = fleet_pb2.Gpu(name="".join(c for c in row[0].strip() if c.isprintable())[:MAX_NAME])
    busy, used, total, heat = (_number(word) for word in row[1:])
    if busy is not None and 0 <= busy <= 100:
        gpu.busy = busy
    if used is not None and total is not None and 0 <= used <= total and total > 0:
        gpu.memory.used_bytes, gpu.memory.total_bytes = int(used) << 20, int(total) << 20
    if heat is not None and -50 < heat < 200:
        gpu.temperature = heat
    return gpu


def _number(word: str) -> float | None:
    try:
        found = float(word)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _tried(probe: Callable[[], Any]) -> Any:
    try:
        return probe()
    except linux.Unreadable:
        return None
