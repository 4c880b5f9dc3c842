"""Parquet files larger than memory: the results of the same file in memory; needs pyarrow."""

import subprocess
import sys

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation import sources
from fedloom.simulation.data.mapped import MappedRows

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of converted rows."""
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache" / "converted"


def _file(path, columns, rows=7):
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, path, row_group_size=rows)
    return str(path)


def _columns(count=50, kind="text"):
    rng = np.random.default_rng(0)
    classes = np.array(["no", "yes", "perhaps"])[rng.integers(0, 3, count)]
    return {
        "age": rng.integers(18, 90, count),
        "dose": rng.random(count),
        "site": [f"s{row % 4}" for row in range(count)],
        "ill": classes if kind == "text" else rng.integers(3, 6, count),
    }


def _load(file, **settings):
    given = {"target": "ill", "client": "site", "test": 0.2, "seed": 1, **settings}
    return sources.load(source="parquet", file=file, **given)


@pytest.mark.parametrize("settings", [{}, {"features": ["dose"]}, {"task": "values"}])
@pytest.mark.parametrize("kind", ["text", "numbers"])
def test_mapped_rows_are_those_in_memory(tmp_path, cache, kind, settings):
    """Also the classes, the owners and the test examples; converted once."""
    file = _file(tmp_path / "a.parquet", _columns(kind=kind))
    if kind == "text" and "task" in settings:
        pytest.skip("texts are no values")
    expected = _load(file, **settings)
    for _ in range(2):
        got = _load(file, mapped=True, **settings)
        assert isinstance(got.examples.x, MappedRows)
        for mine, theirs in ((got.examples, expected.examples), (got.test, expected.test)):
            np.testing.assert_array_equal(mine.x[:], theirs.x)
            np.testing.assert_array_equal(mine.y, theirs.y)
        assert list(got.names) == list(expected.names)
        assert (got.class_names, got.columns) == (expected.class_names, expected.columns)
        assert got.num_classes == expected.num_classes
        assert all((a == b).all() for a, b in zip(got.shards, expected.shards, strict=True))
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dose": [0.5] * 30 + [None] + [1.0] * 19}, "finite numbers in column 'dose'.*row 31"),
        ({"ill": ["a"] * 40 + [None] + ["b"] * 9}, "each row of column 'ill'.*None in row 41"),
        ({"ill": [1] * 40 + [None] + [0] * 9}, "each row of column 'ill'.*in row 41"),
        ({"site": ["a"] * 49 + [None]}, "each row of column 'site'.*None in row 50"),
        ({"dose": ["x"] * 50}, "numbers in column 'dose'.*'x' in row 1"),
    ],
)
def test_a_bad_cell_is_refused_with_its_row(tmp_path, cache, change, message):
    """Of the file, not of the piece that was read; nothing is left."""
    file = _file(tmp_path / "a.parquet", _columns() | change)
    with pytest.raises(UsageError, match=message):
        _load(file, mapped=True)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("mapped", [False, True])
def test_a_missing_class_is_no_class(tmp_path, mapped):
    file = _file(tmp_path / "a.parquet", _columns() | {"ill": [1] * 40 + [None] + [0] * 9})
    with pytest.raises(UsageError, match="in row 41"):
        _load(file, mapped=mapped)


def test_other_files_and_columns_are_refused(tmp_path):
    (tmp_path / "no").write_bytes(b"no parquet")
    for file in ("no", "missing"):
        with pytest.raises(UsageError, match="Expected a Parquet file"):
            _load(str(tmp_path / file), mapped=True)
    file = _file(tmp_path / "a.parquet", _columns())
    with pytest.raises(UsageError, match=r"a column 'age2'.*Did you mean 'age'"):
        _load(file, mapped=True, features=["age2"])
    with pytest.raises(UsageError, match="Expected examples in the files"):
        _load(_file(tmp_path / "b.parquet", _columns(0, "numbers")), mapped=True)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_folder_of_files_is_one_table(tmp_path, mapped):
    """As written in one file: in the order of the names, columns by name, hidden files left out."""
    columns = _columns()
    whole = _load(_file(tmp_path / "whole.parquet", columns), mapped=mapped)
    folder = tmp_path / "parts"
    folder.mkdir()
    for part, (start, stop) in enumerate(((0, 9), (9, 9), (9, 50))):
        names = sorted(columns, reverse=part == 2)
        some = {name: columns[name][start:stop] for name in names}
        _file(folder / f"part-{part}.parquet", pa.table(some, schema=_schema(names)))
    for hidden in ("._part-0.parquet", ".DS_Store", "_SUCCESS"):
        (folder / hidden).write_bytes(b"\x00")
    made = _load(str(folder), features=["age", "dose"], mapped=mapped)
    np.testing.assert_array_equal(made.examples.x[:], whole.examples.x[:])
    np.testing.assert_array_equal(made.examples.y, whole.examples.y)
    assert (made.names, made.class_names) == (whole.names, whole.class_names)


def _schema(names):
    kinds = {"age": pa.int64(), "dose": pa.float64(), "site": pa.string(), "ill": pa.string()}
    return pa.schema([(name, kinds[name]) for name in names])


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ill": [1] * 50}, "targets.* of one kind in all files"),
        ({"site": [1] * 50}, "owners.* of one kind in all files"),
        ({"dose": [0.5] * 30 + [None] + [1.0] * 19}, r"'dose' of .*2\.parquet, .*row 31"),
        ({"dose": None}, r"a column 'dose' in .*2\.parquet"),
    ],
)
def test_a_file_of_a_folder_that_differs_is_refused(tmp_path, mapped, change, message):
    """With its name and its own rows."""
    columns = _columns()
    _file(tmp_path / "1.parquet", columns)
    other = {name: cells for name, cells in (columns | change).items() if cells is not None}
    _file(tmp_path / "2.parquet", other)
    with pytest.raises(UsageError, match=message):
        _load(str(tmp_path), mapped=mapped)


@pytest.mark.parametrize("mapped", [False, True])
def test_dictionaries_are_their_values(tmp_path, mapped):
    """Whatever their order and chunks; a missing cell was the first category."""
    columns = _columns()
    plain = _load(_file(tmp_path / "plain.parquet", columns), mapped=mapped)
    coded = columns | {
        "age": pa.array(columns["age"]).dictionary_encode(),
        "ill": pa.DictionaryArray.from_arrays(
            [["yes", "perhaps", "no"].index(each) for each in columns["ill"]],
            ["yes", "perhaps", "no"],
        ),
        "site": pa.array(columns["site"]).dictionary_encode(),
    }
    made = _load(_file(tmp_path / "coded.parquet", coded), mapped=mapped)
    np.testing.assert_array_equal(made.examples.x[:], plain.examples.x[:])
    np.testing.assert_array_equal(made.examples.y, plain.examples.y)
    assert (made.names, made.class_names) == (plain.names, plain.class_names)
    for name in ("age", "ill", "site"):
        cells = [*columns[name][:40], None, *columns[name][41:]]
        some = pa.array(cells, from_pandas=True).dictionary_encode()
        file = _file(tmp_path / f"{name}.parquet", coded | {name: some})
        with pytest.raises(UsageError, match=f"column '{name}'.* in row 41"):
            _load(file, mapped=mapped)


def test_columns_of_one_name_are_refused(tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([0])], ["a", "a", "y"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UsageError, match="different names of columns"):
        _load(str(tmp_path / "a.parquet"), target="y", client=None)


PEAK = """
import resource, sys
from fedloom.simulation import sources
made = sources.load(
    source="parquet", file=sys.argv[1], target="y", seed=1, clients=4, test=0, mapped=True
)
made.examples.x[:10]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.long
def test_a_file_of_240_mb_does_not_become_resident(tmp_path):
    """Peak memory grows by its targets and some rows, not by its inputs."""
    rng = np.random.default_rng(0)
    peaks = []
    for groups in (5, 60):
        file = tmp_path / f"{groups}.parquet"
        schema = pa.schema([(f"x{n}", pa.float32()) for n in range(100)] + [("y", pa.int8())])
        with pq.ParquetWriter(file, schema, compression="none", use_dictionary=False) as writer:
            for _ in range(groups):
                x = rng.random((10_000, 100), np.float32)
                columns = [*map(pa.array, x.T), pa.array(np.arange(10_000, dtype=np.int8) % 3)]
                writer.write_table(pa.table(columns, schema=schema))
        ran = subprocess.run(
            [sys.executable, "-c", PEAK, str(file)], capture_output=True, text=True, check=True
        )
        peaks.append(int(ran.stdout) << 10)
    assert file.stat().st_size > 239e6
    print([peak >> 20 for peak in peaks])
    assert peaks[1] - peaks[0] < 80e6
