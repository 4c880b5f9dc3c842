"""Old models go, so that a run of any length takes a bounded part of the disk.

Of each run the last `keep_models` committed models stay, with the states of its strategy that
belong to them, and so do its first and its current model and every one that was ever promoted. What
was pruned stays in the ledger, and cannot be rolled back to.

Three steps, each of which may be done again, so that a kill between any two loses nothing and
leaves nothing behind: rows are marked, files that no unmarked row needs are removed, rows say that
it is done.

Invariants: a file that a row which is not marked names is never removed; neither is one that was
written, or held by whoever is about to promote it or to begin a run with it, in the last
`MIN_AGE_S` seconds, since its row may be about to come.
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
"""Between two looks."""

MIN_AGE_S = 600.0


async def keep(storage: StorageContext, keep_models: int) -> None:
    """Prune every `PACE_S` seconds, until cancelled; `keep_models` as for `prune`."""
    while True:
        try:
            await prune(storage, keep_models)
        except (OSError, SQLAlchemyError):
            log.exception("old models could not be pruned")
        await asyncio.sleep(PACE_S)


async def prune(storage: StorageContext, keep_models: int) -> int:
    """Remove the models that are no longer kept; returns how many files were removed.

    Args:
        storage: of the server.
        keep_models: latest models of each run that stay; 0 for all.
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
    # Models are written in that thread: none is while files go.
    gone = await storage.in_fold(_remove, storage.models, set().union(*doomed.values()) - needed)
    left = {digest for digest in set().union(*doomed.values()) - needed if digest not in gone}
    done = [key for key, named in doomed.items() if not named & left]
    await storage.in_ledger(ledger.pruned, done)
    if gone:
        log.info("pruned %d files of old models", len(gone))
    return len(gone)


def _named(rows: Iterable[tuple[str, str | None]]) -> set[str]:
    """Every file that models and notes of states name."""
    named: set[str] = set()
    for digest, state in rows:
        named |= {digest, *StateNote.read(state).digests}
    return named


def _remove(models: ModelStore, digests: Iterable[str]) -> set[str]:
    """Remove files; returns those that are gone, which they may have been before."""
    return {digest for digest in digests if models.discard(digest, MIN_AGE_S)}
