"""`fedloom new`: what it decides about a table, what it writes, and what it refuses."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.cli.project import kinds
from fedloom.client.data import from_table
from fedloom.client.data.columns import NumberColumn, TextColumn, load_columns
from support.marks import sampled

ROWS = [
    f'{n},{20 + n % 61},{"fm"[n % 2]},"said ""no"", {n * 7919}",{("home", "ward")[n % 61 > 30]}'
    for n in range(120)
]
TABLE = "\n".join(["id,age,sex,note,outcome", *ROWS]) + "\n"


@pytest.fixture
def new(tmp_path, monkeypatch):
    """`fedloom new` in an empty folder with a table; returns click's result."""
    monkeypatch.chdir(tmp_path)

    def run(*words, table=TABLE, code=0):
        Path("visits.csv").write_text(table, "utf-8")
        result = CliRunner().invoke(main, ["new", *words])
        assert result.exit_code == code, result.output
        return result

    return run


def files(folder):
    """The files of a folder, without folders."""
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}


def test_it_says_what_it_decided(new):
    """The label by its name, numbers, texts, and what is left out, and why."""
    printed = new("wards", "--numpy", "--csv", "visits.csv").output
    assert "predicts  outcome (by its name): 2 classes, home (" in printed
    assert "numbers   age\n" in printed
    assert "texts     sex: f, m\n" in printed
    assert "left out  id (a running number)\n" in printed
    assert "left out  note (120 different texts in 120 rows, such as " in printed
    assert "clients   site-1 40, site-2 40, site-3 40 rows (dealt)\n" in printed
    assert printed.endswith("Next:\n  fedloom up wards\n")
    columns = load_columns("wards/columns.toml")
    assert columns.target == TextColumn(values=("home", "ward"))
    assert list(columns.inputs) == ["age", "sex"]


def test_the_clients_have_each_row_once(new):
    """With all its cells, also of columns that are no inputs."""
    new("wards", "--numpy", "--csv", "visits.csv", "--clients", "4")
    found = []
    for path in sorted(Path("wards/data").iterdir()):
        with path.open(newline="") as opened:
            found += list(csv.reader(opened))[1:]
    assert len(found) == 120
    assert sorted(found) == sorted(csv.reader(ROWS))
    assert len(files("wards")) == 7 + 4


def test_sites_are_clients_by_a_column(new):
    """Named as clients can be; the column is no input, since a device knows its own value only."""
    rows = (f"{n % 2};{n * n};{('St. Mary', 'Köln')[n % 3 == 0]}" for n in range(60))
    table = "\n".join(["y;x;hospital", *rows])
    printed = new("wards", "--numpy", "--csv", "visits.csv", "--by", "hospital", table=table).output
    assert "cells between semicolons" in printed
    assert "clients   k-ln 20, st-mary 40 rows (by hospital)" in printed
    assert files("wards/data") == {"k-ln.csv", "st-mary.csv"}
    columns = load_columns("wards/columns.toml")
    assert columns.separator == ";"
    assert list(columns.inputs) == ["x"]
    x, _ = from_table("wards/data", "wards/columns.toml").all()
    assert abs(x.mean()) < 1e-3
    assert abs(x.std() - 1) < 1e-3


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        (["0", "1"], (), ("0", "1")),
        (["2", "10", "1"], (), ("1", "2", "10")),
        (["1.5", "2.25", "7"], (), "number"),
        ([str(n) for n in range(40)], (), "number"),
        ([str(n) for n in range(30)], ("--predict", "class"), tuple(map(str, range(30)))),
        (["0", "1"], ("--predict", "number"), "number"),
        (["yes", "no", "none"], (), ("no", "none", "yes")),
    ],
)
def test_a_label_is_classes_or_a_number(new, values, options, expected):
    """By its values; --predict decides otherwise. Classes of numbers are in their order."""
    rows = [f"{n % 17},{values[n % len(values)]}" for n in range(120)]
    new("f", "--numpy", "--csv", "visits.csv", *options, table="\n".join(["x,y", *rows]))
    target = load_columns("f/columns.toml").target
    if expected == "number":
        assert isinstance(target, NumberColumn)
    else:
        assert target == TextColumn(values=expected)
    assert ("measure" in Path("f/my_client.py").read_text()) is (expected != "number")


def test_rows_without_a_label_and_missing_numbers_are_told(new):
    """The first are left out, for the second the mean stands."""
    rows = [f"{'' if n % 10 == 3 else n * n},{'NA' if n % 20 == 0 else n % 2}" for n in range(100)]
    printed = new("f", "--numpy", "--csv", "visits.csv", table="\n".join(["x,y", *rows])).output
    assert "left out  5 rows without y: line 2, 22, 42, 62, 82\n" in printed
    assert "missing   x in 10 rows: its mean stands for it\n" in printed


@pytest.mark.parametrize(
    ("table", "options", "told"),
    [
        (TABLE, ("--label", "outcom"), "a column 'outcom' in visits.csv. Did you mean 'outcome'?"),
        (TABLE, ("--by", "age"), "2 to 16 sites in column 'age', a process each, got 61"),
        (TABLE, ("--by", "outcome"), "another label than the column of sites, got 'outcome'"),
        (TABLE, ("--label", "note"), "2 to 100 classes in column 'note'"),
        (TABLE, ("--label", "sex", "--predict", "number"),
         "visits.csv, line 2, column 'sex': expected a number, got 'f'"),
        (TABLE.replace("\n7,27", "\n7,old"), (),
         "visits.csv, line 9, column 'age': expected a number, as in 119 of 120 rows, got 'old'"),
        (TABLE.replace("\n7,27", "\n7,inf"), (), "line 9, column 'age': expected a number"),
        (TABLE.replace("\n7,27,", "\n7,"), (), "visits.csv, line 9: expected 5 cells"),
        (TABLE.replace("id,age", "age,age"), (), "line 1: expected different names of columns"),
        (TABLE.replace("id,age", ",age"), (), "line 1: expected a name for column 1"),
        (TABLE.replace(', 55433"', ", 55433"), (), "line 9: expected a row of a CSV file"),
        ("only\n1\n2\n", (), "two or more columns in visits.csv"),
        ("", (), "two or more columns"),
        ("x,y\n", (), "rows below the first line of visits.csv, got none"),
        ("x,y\n1,a\n", (), "two or more rows with a 'y'"),
        ("5.1,cat\n" + "1.5,cat\n2.5,dog\n" * 20, (), "expected names of columns, got .* 'cat'"),
        ("5.1,3.5\n" + "1.5,4.5\n2.5,5.5\n" * 20, (), "expected names of columns, got .* '3.5'"),
        ("x;y\n" + "0,5;1\n2,25;0\n" * 20, (), "line 2, column 'x': .* decimal point .* got '0,5'"),
        ("x;y\n" + "1;1.000,25\n2;3,5\n" * 20, (), "decimal point and without .* got '1.000,25'"),
        ("x,y\n" + '"1,813",1\n2,0\n' * 20, (), "column 'x': .* got '1,813'"),
        ("x,y\n" + "1e200,1\n2e200,0\n" * 20, (), "numbers up to 1e.38 in column 'x'"),
        ("x,y\n" + "1,a\n2,b\n" * 3, (), "5 or more rows for each of 3 clients, got 6"),
        ("x,y\n" + "1,a\n" * 20, (), "2 to 100 classes in column 'y'"),
        ("x,y\n" + "1,a\n1,b\n" * 20, (), "got none that varies: x (always 1)"),
        ("x,y,s\n" + "1,a,p\n2,b,q\n" * 9 + "3,a,r\n", ("--label", "y", "--by", "s"),
         "5 or more rows of each site, got 1 of 'r' in column 's' (line 20)"),
        ("x,y,s\n" + "1,a,p q\n2,b,p-q\n" * 9, ("--label", "y", "--by", "s"),
         "sites in column 's' with different names"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_used_are_refused(new, table, options, told):
    """The message names line and column; nothing is written."""
    result = new("f", "--numpy", "--csv", "visits.csv", *options, table=table, code=2)
    assert told in result.stderr or re.search(told, result.stderr)
    assert result.stderr.count("\n") == 1
    assert files(".") == {"visits.csv"}


def test_columns_may_be_numbered_and_pairs_of_numbers_are_texts(new):
    """As pandas numbers them; a cell such as 48.1,11.5 is no number with a decimal comma."""
    rows = [f'{n * n % 31},"48.{n % 2},11.5",{n % 4}' for n in range(60)]
    new("f", "--numpy", "--csv", "visits.csv", table="\n".join(["0,1,2", *rows]))
    columns = load_columns("f/columns.toml")
    assert (columns.label, list(columns.inputs)) == ("2", ["0", "1"])
    assert isinstance(columns.inputs["1"], TextColumn)


def test_many_and_long_texts_stay_on_a_line(new):
    """A few of them, without line breaks, and how many there are."""
    rows = [f'{n * n % 31},"place {n % 9},\nfar away in the north",{n % 2}' for n in range(90)]
    printed = new("f", "--numpy", "--csv", "visits.csv", table="\n".join(["x,place,y", *rows]))
    (line,) = (row for row in printed.output.splitlines() if row.startswith("  texts"))
    assert line.startswith("  texts     place: place 0, far away in, place 1, far away in, ")
    assert line.endswith(", … (9)")


def test_the_next_command_can_be_pasted(new):
    """In a folder with a space in its name."""
    Path("my work").mkdir()
    assert new("my work/f", "--numpy").output.endswith("Next:\n  fedloom up 'my work/f'\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["a b"], "a name of at most 40 letters, digits, - and _, got 'a b'"),
        (["-x"], "No such option"),
        ([".."], "a name of at most 40"),
        (["n" * 41], "a name of at most 40"),
        (["visits.csv"], "a name of at most 40"),
        (["there"], "Expected a new folder, but"),
        (["no/where"], "in a folder that exists, got"),
        (["f", "--label", "y"], "--label belongs to --csv FILE"),
        (["f", "--clients", "2"], "--clients belongs to --csv FILE"),
        (["f", "--csv", "none.csv"], "Expected a CSV file at none.csv, got: No such file"),
        (["f", "--csv", "visits.csv", "--by", "sex", "--clients", "2"], "--by or --clients"),
        (["f", "--csv", "visits.csv", "--hf"], "--hf learns from text"),
        (["f", "--csv", "visits.csv", "--clients", "17"], "17 is not in the range"),
    ],
)
def test_names_and_options_that_do_not_fit_are_refused(new, words, told):
    """With exit code 2; an existing folder stays as it was."""
    Path("there").mkdir()
    Path("there/mine.txt").write_text("mine")
    assert told in new(*words, code=2).stderr
    assert files(".") == {"visits.csv", "there/mine.txt"}


def test_a_missing_library_is_named_and_its_extra(new, monkeypatch):
    """Before anything is written; the default is what is installed."""
    monkeypatch.setattr(kinds, "installed", lambda kind: not kind.module)
    result = new("f", "--torch", code=2)
    assert "got no module torch: pip install 'fedloom[torch]', or use --numpy" in result.stderr
    assert files(".") == {"visits.csv"}
    assert json.loads(new("f", "--json").output)["kind"] == "numpy"


def test_the_base_installation_is_enough(tmp_path):
    """Without torch, scikit-learn, transformers and the libraries of the server."""
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'torch', 'sklearn', 'rich', 'sqlalchemy', 'fastapi'}:\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from fedloom.cli.main import main\n"
        "main(['new', 'f', '--numpy'])\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert (tmp_path / "f" / "my_client.py").exists()


@pytest.mark.parametrize("kind", ["numpy", "sklearn", "torch", "hf"])
@pytest.mark.parametrize("target", ["classes", "numbers"])
def test_what_is_written_is_formatted_and_documented(new, monkeypatch, kind, target):
    """As this project's own code is, apart from types; no placeholder is left."""
    monkeypatch.setattr(kinds, "installed", lambda kind: True)
    options = ["--csv", "visits.csv", "--label", "outcome" if target == "classes" else "age"]
    new("f", f"--{kind}", *(options if kind != "hf" else ()))
    rules = "E,F,I,B,UP,SIM,RUF,PL,PTH,W,C4,D100"
    ruff = [f"{Path(sys.executable).parent}/ruff"]
    subprocess.run([*ruff, "check", "--select", rules, "--line-length", "100", "f"], check=True)
    subprocess.run([*ruff, "format", "--check", "--line-length", "100", "f"], check=True)
    for path in files("f"):
        text = Path("f", path).read_text()
        assert "@SITE@" not in text
        assert not any(f"@{word}@" in text for word in ("NAME", "GOAL", "RATE", "DEVICE"))


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("label", "kind"),
    sampled([(y, k) for k in ("numpy", "sklearn", "torch") for y in ("outcome", "age")], 2),
)
def test_the_folders_own_tests_and_client_test_pass(new, kind, label):
    """By `make test` and `fedloom client test`, as a user types them; classes and numbers."""
    pytest.importorskip({"torch": "torch", "sklearn": "sklearn"}.get(kind, "numpy"))
    new("f", f"--{kind}", "--csv", "visits.csv", "--label", label)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PATH": programs}
    words = (["make", "test"], [sys.executable, "-m", "fedloom.cli.main", "client", "test",
             "my_client.py:client"])  # fmt: skip
    for command in words:
        done = subprocess.run(
            command, cwd="f", env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
