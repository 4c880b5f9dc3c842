"""Finding the device owner's code."""

import sys

import pytest

from fedloom.cli.loading import load_client
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


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A device's folder with client code, its imports undone afterwards."""
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
    """By file or by module of the current folder; its neighbours can be imported."""
    assert type(load_client(f"{where}:{name}")).__name__ == "Mine"


@pytest.mark.parametrize(
    "code",
    ["code_of_mine.py", "code_of_mine.py:", ":x", "gone.py:x", "no_such_module:x",
     "code_of_mine.nothing:x", "code_of_mine.py:nothing", "code_of_mine.py:number"],
)  # fmt: skip
def test_what_is_no_client_is_refused(folder, code):
    """In words, not with a traceback."""
    with pytest.raises(UsageError, match="Expected"):
        load_client(code)


def test_faults_of_the_code_come_through(folder):
    """The owner needs to see where their own code fails."""
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        load_client("code_of_mine.py:broken")
