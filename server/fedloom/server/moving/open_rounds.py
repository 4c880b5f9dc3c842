"""What open rounds have in the spool: the bodies of accepted updates, and checkpoints of sums.

They move with the models, before the rows. A body is checked against the row that accepted it: the
row has the SHA-256 of the body's header, which has the CRC-32C of the body. What an object store
then holds is read back. Bodies that no row accepted are left behind: their devices send them again.

Invariant: an accepted update with tensors is in the target as a whole body, or in a checkpoint.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from fedloom.protocol.atomic_files import sync_directory
from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import IntegrityError, UsageError
from fedloom.protocol.tensors.container import read_params
from fedloom.server.ledger import Ledger
from fedloom.server.ledger.rows import RoundRow, RunRow
from fedloom.server.rounds.round_sum import checkpoint_name
from fedloom.server.storage.context import StorageContext
from fedloom.server.storage.objects.object_spool import ObjectSpool
from fedloom.server.storage.spool import Spool

_ACTIVE = ("running", "paused", "queued")
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SpoolMove:
    """A file of an open round to move.

    Attributes:
        name: of the file in the spool.
        key: run and round of its task.
        identity: of the accepted update; empty for a checkpoint.
    """

    name: str
    key: tuple[str, int]
    identity: str = ""


def check_movable(ledger: Ledger, *, to_store: bool) -> None:
    """Check that nothing of an active run lies where a change of the store does not find it.

    Raises:
        UsageError: a run or a round must end before.
    """
    runs = {row.id: row for row in ledger.list_runs() if row.state in _ACTIVE}
    kept = [f"{run} ({what})" for run, row in runs.items() if (what := _on_this_disk(row))]
    if to_store and kept:
        raise UsageError(
            f"Expected no active run that keeps files on this disk alone, got {', '.join(kept)}: "
            "stop it before (`fedloom run stop RUN`), or keep the files and move the database only."
        )
    masked = [row for row in ledger.open_rounds() if _is_masked(runs.get(row.run))]
    if masked:
        names = ", ".join(f"round {row.number} of {row.run}" for row in masked[:5])
        raise UsageError(
            f"Expected no open round whose updates are masked, got {names}: its members forget "
            "their secrets. Start the server, pause the run, abort the round (`fedloom round abort "
            "RUN`), and stop the server."
        )


def _on_this_disk(run: RunRow) -> str:
    if run.upstream:
        return "of a parent server"
    return "of a Flower ServerApp" if run.spec.get("flower") else ""


def _is_masked(run: RunRow | None) -> bool:
    return run is not None and run.spec.get("masking") is not None


def open_files(old: StorageContext) -> list[SpoolMove]:
    """The files of open rounds, on this disk and checked.

    Raises:
        IntegrityError: an accepted update is missing or damaged.
        StoreFaultError: the object store does not return one.
    """
    found = [each for row in old.ledger.open_rounds() for each in _files_of(old, row)]
    for each in found:
        old.spool.fetch(each.name)
        if each.identity:
            _check_body(old.spool, each)
    return found


def move_files(files: Iterable[SpoolMove], new: StorageContext) -> Iterator[int]:
    """Store files of the folder that both spools use; yields the size of each in bytes.

    Raises:
        StoreFaultError: the object store does not take one, or returns other bytes.
    """
    for each in files:
        _store(new.spool, each)
        crossing("move.body")
        yield new.spool.path(each.name).stat().st_size


def _files_of(old: StorageContext, row: RoundRow) -> Iterator[SpoolMove]:
    """The files that hold the accepted updates of a round."""
    name = checkpoint_name((row.run, row.number))
    old.spool.fetch_kept(name)
    in_sum = _members(old.spool.path(name))
    accepted = old.ledger.accepted(row.run, row.number)
    if strangers := in_sum - {each.client for each in accepted}:
        raise IntegrityError(
            f"Expected accepted updates in the sum {name}, got those of "
            f"{', '.join(sorted(strangers))}: restore the spool from a backup, or abort the round."
        )
    if in_sum:
        yield SpoolMove(name, (row.run, row.number))
    for each in accepted:
        is_needed = each.file and each.client not in in_sum
        if is_needed and (update := old.ledger.find_update(row.run, each.round, each.client)):
            yield SpoolMove(each.file, (row.run, each.round), update.identity)


def _members(checkpoint: Path) -> set[str]:
    """The clients whose updates are in a checkpoint; none without one."""
    if not checkpoint.exists():
        return set()
    return set(json.loads(read_params(checkpoint)["note"].tobytes())["folded"])


def _check_body(spool: Spool, moved: SpoolMove) -> None:
    """Check that a file has the body that was accepted."""
    header = spool.header(moved.name)
    identity = hashlib.sha256(header.SerializeToString(deterministic=True)).hexdigest()
    found, left = 0, header.size_bytes
    with spool.path(moved.name).open("rb") as file:
        while left and (block := file.read(min(left, _BLOCK_BYTES))):
            found, left = crc32c(block, found), left - len(block)
    if (identity, found, left) != (moved.identity, header.crc32c, 0):
        raise IntegrityError(
            f"Expected the accepted update {moved.name} with the CRC-32C {header.crc32c:08x}, got "
            f"other bytes ({found:08x}): restore the spool from a backup, or abort the round."
        )


def _store(spool: Spool, moved: SpoolMove) -> None:
    """Make a file durable that is in the spool's folder."""
    if isinstance(spool, ObjectSpool):
        spool.take_in(moved.name, *moved.key, is_body=bool(moved.identity))
        return
    path = spool.path(moved.name)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    sync_directory(path.parent)
