"""A store of examples that arrive over time; the oldest are dropped by number, size or age.

Any process of the device may append while the agent trains. A round trains on the examples that
were stored when its task began. When `append` returns, the example is on disk: SQLite in WAL mode,
synced.

Invariants: an example is stored completely or not at all; equal examples are always in the same
part, trained on or held out; a snapshot does not change.
"""

import json
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.client.data.shard import Arrays, Batch, Indices, Shard
from fedloom.protocol.errors import UnavailableError, UsageError

Form: TypeAlias = tuple[Sequence[int], str]
"""Shape and dtype of one input or one target."""
_BUCKETS = 1 << 32
_WAIT_S = 30.0
"""Longest wait for another process that appends."""
_LOG_PAGES = 256
"""Pages of 4 KiB in SQLite's log before they are moved to the file: 1 MiB."""
_IN_MEMORY_BYTES = 64 << 20
"""A larger snapshot is in a temporary file, which is removed with it."""
_TABLES = """
CREATE TABLE IF NOT EXISTS about (id INTEGER PRIMARY KEY CHECK (id = 1), form TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS examples (
  id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, bucket INTEGER NOT NULL,
  x BLOB NOT NULL, y BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS examples_at ON examples (at);
"""


class ExampleStore:
    """Examples of one form in one file.

        store = ExampleStore("readings.db", x=((64,), "float32"), y=((), "int64"), held_out=0.2)
        store.append(window, label)  # in the process that measures
        client = sklearn_client(SGDClassifier(), store.train, classes=range(3),
                                held_out=store.held_out)  # in the agent's

    Args:
        path: of the file, created if missing; SQLite keeps two more beside it while it is in use.
        x: shape and dtype of an input; must match those of an existing file.
        y: shape and dtype of a target.
        most: most examples to keep; older ones are dropped.
        most_bytes: most bytes of examples to keep.
        most_age_s: seconds for which an example is kept.
        held_out: share to evaluate on and never train on, chosen by a hash of the example.
        clock: seconds since 1970.

    Raises:
        UsageError: a limit is out of range, or the file has another form or is not a store.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        x: Form,
        y: Form,
        most: int | None = None,
        most_bytes: int | None = None,
        most_age_s: float | None = None,
        held_out: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not 0 <= held_out < 1:
            raise UsageError(f"Expected 0 <= held_out < 1, got {held_out}.")
        self._path = Path(path).expanduser().resolve()
        self._forms = {"x": _form("x", x), "y": _form("y", y)}
        one = sum(_size(shape, dtype) for shape, dtype in self._forms.values())
        self._most = _most(most, most_bytes, one)
        if most_age_s is not None and not most_age_s > 0:
            raise UsageError(f"Expected most_age_s > 0, got {most_age_s}.")
        self._most_age_s, self._clock = most_age_s, clock
        self._split = round(held_out * _BUCKETS)
        self._lock = threading.Lock()
        self._connection: tuple[int, sqlite3.Connection] | None = None
        self.train = Growing(self, held_out=False)
        self.held_out = Growing(self, held_out=True)
        with self._writing() as database:
            self._settle_form(database)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the connection, for another process on the same file."""
        return {n: v for n, v in vars(self).items() if n not in ("_lock", "_connection")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock(), _connection=None)

    def append(self, x: Any, y: Any) -> None:
        """Store an example; it is on disk when this returns. Older ones may be dropped.

        Raises:
            UsageError: it does not have the store's form; nothing is stored.
            UnavailableError: the disk is full or failed; nothing is stored.
        """
        self.extend([(x, y)])

    def extend(self, examples: Sequence[tuple[Any, Any]]) -> None:
        """Store examples, all of them or none, with one sync.

        Raises:
            UsageError: one does not have the store's form; the message names it.
            UnavailableError: the disk is full or failed.
        """
        now = self._clock()
        rows = []
        for place, (x, y) in enumerate(examples):
            where = f"example {place + 1} of {len(examples)}" if len(examples) > 1 else "an example"
            raw = [self._bytes(n, value, where) for n, value in (("x", x), ("y", y))]
            rows.append((now, _bucket(*raw), *raw))
        if self._most is not None:
            rows = rows[-self._most :]
        with self._writing() as database:
            database.executemany(
                "INSERT INTO examples (at, bucket, x, y) VALUES (?, ?, ?, ?)", rows
            )
            self._retain(database, now)

    def snapshot(self, *, held_out: bool = False) -> Arrays:
        """The current examples, oldest first; later appends do not change them.

        Args:
            held_out: return the examples to evaluate on, not those to train on.
        """
        with self._reading() as database:
            where, values = self._here(held_out)
            (count,) = database.execute(f"SELECT count(*) {where}", values).fetchone()
            found = {n: _room(count, *form, self._path.parent) for n, form in self._forms.items()}
            rows = database.execute(f"SELECT x, y {where} ORDER BY id", values)
            for place, row in enumerate(rows):
                for (name, (shape, dtype)), raw in zip(self._forms.items(), row, strict=True):
                    found[name][place] = np.frombuffer(raw, dtype).reshape(shape)
        return Arrays(found["x"], found["y"], dtype=None)

    def count(self, *, held_out: bool = False) -> int:
        """The current number of examples, to train on or to evaluate on."""
        with self._reading() as database:
            where, values = self._here(held_out)
            (count,) = database.execute(f"SELECT count(*) {where}", values).fetchone()
            return int(count)

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            if self._connection is not None and self._connection[0] == os.getpid():
                self._connection[1].close()
            self._connection = None

    def _here(self, held_out: bool) -> tuple[str, tuple[float, ...]]:
        """SQL that selects the examples of a part that are not too old."""
        side = "<" if held_out else ">="
        oldest = -1.0 if self._most_age_s is None else self._clock() - self._most_age_s
        return f"FROM examples WHERE bucket {side} ? AND at >= ?", (self._split, oldest)

    def _retain(self, database: sqlite3.Connection, now: float) -> None:
        if self._most is not None:
            database.execute(
                "DELETE FROM examples WHERE id <= (SELECT max(id) FROM examples) - ?", (self._most,)
            )
        if self._most_age_s is not None:
            database.execute("DELETE FROM examples WHERE at < ?", (now - self._most_age_s,))

    def _bytes(self, name: str, value: Any, where: str) -> bytes:
        shape, dtype = self._forms[name]
        array = np.asarray(value)
        if array.shape != shape:
            raise UsageError(
                f"Expected {name} of shape {shape} in {where} for {self._path.name}, got "
                f"{array.shape}."
            )
        if not np.can_cast(array.dtype, dtype, "same_kind") and not _is_exact(array, dtype):
            raise UsageError(
                f"Expected {name} of {dtype} in {where} for {self._path.name}, got {array.dtype}."
            )
        fitted = np.ascontiguousarray(array, dtype)
        if dtype.kind == "f" and not np.isfinite(fitted).all():
            raise UsageError(
                f"Expected finite {name} in {where} for {self._path.name}, got "
                f"{array[~np.isfinite(fitted)].flat[0]}."
            )
        if dtype.kind in "iu" and (fitted != array).any():
            raise UsageError(
                f"Expected {name} within {dtype} in {where} for {self._path.name}, got "
                f"{array[fitted != array].flat[0]}."
            )
        return fitted.tobytes()

    def _settle_form(self, database: sqlite3.Connection) -> None:
        ours = json.dumps(
            {n: [list(shape), dtype.str] for n, (shape, dtype) in self._forms.items()}
        )
        database.execute("INSERT OR IGNORE INTO about (id, form) VALUES (1, ?)", (ours,))
        (theirs,) = database.execute("SELECT form FROM about").fetchone()
        if theirs != ours:
            raise UsageError(
                f"Expected {self._path} to hold examples of {ours}, got {theirs}. Use another "
                "file, or the form that it was created with."
            )

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent state of the file while others append."""
        with self._lock:
            database = self._open()
            database.execute("BEGIN")
            try:
                yield database
            finally:
                database.execute("ROLLBACK")

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            database = self._open()
            try:
                database.execute("BEGIN IMMEDIATE")
                yield database
                database.execute("COMMIT")
            except sqlite3.Error as error:
                raise UnavailableError(
                    f"Cannot write to {self._path}: {error}. Check the disk's free space."
                ) from error
            finally:
                if database.in_transaction:
                    database.execute("ROLLBACK")

    def _open(self) -> sqlite3.Connection:
        """This process's connection; a connection of the parent process must not be used."""
        if self._connection is None or self._connection[0] != os.getpid():
            self._connection = os.getpid(), self._connect()
        return self._connection[1]

    def _connect(self) -> sqlite3.Connection:
        # Created here with mode 0600: only this user may read it.
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        database = sqlite3.connect(
            self._path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
        )
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
            database.executescript(_TABLES)
        except sqlite3.DatabaseError as error:
            database.close()
            raise UsageError(
                f"Expected a store of examples at {self._path}, got: {error}. Use another file."
            ) from error
        return database


class Growing(Shard):
    """One part of a store. Each task uses the examples that are stored when it begins.

    Args:
        store: of the examples.
        held_out: the examples to evaluate on, not those to train on.
    """

    def __init__(self, store: ExampleStore, *, held_out: bool) -> None:
        self._store, self._held_out = store, held_out

    def __len__(self) -> int:
        return self._store.count(held_out=self._held_out)

    def fixed(self) -> Shard:
        """A snapshot of the current examples."""
        return self._store.snapshot(held_out=self._held_out)

    def take(self, indices: Indices) -> Batch:
        """As `Shard.take`, from a new snapshot; to take several times, use `fixed`."""
        return self.fixed().take(indices)


def _form(name: str, form: Form) -> tuple[tuple[int, ...], np.dtype[Any]]:
    shape, dtype = tuple(form[0]), np.dtype(form[1])
    if dtype.kind not in "fiub" or any(length < 0 for length in shape):
        raise UsageError(f"Expected {name} as a shape and a dtype of numbers, got {form!r}.")
    return shape, dtype


def _most(most: int | None, most_bytes: int | None, one: int) -> int | None:
    limits = [] if most is None else [most]
    if most_bytes is not None:
        limits.append(most_bytes // max(1, one))
    if any(limit < 1 for limit in limits):
        raise UsageError(
            f"Expected room for one example of {one} bytes, got most={most}, "
            f"most_bytes={most_bytes}."
        )
    return min(limits, default=None)


def _size(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def _bucket(*raw: bytes) -> int:
    """A hash of the example, uniform from 0 to 2^32 − 1."""
    return int.from_bytes(blake2b(b"".join(raw), digest_size=4).digest(), "little")


def _is_exact(array: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether integers and booleans keep their values, such as a label 3 in uint8."""
    whole = array.dtype.kind in "iub" and dtype.kind in "iub"
    return whole and bool((array.astype(dtype) == array).all())


def _room(count: int, shape: tuple[int, ...], dtype: np.dtype[Any], folder: Path) -> NDArray[Any]:
    if count * _size(shape, dtype) <= _IN_MEMORY_BYTES:
        return np.empty((count, *shape), dtype)
    with tempfile.TemporaryFile(dir=folder) as file:  # its pages outlive its name
        return np.memmap(file, dtype, "w+", shape=(count, *shape))
