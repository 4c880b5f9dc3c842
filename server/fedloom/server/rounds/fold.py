"""Folding: from the spool files of accepted updates to a round's exact sum, and its checkpoints.

A folder belongs to one round. What it has folded is known by client name, so that after a crash
the sum goes on from the last checkpoint with those updates that it does not hold yet. Order does
not matter: the sum is of integers.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.protocol.updates.addends import add_update
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies.exact.partial import Partial

CHECKPOINT_EVERY = 16
"""Updates between checkpoints of a round's sum; bounds the disk it needs and a restart's work."""


class Folder:
    """A round's sum and who is in it.

    Args:
        partial: empty, or restored.
        folded: clients whose updates it holds.
    """

    def __init__(self, partial: Partial, folded: set[str]) -> None:
        self.partial = partial
        self.folded = folded
        self.unsaved: list[str] = []

    def fold(
        self, client: str, path: Path, header: fleet_pb2.UpdateHeader, factor: float = 1.0
    ) -> bool:
        """Add one accepted update; a second time it changes nothing.

        Args:
            client: whose.
            path: of its file.
            header: of it.
            factor: that its deltas are multiplied by, from 0 to 1, as those of a stale update.

        Returns:
            Whether enough has been folded since the last checkpoint for another one.
        """
        if client in self.folded:
            return False
        if header.parts:
            add_update(self.partial, path, header, factor)
            self.unsaved.append(path.name)
        self.folded.add(client)
        return len(self.unsaved) >= CHECKPOINT_EVERY

    def save(self, path: Path) -> list[str]:
        """Write a checkpoint; returns the spool files that are no longer needed."""
        arrays, header = self.partial.arrays()
        text = json.dumps({"partial": header, "folded": sorted(self.folded)})
        note = np.frombuffer(text.encode(), np.uint8)
        crossing("checkpoint.before")
        write_file(path, {**arrays, "note": note})
        crossing("checkpoint.after")
        done, self.unsaved = self.unsaved, []
        return done


def restore(path: Path, empty: Callable[[], Partial]) -> Folder:
    """The folder of a checkpoint, or an empty one where there is none."""
    if not path.exists():
        return Folder(empty(), set())
    arrays = {name: np.array(array) for name, array in read_params(path).items()}
    note = json.loads(arrays.pop("note").tobytes())
    return Folder(Partial.from_arrays(arrays, note["partial"]), set(note["folded"]))


def metrics_of(message: fleet_pb2.Metrics) -> Mapping[str, Any]:
    """A message's metrics as the ledger keeps them."""
    return {"num_examples": message.num_examples, "values": dict(message.values)}
