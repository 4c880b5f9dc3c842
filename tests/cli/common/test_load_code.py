"""Loading a device owner's code."""

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedloom.cli.common.load_code import find, initial_of_flower, load_client, load_flower
from fedloom.cli.main import main
from fedloom.protocol.errors import UnavailableError, UsageError

CODE = """
from fedloom.client import Client
import neighbour_of_the_client

class Mine(Client):
    def train(self, params, task):
        return params, 1, {}

    def evaluate(self, params, task):
        return 1, {}

client = Mine()
number = 3

def make():
    return Mine()

def broken():
    import nothing_of_that_name
"""

CONFIG = Path("client.toml")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with client code; its imports are undone afterwards."""
    (tmp_path / "code_of_mine.py").write_text(CODE)
    (tmp_path / "neighbour_of_the_client.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield tmp_path
    for name in ("code_of_mine", "neighbour_of_the_client"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["client", "Mine", "make"])
@pytest.mark.parametrize("where", ["code_of_mine.py", "code_of_mine"])
def test_client_is_an_object_a_class_or_a_function(folder, where, name):
    """A client is loaded by file or by module, and the code can import files beside it."""
    assert type(load_client(f"{where}:{name}")).__name__ == "Mine"


@pytest.mark.parametrize(
    "code",
    ["code_of_mine.py", "code_of_mine.py:", ":x", "gone.py:x", "no_such_module:x",
     "code_of_mine.nothing:x", "code_of_mine.py:nothing", "code_of_mine.py:number"],
)  # fmt: skip
def test_other_code_is_refused(folder, code):
    """The error is a sentence, not a traceback."""
    with pytest.raises(UsageError, match=r"Expected|There is no|has no|is a int"):
        load_client(code)


FAULTS = {
    "import sklearnish": "line 1, `import sklearnish`: .*: pip install sklearnish",
    "from fedloom.client import Clinet": "cannot import name 'Clinet'.* Correct the name",
    "import json.nothing": "No module named 'json.nothing'.* Correct the name",
    "\n\ndef train(self)\n    pass": r"line 3, `def train\(self\)`: SyntaxError: expected ':'",
    "rows = [1]\nrows[3]": r"line 2, `rows\[3\]`: IndexError: list index out of range. Correct",
    "open('/data/of/this/ward.csv')": "`open.*`: FileNotFoundError: .*ward.csv'. Check the path",
    "import sys\nsys.exit('usage: x')": "SystemExit: usage: x. Put what runs as a script under",
    "import faulty\nfaulty.thing": "faulty.py hides the package of the same name: rename the file",
}


@pytest.mark.parametrize("text", FAULTS)
def test_an_error_of_the_code_names_its_line_and_a_remedy(tmp_path, monkeypatch, text):
    """Its class says that a restart changes nothing."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faulty.py").write_text(text)
    with pytest.raises(UsageError, match=FAULTS[text]) as caught:
        load_client("faulty.py:client")
    assert str(caught.value).startswith("faulty.py, line ")
    assert caught.value.__cause__ is not None
    sys.modules.pop("faulty", None)


def test_an_extra_of_this_distribution_is_named(tmp_path, monkeypatch):
    """For a package that one of them brings."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.svm", None)  # another test may have imported it
    (tmp_path / "of_sklearn.py").write_text("from sklearn.svm import SVC")
    with pytest.raises(UsageError, match=r"`from sklearn.*pip install 'fedloom\[sklearn\]'\.$"):
        load_client(f"{tmp_path}/of_sklearn.py:client")


def test_a_network_that_does_not_answer_is_worth_another_try(tmp_path, monkeypatch):
    """At boot it may come later; its exit code lets systemd try again."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "of_net.py").write_text("raise ConnectionRefusedError('no store')")
    with pytest.raises(UnavailableError, match=r"line 1, .*no store"):
        load_client(f"{tmp_path}/of_net.py:client")


def test_an_edit_within_a_second_counts(tmp_path, monkeypatch):
    """Also one that keeps the length: Python's compiled copy would then be taken for current."""
    file = tmp_path / "edited.py"
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    found = []
    for text in ("share = 1\n", "share = 2\n"):
        file.write_text(text)
        os.utime(file, (1e9, 1e9))
        found.append(find(f"{file}:share"))
    assert found == [1, 2]


def test_the_name_that_is_meant_is_suggested(folder):
    """Of what the file defines itself."""
    with pytest.raises(UsageError, match=r"has no 'clinet'\. Did you mean 'client'"):
        load_client("code_of_mine.py:clinet")
    with pytest.raises(UsageError, match="It defines Mine, client, number, make, broken"):
        load_client("code_of_mine.py:zzz")
    with pytest.raises(UsageError, match=r"Did you mean code_of_mine\.py"):
        load_client("code_mine.py:client")
    with pytest.raises(UsageError, match=r"code_of_mine.py, line 19, `import nothing_of_that"):
        load_client("code_of_mine.py:broken")


@pytest.mark.parametrize("load", [initial_of_flower, lambda code: load_flower(code, CONFIG)])
def test_flower_apps_name_the_missing_extra(folder, monkeypatch, load):
    """The error comes before the app is imported, which imports flwr too."""
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.setenv("FEDLOOM_SERVER", "localhost:7443")
    monkeypatch.setenv("FEDLOOM_STATE_DIR", str(folder))
    with pytest.raises(UsageError, match=r"pip install 'fedloom\[flower\]'"):
        load("code_of_mine:broken")


def test_a_client_or_a_flower_app_is_required():
    """Neither or both is an error, before any code is loaded."""
    for words in ([], ["a.py:client", "--flower", "b:app"]):
        result = CliRunner().invoke(main, ["client", "run", *words])
        assert result.exit_code == 2
        assert "either FILE.py:NAME|MODULE:NAME or --flower" in result.output
