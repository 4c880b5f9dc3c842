"""docs/writing-clients.md: every client passes its check and prints the shown output."""

import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedloom.cli.common.load_code import load_client
from fedloom.cli.main import main
from fedloom.client.testing import check, rounds
from fedloom.client.testing import checks as the_checks
from fedloom.client.torch import TorchClient
from fedloom.protocol.errors import UsageError

PAGE = (Path(__file__).parents[2] / "docs" / "writing-clients.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CLIENTS = [block for block in BLOCKS if "client = " in block]
BROKEN = """
import numpy as np
from fedloom.client import Client

class Broken(Client):
    def train(self, params, task):
        return {"weight": params["weight"][:1] + 1}, 5, {"loss": "low"}

    def initial(self):
        return {"weight": np.zeros(2)}

client = Broken
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """The client that a block defines, loaded from a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(the_checks, "STOP_AFTER_S", 0.05)

    def do(number):
        path = tmp_path / f"client_of_the_page_{number}.py"
        path.write_text(CLIENTS[number])
        monkeypatch.setitem(sys.modules, path.stem, None)
        return load_client(f"{path}:client")

    return do


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(CLIENTS)))
def test_every_client_of_the_page_passes_the_check(load, number):
    """In order and unchanged; two of them have nothing to evaluate on."""
    client = load(number)
    found = {finding.check for finding in check(client)}
    assert found == (set() if client.can_evaluate() else {"evaluate"})
    assert len(rounds(client, num_rounds=2).rounds) == 2
    assert isinstance(client, TorchClient) == ("TorchClient(" in CLIENTS[number])


def test_the_pages_own_test_passes(load):
    """With the first client."""
    (test,) = [block for block in BLOCKS if "def test_my_client" in block]
    names = {"client": load(0)}
    exec(test, names)
    names["test_my_client"]()
    assert len(CLIENTS) + 1 == len(BLOCKS) == 9


def test_the_findings_on_the_page_are_printed(tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    (shown,) = re.findall(r"\$ fedloom client test broken.*?\n(.*?)```", PAGE, re.DOTALL)
    arguments = ["client", "test", f"{tmp_path / 'broken.py'}:client", "--ignore", "copies"]
    assert CliRunner().invoke(main, arguments).output == shown


def test_the_client_uses_the_config_of_its_run(load):
    """Unknown names are refused."""
    (number,) = [n for n, block in enumerate(CLIENTS) if "config_as" in block]
    client = load(number)
    run = {"config": {"mode": "median", "decay": 1.0}, "evaluate": False}
    assert not rounds(client, run=run).params["center"].any()
    with pytest.raises(UsageError, match="Did you mean 'decay'"):
        rounds(client, run={"config": {"decays": 1.0}})
