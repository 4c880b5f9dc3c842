"""Shards from files and databases: errors name the file, row and column."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedloom.client.data import database, from_csv, from_npy, from_npz, from_parquet, from_sqlite
from fedloom.client.data.tables import numbers
from fedloom.protocol.errors import UsageError

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])
CLASSES = ["home", "ward"]


def test_files_of_numpy_are_mapped(tmp_path):
    """`take` reads only what it returns."""
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    np.savez(tmp_path / "both.npz", x=X, y=Y, f=np.asfortranarray(X))
    np.savez_compressed(tmp_path / "small.npz", x=X, y=Y)
    for shard, mapped in (
        (from_npy(tmp_path / "x.npy", tmp_path / "y.npy"), True),
        (from_npz(tmp_path / "both.npz"), True),
        (from_npz(tmp_path / "both.npz", x="f"), True),
        (from_npz(tmp_path / "small.npz"), False),
    ):
        x, y = shard.take(np.array([4, 1]))
        np.testing.assert_array_equal(x, X[[4, 1]])
        np.testing.assert_array_equal(y, [1, 1])
        assert isinstance(shard._x, np.memmap) is mapped
        x[:] = 0  # the caller's
        np.testing.assert_array_equal(shard.all()[0], X)
    scaled = from_npz(tmp_path / "both.npz", mean=1, scale=0.5)
    np.testing.assert_array_equal(scaled.all()[0], (X - 1) / 2)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda p: from_npz(p / "none.npz"), "none.npz, got: .*No such file"),
        (lambda p: from_npz(p / "bad.npz"), "Expected a .npz file at .*bad.npz"),
        (lambda p: from_npz(p / "cut.npz"), "Expected a .npz file at .*cut.npz"),
        (lambda p: from_npz(p / "good.npz", y="label"), "array 'label' in .*good.npz, got x, y"),
        (lambda p: from_npz(p / "uneven.npz"), "uneven.npz: Expected one target"),
        (lambda p: from_npz(p / "objects.npz"), "Python objects"),
        (lambda p: from_npy(p / "bad.npz", p / "x.npy"), "Expected a .npy file at .*bad.npz"),
        (lambda p: from_npy(p / "good.npz", p / "good.npz"), "Use from_npz"),
        (lambda p: from_npy(p / "cut.npy", p / "x.npy"), "Expected a .npy file at .*cut.npy"),
    ],
)
def test_invalid_files_are_named(tmp_path, make, sentence):
    """Missing, malformed, truncated, without the array, of unequal lengths, or with objects."""
    np.savez(tmp_path / "good.npz", x=X, y=Y)
    np.savez(tmp_path / "uneven.npz", x=X, y=Y[:2])
    np.savez(tmp_path / "objects.npz", x=np.array([{}]), y=Y[:1])
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "good.npz").read_bytes()[:200])
    (tmp_path / "cut.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-8])
    with pytest.raises(UsageError, match=sentence):
        make(tmp_path)


def _folder(tmp_path, **files):
    folder = tmp_path / "visits"
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def test_files_are_read_in_the_order_of_their_names(tmp_path, monkeypatch):
    files = {f"part-{n}": f"a,y\n{n},0\n" for n in range(5)}
    folder, glob = _folder(tmp_path, **files), Path.glob
    monkeypatch.setattr(Path, "glob", lambda *args: sorted(glob(*args), reverse=True))
    assert from_csv(folder, label="y").all()[0].ravel().tolist() == [0, 1, 2, 3, 4]


def test_a_folder_of_csv_files_is_one_shard(tmp_path):
    """In the order of file names; columns by name, classes in the given order."""
    folder = _folder(
        tmp_path, b="outcome,age,pulse\nward,40,90\n", a="age,pulse,outcome\n1,2,home\n"
    )
    shard = from_csv(folder, label="outcome", classes=CLASSES)
    x, y = shard.all()
    assert x.tolist() == [[1, 2], [40, 90]]
    assert y.tolist() == [0, 1]
    assert shard.num_classes == 2
    one = from_csv(folder / "b.csv", label="pulse", features=["age"], dtype=np.float64, scale=0.5)
    assert one.all()[0].tolist() == [[20.0]]
    assert one.all()[0].dtype == np.float64
    assert one.all()[1].tolist() == [90.0]


@pytest.mark.parametrize(
    ("text", "settings", "sentence"),
    [
        ("age,outcome\n1,home\nold,ward\n", {}, "'age' of .*a.csv, got 'old' in line 3"),
        ("age,outcome\n1,home\ninf,ward\n", {}, "'age' of .*a.csv, got 'inf' in line 3"),
        ("age,outcome\n1,home\n2,gone\n", {}, "home, ward in column 'outcome' .*'gone' in line 3"),
        ("age,outcome\n1,home,3\n", {}, "2 cells in line 2 of .*a.csv"),
        ("age,result\n1,home\n", {}, "column 'outcome' in .*a.csv. Known: age, result"),
        ("age,outcome\n1,home\n", {"features": ["aga"]}, "Did you mean 'age'"),
        ("age,outcome\n", {}, "got 0 rows"),
        ("outcome\nhome\n", {}, "0 columns"),
        ("age,outcome\n1,home\n", {"classes": ["home"]}, "two or more different classes"),
    ],
)
def test_errors_in_tables_are_named(tmp_path, text, settings, sentence):
    folder = _folder(tmp_path, a=text)
    with pytest.raises(UsageError, match=sentence):
        from_csv(folder, **{"label": "outcome", "classes": CLASSES, **settings})


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"Expected \*.csv files in"):
        from_csv(_folder(tmp_path), label="y")
    with pytest.raises(UsageError, match=r"none.csv"):
        from_csv(tmp_path / "none.csv", label="y")


def test_parquet_is_read_as_csv(tmp_path):
    """Only the columns that are needed."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(
        pa.table({"a": [1, 2], "b": ["x", "y"], "y": [True, False]}), tmp_path / "1.parquet"
    )
    pq.write_table(pa.table({"y": [True], "a": [None], "b": ["z"]}), tmp_path / "2.parquet")
    settings = {"label": "y", "features": ["a"], "classes": [False, True]}
    x, y = from_parquet(tmp_path / "1.parquet", **settings).all()
    assert (x.tolist(), y.tolist()) == ([[1], [2]], [1, 0])
    with pytest.raises(UsageError, match=r"'a' of .*2.parquet, got None in row 1"):
        from_parquet(tmp_path, **settings)


@pytest.fixture
def readings(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "BATCH_ROWS", 4)
    path = tmp_path / "a ward.db"
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("CREATE TABLE readings (at INTEGER, a REAL, b REAL, state TEXT)")
        rows = [(n, n / 2, -n, "low" if n % 2 else "high") for n in range(10)]
        made.executemany("INSERT INTO readings VALUES (?, ?, ?, ?)", rows)
    return path


def test_rows_of_a_database_are_read_by_a_query(readings):
    """In batches, with parameters, read-only."""
    query = "SELECT a, b, state FROM readings WHERE at >= ? ORDER BY at"
    shard = from_sqlite(readings, query, [3], label="state", classes=["low", "high"])
    x, y = shard.all()
    assert x.tolist() == [[n / 2, -n] for n in range(3, 10)]
    assert y.tolist() == [0, 1, 0, 1, 0, 1, 0]
    with pytest.raises(UsageError, match="readonly"):
        from_sqlite(readings, "DELETE FROM readings RETURNING a, state", label="state")


def test_errors_in_queries_and_cells_are_named(readings):
    """With the database's message, or the row and column."""
    with pytest.raises(UsageError, match="no such column: c"):
        from_sqlite(readings, "SELECT c FROM readings", label="c")
    with closing(sqlite3.connect(readings)) as made, made:
        made.execute("UPDATE readings SET b = NULL WHERE at = 5")
    with pytest.raises(UsageError, match=r"'b' of .*\(rows after 4\), got None in row 2"):
        from_sqlite(readings, "SELECT a, b FROM readings ORDER BY at", label="a")
    with pytest.raises(UsageError, match="got 0 rows"):
        from_sqlite(readings, "SELECT a, b FROM readings WHERE 0", label="a")
    with pytest.raises(UsageError, match="no such file"):
        from_sqlite(readings.with_name("none.db"), "SELECT 1", label="a")
    readings.write_bytes(b"not a database, for all that it is long enough to look like one")
    with pytest.raises(UsageError, match="not a database"):
        from_sqlite(readings, "SELECT a FROM readings", label="a")


def test_queries_without_rows_or_with_duplicate_columns_are_refused(readings):
    """Otherwise the first of two columns of one name would be dropped silently."""
    with pytest.raises(UsageError, match=f"in {readings}, got 0 rows and 1 columns"):
        from_sqlite(readings, "SELECT a, b FROM readings WHERE 0", label="a")
    with pytest.raises(UsageError, match="got a, b, a"):
        from_sqlite(readings, "SELECT a, b, a FROM readings", label="b")


def test_dates_are_refused_as_numbers():
    """Their unit differs between files."""
    with pytest.raises(UsageError, match="dates or times"):
        numbers(np.array(["2026-11-21"], "datetime64[ms]"), "at", "visits.parquet")
