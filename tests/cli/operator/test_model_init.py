"""`fedloom model init`: the initial model from a client or from arrays."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.client import load_file

CODE = """
import numpy as np
from fedloom.client import Client
from fedloom.client.numpy import fit_client

arrays = {"w": np.ones((2, 3), np.float32)}
client = fit_client(lambda p, s, t: p, (np.ones((2, 3)), np.ones(2)), initial=arrays)
bare = Client()
wrong = 7

def make():
    return client
"""


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


@pytest.mark.parametrize("name", ["client", "arrays", "make"])
def test_the_model_is_written_and_described(code, tmp_path, name):
    """From a client, arrays, or a function that returns either."""
    out = tmp_path / "init.safetensors"
    arguments = ["model", "init", f"{code}:{name}", "--out", str(out), "--json"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["tensors"] == {"w": {"shape": [2, 3], "dtype": "float32"}}
    np.testing.assert_array_equal(load_file(out)["w"], np.ones((2, 3)))


@pytest.mark.parametrize(
    ("name", "sentence"), [("bare", "a method `initial`"), ("wrong", "a dict of arrays by name")]
)
def test_code_without_a_model_is_refused(code, tmp_path, name, sentence):
    """The error says what to provide."""
    arguments = ["model", "init", f"{code}:{name}", "--out", str(tmp_path / "x")]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert sentence in done.output
