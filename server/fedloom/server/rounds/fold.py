"""Folding: adding the spool files of accepted updates to a round's exact sum, with checkpoints.

A folder belongs to one round and records the clients that it has folded. After a crash the sum
resumes from the last checkpoint and adds the missing updates. The order does not matter, since
the sum is of integers.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.protocol.updates.addends import ForEach, UpdateFile, add_updates
from fedloom.protocol.updates.site_sum import add_site_sum, metrics_of_site
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.ledger.rows import AcceptedRow
from fedloom.server.planning.spec import RunSpec
from fedloom.server.threads import Thread
from fedloom.strategies.exact.partial import Partial

CHECKPOINT_EVERY = 16
"""Updates after which a sum has a checkpoint; limits disk space and the work of a restart."""

TOGETHER = 8
"""Most updates that are folded together: a block of the sum is in the cache for all of them."""

PATIENCE_S = 0.5
"""Seconds for which an update waits for others to be folded together, while its round is open."""

_SHARED_BYTES = 16 << 20
"""Bytes of updates from which several threads fold them."""


def factor(spec: RunSpec, staleness: int) -> float:
    """The factor of an update's deltas, from 0 to 1; below 1 for a stale one in a buffer."""
    config = spec.buffer_config()
    return 1.0 if config is None else config.staleness(staleness)


def in_threads(helpers: Thread, updates: Iterable[UpdateFile]) -> ForEach | None:
    """Return what folds the tensors of large updates in these threads; None for small ones."""
    size_bytes = sum(each.header.size_bytes for each in updates)
    return helpers.wait_all if size_bytes >= _SHARED_BYTES else None


class Folder:
    """A round's sum, and the clients whose updates it contains."""

    def __init__(self, partial: Partial, folded: set[str]) -> None:
        self.partial = partial
        self.folded = folded
        self.unsaved: list[str] = []
        self._is_whole = True  # no update was added in part

    def fold(self, updates: Mapping[str, UpdateFile], for_each: ForEach | None = None) -> None:
        """Add accepted updates, at most `MOST_ADDENDS`; adding one again changes nothing.

        Args:
            updates: by their senders.
            for_each: see `add_updates`.

        Raises:
            IntegrityError: a file is not as its header says, or an earlier call failed: the sum may
                contain parts of updates, so nothing more is added, and it cannot be saved.
        """
        self._check_whole()
        self._is_whole = False
        new = {client: each for client, each in updates.items() if client not in self.folded}
        with_tensors = [each for each in new.values() if each.header.parts]
        for path, header, _ in with_tensors:
            if header.HasField("site"):
                add_site_sum(self.partial, path, header)
        of_devices = [each for each in with_tensors if not each.header.HasField("site")]
        add_updates(self.partial, of_devices, for_each)
        self.unsaved += [each.path.name for each in with_tensors]
        self.folded.update(new)
        self._is_whole = True

    def _check_whole(self) -> None:
        if not self._is_whole:
            raise IntegrityError(
                "Expected a sum of whole updates, got one with a part of an update: restore it."
            )

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether the sum has enough updates that no checkpoint has."""
        return len(self.unsaved) >= CHECKPOINT_EVERY

    def merge(self, sealed: "Folder", members: Collection[str]) -> bool:
        """Add the sum of a gate, in which the ledger says that these members' updates are.

        Returns:
            False, and nothing is added, if one of them is in this sum: it was folded from its body
            by an attempt that saw the ledger before the gate had sealed it.

        Raises:
            IntegrityError: the sum has other members.
        """
        if sealed.folded != {*members}:
            raise IntegrityError("Expected the members that the ledger says, got other ones.")
        if not self.folded.isdisjoint(members):
            return False
        self.partial.merge(sealed.partial)
        self.folded.update(members)
        return True

    def save(self, path: Path) -> list[str]:
        """Write a checkpoint; return the spool files that are no longer needed.

        Raises:
            IntegrityError: an update was added in part.
        """
        self._check_whole()
        arrays, header = self.partial.arrays()
        text = json.dumps({"partial": header, "folded": sorted(self.folded)})
        note = np.frombuffer(text.encode(), np.uint8)
        crossing("checkpoint.before")
        write_file(path, {**arrays, "note": note})
        crossing("checkpoint.after")
        done, self.unsaved = self.unsaved, []
        return done


def restore(path: Path, empty: Callable[[], Partial]) -> Folder:
    """Return the folder of a checkpoint, or an empty one without a checkpoint."""
    if not path.exists():
        return Folder(empty(), set())
    arrays = {name: np.array(array) for name, array in read_params(path).items()}
    note = json.loads(arrays.pop("note").tobytes())
    return Folder(Partial.from_arrays(arrays, note["partial"]), set(note["folded"]))


def sums_of(accepted: Iterable[AcceptedRow]) -> dict[str, set[str]]:
    """The members of each sum that a gate has sealed, by its file, as the rows name it."""
    sums: dict[str, set[str]] = {}
    for row in accepted:
        if row.sealed_in:
            sums.setdefault(row.sealed_in, set()).add(row.client)
    return sums


def metrics_of(message: fleet_pb2.Metrics | fleet_pb2.SiteMetrics) -> dict[str, Any]:
    """Return a message's metrics in the form of the ledger; those of a site with their sums."""
    if isinstance(message, fleet_pb2.Metrics):
        return {"num_examples": message.num_examples, "values": dict(message.values)}
    sums = metrics_of_site(message)
    return {
        "num_examples": sums.num_examples,
        "values": sums.means(),
        "sums": {name: list(map(list, each)) for name, each in sums.values.items()},
        "extremes": {name: list(each) for name, each in sums.extremes.items()},
        "counts": {name: list(each) for name, each in sums.counts.items()},
    }
