"""Users' code that ends the process: no command ends as if it had done its work."""

import os
import subprocess
import sys

import pytest

CODE = """
import os
import sys
import numpy as np
from fedloom.client import Client

class Ending(Client):
    def initial(self):
        return {"w": np.zeros(2, np.float32)}

    def train(self, params, task):
        if (child := os.fork()) == 0:
            os._exit(0)  # its own process may
        assert os.waitpid(child, 0)[1] == 0
        %s

def make(name):
    return Ending()

client = Ending()
"""
EXPERIMENT = """
rounds = 1
[cohort]
goal = 2
[train]
epochs = 1
batch_size = 8
learning_rate = 0.1
[data]
source = "digits"
clients = 2
[model]
name = "logistic"
[client]
code = "ending.py:make"
[engine]
workers = 1
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "statement", "code", "message"),
    [
        ("client test ending.py:client", "os._exit(0)", 1, "os._exit(0) ended this process"),
        ("client test ending.py:client", "os._exit(7)", 7, "os._exit(7) ended this process"),
        ("simulate experiment.toml", "os._exit(0)", 1, "os._exit(0) ended this process"),
        ("simulate experiment.toml", "sys.exit()", 2, "SystemExit ended this command"),
    ],
)
def test_a_process_that_is_ended_has_failed(tmp_path, command, statement, code, message):
    """With the line that ended it, and a code other than 0."""
    (tmp_path / "ending.py").write_text(CODE % statement)
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    done = subprocess.run(
        [sys.executable, "-m", "fedloom.cli.main", *command.split()],
        cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert f"error: ending.py, line 15, `{statement}`: {message}" in done.stderr
