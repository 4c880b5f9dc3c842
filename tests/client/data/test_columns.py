"""Tables by the description of their columns: against Python's csv module, and with every fault."""

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.client.data import from_table
from fedloom.client.data.columns import (
    NumberColumn,
    TableColumns,
    TextColumn,
    load_columns,
    read_rows,
)
from fedloom.protocol.errors import UsageError

COLUMNS = TableColumns(
    label="outcome",
    target=TextColumn(values=("home", "ward")),
    inputs={"age": NumberColumn(mean=50.0, scale=0.1), "sex": TextColumn(values=("f", "m"))},
)


def write(folder, text, name="rows.csv"):
    path = folder / name
    path.write_bytes(text.encode())
    return path


def test_cells_become_inputs_by_their_columns(tmp_path):
    """Numbers are scaled; a missing one is 0; texts are one of their values, or none of them."""
    path = write(
        tmp_path,
        "sex,note,age,outcome\r\n"
        'f,"a ""quoted"", note\nof two lines",60,home\r\n'
        "m,x,NA,ward\r\n"
        "\r\n"
        "other,,40,home\r\n",
    )
    shard = from_table(path, COLUMNS)
    x, y = shard.all()
    assert x.tolist() == [[1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, 0.0, 0.0]]
    assert y.tolist() == [0, 1, 0]
    assert (x.dtype, y.dtype, shard.num_classes) == (np.float32, np.int64, 2)


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
    """A number as the label is scaled, too."""
    write(tmp_path, "a,y\n1,10\n", "2.csv")
    write(tmp_path, "a,y\n2,20\n", "1.csv")
    columns = TableColumns(
        label="y", target=NumberColumn(mean=10.0, scale=0.5), inputs={"a": NumberColumn()}
    )
    x, y = from_table(tmp_path, columns).all()
    assert (x.tolist(), y.tolist()) == ([[2.0], [1.0]], [5.0, 0.0])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("age,sex,outcome\n1,f,home\n2,f\n", "line 3: expected 3 cells"),
        ('age,sex,outcome\n"1\n2",f,home\n3,f,home,x\n', "line 4: expected 3 cells"),
        ("age,sex,outcome\n1,f,home\nold,m,ward\n", "line 3, column 'age': expected a number"),
        ("age,sex,outcome\n\n\ninf,m,ward\n", "line 4, column 'age': expected a number"),
        ("age,sex,outcome\n1_0,m,ward\n", "line 2, column 'age': expected a number"),
        ("age,sex,outcome\n1,f,Home\n", "line 2, column 'outcome': expected a class of home, ward"),
        ("age,sex,outcome\n1,f,\n", "line 2, column 'outcome': expected a class"),
        ("age,sex,outcom\n1,f,home\n", "line 1: expected a column 'outcome'.*'outcom'"),
        ("age,sex,sex,outcome\n", "line 1: expected different names.*'sex' as column 2 and"),
        ("age,,outcome\n", "line 1: expected a name for column 2"),
        ('age,sex,outcome\n1,f,home\n2,"f,home\n', "line 3: expected a row.*quotation"),
        ('age,sex,outcome\n1,"f"f,home\n', "line 2: expected a row"),
        ("age,sex,outcome\n", "CSV file with rows"),
        ("", "names of columns"),
    ],
)  # fmt: skip
def test_faults_name_line_and_column(tmp_path, text, told):
    """Lines are those of an editor: also after cells of two lines and empty lines."""
    with pytest.raises(UsageError, match=f"(?s){told}"):
        from_table(write(tmp_path, text), COLUMNS)


def test_files_that_are_no_tables_are_refused(tmp_path):
    """Missing, in another encoding, or a folder without tables."""
    with pytest.raises(UsageError, match="No such file"):
        from_table(tmp_path / "none.csv", COLUMNS)
    (tmp_path / "latin.csv").write_bytes("age,sex,outcome\nä".encode("latin-1"))
    with pytest.raises(UsageError, match="UTF-8, got the byte 0xe4"):
        from_table(tmp_path / "latin.csv", COLUMNS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="CSV file with rows"):
        from_table(tmp_path / "empty", COLUMNS)


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8).map(
    str.strip
)


@given(
    st.lists(NAMES.filter(bool), min_size=2, max_size=5, unique=True),
    st.sampled_from(";,\t|"),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_a_description_is_read_as_it_was_written(tmp_path_factory, names, separator, number):
    """Any names, values and numbers."""
    columns = TableColumns(
        label=names[0],
        target=TextColumn(values=tuple(names)),
        inputs={name: NumberColumn(mean=number, scale=2.0) for name in names[1:]},
        separator=separator,
    )
    path = tmp_path_factory.mktemp("columns") / "columns.toml"
    path.write_text(columns.dumps(), encoding="utf-8")
    assert load_columns(path) == columns


@given(st.lists(st.lists(st.text('ab,"\n; ', max_size=5), min_size=2, max_size=2), max_size=6))
def test_rows_are_those_of_pythons_csv_module(tmp_path_factory, rows):
    """Cells without the blanks around them."""
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([["a", "b"], *rows])
    found = read_rows(path).rows
    assert [list(row.cells) for row in found] == [[c.strip() for c in row] for row in rows]
    lines = path.read_bytes().decode().split("\n")
    for row, cells in zip(found, rows, strict=True):
        begin = cells[0].split("\n")[0].replace('"', '""')
        assert begin in lines[row.line - 1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('label = "y"\n', r"a label and a table \[inputs\]"),
        ('label = "y"\n[inputs]\na = 3\n', "mean and scale, or values, of 'a', got 3"),
        ('label = "y"\n[inputs]\na = { mean = "x" }\n', "mean"),
        ('label = "y"\n[inputs]\na = { men = 1.0 }\n', "men"),
        ('label = "y"\n[inputs]\na = { values = ["b", "b"] }\n', "different values of 'a'"),
        ('label = "y"\n[inputs]\na = { mean = inf }\n', "finite mean and scale of 'a'"),
        ('label = "y"\nclasses = ["a"]\nmean = 1.0\n[inputs]\na = {}\n', "mean"),
        ('label = "y"\nseparator = ", "\n[inputs]\na = {}\n', "one character"),
        ("label = \n", "TOML"),
    ],
)
def test_descriptions_with_faults_are_refused(tmp_path, text, told):
    """The message names the file."""
    path = write(tmp_path, text, "columns.toml")
    with pytest.raises(UsageError, match=rf"columns\.toml: .*{told}"):
        load_columns(path)
