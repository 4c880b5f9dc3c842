"""Loading a device owner's code."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedloom.cli.common.load_code import initial_of_flower, load_client, load_flower
from fedloom.cli.main import main
from fedloom.protocol.errors import UsageError

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


def test_exceptions_of_the_code_are_passed_on(folder):
    """The owner must see where their own code fails."""
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
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
