"""Moves a stopped server's ledger and models to another database and another store.

The steps, each of which can be repeated after a crash:

1. Models, and the updates of open rounds, are stored in the target, and read back.
2. All rows are copied, in one transaction of the target.
3. The rows of both databases are compared by digest.
4. `server.toml` names the target; what is in files now is no longer noted as objects.

Until the last step, the source is the server's. It is not changed, but for an entry in its audit
trail, and stays as a backup: SQLite's file and the spool get another name, so that nobody starts
them by mistake.

Invariant: a server never starts from a target that lacks anything of its source.
"""

import hashlib
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import IntegrityError, UsageError
from fedloom.server import config as configuration
from fedloom.server.config import ServerConfig
from fedloom.server.http.unix_socket import locked
from fedloom.server.ledger import Ledger
from fedloom.server.ledger.moving.copies import Digests, tables_of
from fedloom.server.moving.open_rounds import check_movable, move_files, open_files
from fedloom.server.moving.stillness import standing_still
from fedloom.server.replicas.key_vault import KeyVault
from fedloom.server.storage.context import StorageContext
from fedloom.server.storage.opening import SPOOL, open_storage

log = logging.getLogger(__name__)

MOVED = ".moved"
"""Suffix of SQLite's files, and of the spool, after a move."""

_SQLITE = ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What was moved.

    Attributes:
        models: number of models.
        updates: files of accepted updates of open rounds.
        size_bytes: of both.
        tables: rows and digest of each table.
    """

    models: int
    updates: int
    size_bytes: int
    tables: Digests


def move(
    state_dir: Path, database: str, store: str, tell: Callable[[str], None] = log.info
) -> Moved:
    """Move a stopped server's ledger and models.

    Args:
        state_dir: of the server.
        database: SQLAlchemy URL; empty for SQLite in the state directory.
        store: URL of an object store; empty for files in the state directory.
        tell: called with each step.

    Raises:
        UsageError: another server drives, a run cannot be moved, or the target is not empty.
        UnavailableError: the server runs, or the target does not answer.
        IntegrityError: the copy differs from the source.
    """
    before = configuration.load(state_dir)
    after = replace(before, database=database, store=store)
    with ExitStack() as stack:
        stack.enter_context(locked(state_dir / "control.sock"))
        source = stack.enter_context(_ledger(state_dir, before))
        _check_change(before, after, source)
        still = stack.enter_context(standing_still(source))
        restored = before.store != after.store
        if restored:
            check_movable(source, to_store=bool(after.store))
        if source.wrapped_keys():
            KeyVault(state_dir, source).restore()
        same = before.database == after.database
        target = source if same else stack.enter_context(_ledger(state_dir, after))
        if not same:
            _check_target(source, target)
        models: list[int] = []
        updates: list[int] = []
        if restored:
            old = stack.enter_context(_storage(state_dir, before, source))
            files = open_files(old)  # before the target is the ledger's
            new = stack.enter_context(_storage(state_dir, after, target, is_target=True))
            models += _move_models(old, new, tell)
            tell("the updates of open rounds")
            updates += move_files(files, new)
        found: Digests = {}
        if not same:
            found = _move_rows(source, target, with_store=not restored, tell=tell)
        if still is not None:
            still.check()
        crossing("move.settings")
        configuration.rewrite(state_dir, after, ("database", "store"))
        crossing("move.forget")
        if same and not after.store:
            source.delete_store_rows()
        if still is not None:
            still.end(moved=not same)
    _set_aside(state_dir, before, after)
    return Moved(
        models=len(models), updates=len(updates), size_bytes=sum(models + updates), tables=found
    )


def _set_aside(state_dir: Path, before: ServerConfig, after: ServerConfig) -> None:
    """Give what was copied from this disk another name."""
    database = _SQLITE if not before.database and after.database else ()
    spool = (SPOOL,) if not before.store and after.store else ()
    for path in (state_dir / name for name in (*database, *spool)):
        if path.exists():
            aside = path.with_name(path.name + MOVED)
            if aside.is_dir():
                shutil.rmtree(aside)
            path.rename(aside)


def _check_change(before: ServerConfig, after: ServerConfig, ledger: Ledger) -> None:
    unfinished = not after.store and ledger.store_claim() is not None  # killed at `move.forget`
    if before == after and not unfinished:
        raise UsageError(
            "Expected another database or another store than server.toml has, got the same: "
            "nothing is to be moved."
        )
    if before.store and after.store and before.store != after.store:
        raise UsageError(
            "Expected a move between files and an object store, got two object stores: move to "
            'files first (--store ""), then to the other store.'
        )


def _check_target(source: Ledger, target: Ledger) -> None:
    """A target is empty, or has what an earlier attempt copied."""
    if target.has_runs() or target.trail.head().id:
        tables = tables_of(with_store=False)
        last = min(source.trail.head().id, target.trail.head().id)
        if source.digests(tables, last) != target.digests(tables, last):
            raise UsageError(
                "Expected an empty database to move to, got one with other rows: choose another "
                "one, or move its file away."
            )


def _move_models(
    old: StorageContext, new: StorageContext, tell: Callable[[str], None]
) -> Iterator[int]:
    """Store every model in the target; yields their sizes in bytes."""
    digests = old.models.find("")
    for number, digest in enumerate(digests, start=1):
        path = old.models.local(digest)  # in the folder that both use
        new.models.put(digest)
        crossing("move.model")
        _check_model(new, digest)
        tell(f"model {number} of {len(digests)}: {digest[:12]}")
        yield path.stat().st_size


def _check_model(storage: StorageContext, digest: str) -> None:
    """Read a model from where it is now."""
    found = hashlib.sha256()
    for block in storage.models.stored(digest):
        found.update(block)
    if found.hexdigest() != digest:
        raise IntegrityError(
            f"Expected the bytes of the model {digest[:12]}, got those of "
            f"{found.hexdigest()[:12]}: run `fedloom verify` and restore it from a backup."
        )


def _move_rows(
    source: Ledger, target: Ledger, *, with_store: bool, tell: Callable[[str], None]
) -> Digests:
    tables = tables_of(with_store=with_store)
    if not target.trail.head().id:
        tell("copying the ledger")
        source.trail.append("fedloom", "local", "server.move", "", {})
        target.copy_from(source, tables)
        crossing("move.rows")
    tell("comparing both ledgers")
    last = source.trail.head().id
    expected, found = source.digests(tables, last), target.digests(tables, last)
    if expected != found:
        names = ", ".join(name for name in expected if expected[name] != found[name])
        raise IntegrityError(
            f"Expected the same rows in both databases, got others in {names}: the server still "
            "uses the first. Empty the second, and move again."
        )
    return found


@contextmanager
def _ledger(state_dir: Path, config: ServerConfig) -> Iterator[Ledger]:
    ledger = Ledger.in_directory(state_dir, config.database)
    try:
        yield ledger
    finally:
        ledger.close()


@contextmanager
def _storage(
    state_dir: Path, config: ServerConfig, ledger: Ledger, *, is_target: bool = False
) -> Iterator[StorageContext]:
    storage = open_storage(state_dir, config, ledger, moving=True, is_target=is_target)
    try:
        yield storage
    finally:
        storage.close()
