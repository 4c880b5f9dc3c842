"""A trial's rounds on disk, one JSON line each: what its curve is drawn from."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedloom.simulation.sweep.objective import Objective

_LEFT_OUT = ("shares",)


class RoundsFile:
    """Writes rounds as they come.

    Args:
        path: replaced if it exists, as a trial that was cut off begins anew.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)

    def add(self, record: Mapping[str, Any]) -> None:
        """Write one round; numbers that are not finite become null, which JSON can say."""
        kept = {name: value for name, value in record.items() if name not in _LEFT_OUT}
        self._file.write(json.dumps(_finite(kept)) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def curve(path: Path, objective: Objective) -> list[tuple[float, float]]:
    """A trial's curve: (round, metric) wherever it was measured; empty without a file."""
    if not path.exists():
        return []
    points = []
    for line in path.read_text("utf-8").splitlines():
        record = json.loads(line)
        value = objective.measured(record)
        if value is not None:
            points.append((float(record["trained"]), value))
    return points


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
