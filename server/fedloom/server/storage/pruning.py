"""Prunes old models, so that the disk space of a run is bounded.

Of each run, the latest `keep_models` committed models and their strategy states are kept, also its
initial, current, best and promoted models. Pruned models stay in the ledger, but a run cannot be
rolled back to them.

It takes three steps, each of which can be repeated after a crash: mark rows, remove files that no
unmarked row refers to, and mark the rows as done.

Invariants: a file that an unmarked row refers to is never removed, nor is one that was written or
held (to promote it, or to start a run from it) in the last `MIN_AGE_S` seconds, as its row may not
be written yet.
"""

import asyncio
import logging
from collections.abc import Iterable

from sqlalchemy.exc import SQLAlchemyError

from fedloom.server.planning.state_note import StateNote
from fedloom.server.storage.context import StorageContext
from fedloom.server.storage.model_store import ModelStore

log = logging.getLogger(__name__)

PACE_S = 30.0
"""Interval of pruning."""

MIN_AGE_S = 600.0


async def keep(storage: StorageContext, keep_models: int) -> None:
    """Prune every `PACE_S` seconds until cancelled; `keep_models` as for `prune`."""
    while True:
        try:
            await prune(storage, keep_models)
        except (OSError, SQLAlchemyError):
            log.exception("old models could not be pruned")
        await asyncio.sleep(PACE_S)


async def prune(storage: StorageContext, keep_models: int) -> int:
    """Prune models beyond the latest `keep_models` of each run; returns the number of files.

    With 0, nothing is pruned.
    """
    if not keep_models:
        return 0
    ledger = storage.ledger
    await storage.in_ledger(ledger.mark_pruned, keep_models)
    marked = await storage.in_ledger(ledger.marked)
    if not marked:
        return 0
    needed = _named(await storage.in_ledger(ledger.unmarked))
    doomed = {(row.run, row.round): _named([(row.digest, row.state)]) for row in marked}
    # In the thread that writes models, so that none is written meanwhile.
    gone = await storage.in_fold(_remove, storage.models, set().union(*doomed.values()) - needed)
    left = {digest for digest in set().union(*doomed.values()) - needed if digest not in gone}
    done = [key for key, named in doomed.items() if not named & left]
    await storage.in_ledger(ledger.pruned, done)
    if gone:
        log.info("pruned %d files of old models", len(gone))
    return len(gone)


def _named(rows: Iterable[tuple[str, str | None]]) -> set[str]:
    """Digests of all files that rows of models and their states refer to."""
    named: set[str] = set()
    for digest, state in rows:
        named |= {digest, *StateNote.read(state).digests}
    return named


def _remove(models: ModelStore, digests: Iterable[str]) -> set[str]:
    """Remove files; returns those that no longer exist."""
    return {digest for digest in digests if models.discard(digest, MIN_AGE_S)}
