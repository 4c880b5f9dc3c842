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
empty = {}

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
    ("name", "sentence"),
    [
        ("bare", "a method `initial`"),
        ("wrong", "a dict of arrays by name"),
        ("empty", "Expected a model with tensors, got none from"),
    ],
)
def test_code_without_a_model_is_refused(code, tmp_path, name, sentence):
    """The error says what to provide."""
    arguments = ["model", "init", f"{code}:{name}", "--out", str(tmp_path / "x")]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert sentence in done.output


def test_differences_to_frozen_weights_are_added(tmp_path):
    """A tensor of zeros after each pair of factors; refused without adapters."""
    code = tmp_path / "adapters.py"
    code.write_text(
        "import numpy as np\n"
        "shapes = {'x.lora_A.weight': (2, 5), 'x.lora_B.weight': (3, 2)}\n"
        "made = {name: np.ones(shape, 'f4') for name, shape in shapes.items()}\n"
        "plain = {'w': np.ones(3)}\n"
    )
    out = tmp_path / "init.safetensors"
    arguments = ["model", "init", f"{code}:made", "--out", str(out), "--adapter-rest"]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    found = load_file(out)
    assert list(found) == ["x.lora_A.weight", "x.lora_B.weight", "x.lora_rest.weight"]
    assert found["x.lora_rest.weight"].shape == (3, 5)
    assert not found["x.lora_rest.weight"].any()
    arguments[2] = f"{code}:plain"
    refused = CliRunner().invoke(main, arguments)
    assert refused.exit_code == 2
    assert "Expected adapters" in refused.output
