"""Deletes leftovers in the object store, bounds the cache of models, and tells of lost objects.

A leftover is an object that no row of the ledger names: of an upload that was cut within a part, of
a server that was killed between a PUT and its row, or a PUT that arrived late.
"""

import asyncio
import logging
import time
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from fedloom.server.storage.model_store import ModelStore
from fedloom.server.storage.objects import check
from fedloom.server.storage.objects.inventory import take_inventory
from fedloom.server.storage.objects.object_models import FOLDER
from fedloom.server.storage.objects.object_spool import SUMS, UPDATES
from fedloom.server.storage.objects.remote import RemoteStorage

log = logging.getLogger(__name__)

PACE_S: Final = 60.0
SWEEP_S: Final = 24 * 3600.0

MOST_TOLD: Final = 20
"""Lost objects that are named in the log."""

MIN_AGE_S: Final = 3600.0
"""Age of a leftover, by the store's clock: a younger object may get its row yet."""


async def keep(
    remote: RemoteStorage, models: ModelStore, cache_bytes: int, *, sweeps: bool = True
) -> None:
    """Trim the cache; take an inventory and sweep, now and every day; until cancelled.

    Of several servers the one that drives sweeps.
    """
    due = 0.0
    while True:
        try:
            await remote.in_store(models.trim, cache_bytes)
            if sweeps and time.monotonic() >= due:
                await remote.in_store(tell_lost, remote)
                count = await remote.in_store(sweep, remote)
                due = time.monotonic() + SWEEP_S
                if count:
                    log.info("deleted %d leftovers of the object store", count)
        except (OSError, SQLAlchemyError) as error:
            log.warning("the object store could not be swept: %s", error)
        await asyncio.sleep(PACE_S)


def tell_lost(remote: RemoteStorage) -> None:
    """Log which objects of the ledger are not in the store."""
    lost = take_inventory(remote.ledger, remote.objects).lost
    for name, what in sorted(lost.items())[:MOST_TOLD]:
        log.error(
            "the object %s of %s is missing in %s: restore it from a backup, or from the bucket's "
            "versions",
            name, what, remote.url,
        )  # fmt: skip
    if len(lost) > MOST_TOLD:
        log.error("%d objects are missing: `fedloom store check --objects`", len(lost))


def sweep(remote: RemoteStorage, min_age_s: float = MIN_AGE_S) -> int:
    """Delete objects that no row of the ledger names; returns how many."""
    oldest = time.time() - min_age_s
    listed = [
        each.name
        for folder in (FOLDER, UPDATES, SUMS, check.FOLDER)
        for each in remote.objects.list(folder)
        if each.modified_at <= oldest
    ]
    # In this order: what is listed and counts has its row by now, or is still being put.
    ledger, named = remote.ledger, set(remote.storing)
    named |= remote.ask(ledger.model_object_names) | remote.ask(ledger.body_object_names)
    left = [name for name in listed if name.rpartition(".")[0] not in named]
    remote.deletions.add(left)
    return len(left)
