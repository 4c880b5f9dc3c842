"""A trial's rounds on disk, one JSON line each; its curve is drawn from them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedloom.simulation.output.metrics import plain
from fedloom.simulation.sweep.objective import Objective

_LEFT_OUT = ("shares",)


class RoundsFile:
    """Writes rounds as they come.

    Args:
        path: replaced if it exists; an interrupted trial starts again.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)

    def add(self, record: Mapping[str, Any]) -> None:
        """Write one round; numbers that are not finite become null."""
        kept = {name: value for name, value in record.items() if name not in _LEFT_OUT}
        self._file.write(json.dumps(plain(kept)) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def curve(path: Path, objective: Objective) -> list[tuple[float, float]]:
    """A trial's curve: (round, metric) where it was measured; empty without a file."""
    if not path.exists():
        return []
    points = []
    for line in path.read_text("utf-8").splitlines():
        record = json.loads(line)
        value = objective.measured(record)
        if value is not None:
            points.append((float(record["trained"]), value))
    return points
