"""`fedloom client test`: findings as sentences, and an exit code."""

import json

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main

CODE = """
import numpy as np
from fedloom.client import Client

class Good(Client):
    def train(self, params, task):
        rng = np.random.default_rng(task.seed)
        for _ in range(task.settings.epochs):
            if task.should_stop():
                break
            params["w"] -= task.settings.learning_rate * (params["w"] - 1 + rng.normal(size=2) / 99)
        return params, 5, {"loss": float(np.sum((params["w"] - 1) ** 2))}

    def evaluate(self, params, task):
        return 5, {"loss": 1.0}

    def initial(self):
        return {"w": np.zeros(2)}

class Bad(Good):
    def train(self, params, task):
        return {"w": params["w"][:1]}, 0, {}
"""


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "my_clients.py"
    path.write_text(CODE)

    def invoke(name, *arguments):
        return CliRunner().invoke(main, ["client", "test", f"{path}:{name}", *arguments])

    return invoke


def test_a_good_client_runs_a_few_rounds(run):
    """The output has a line per round, and the duration."""
    done = run("Good", "--rounds", "2")
    assert done.exit_code == 0, done.output
    first, *rows, last = done.output.splitlines()
    assert first == "✓ No fault found."
    assert [row.split(":")[0] for row in rows] == ["  round 1", "  round 2"]
    assert "training loss 1.6" in rows[0]
    assert last.startswith("2 rounds in ")


def test_faults_are_printed_and_exit_with_1(run):
    """Each line begins with the name for --ignore."""
    done = run("Bad")
    assert done.exit_code == 1
    assert "✗ shapes: Expected shape (2,) for 'w'" in done.output
    assert "✗ weight: Expected num_examples from train above 0" in done.output
    assert done.output.endswith("2 faults to fix.\n")
    assert run("Bad", "--ignore", "shapes", "--ignore", "weight", "--rounds", "0").exit_code == 0


def test_json_has_findings_and_rounds(run, tmp_path):
    """The settings come from a run's file."""
    tables = tmp_path / "run.toml"
    tables.write_text("rounds = 9\n[train]\nepochs = 2\nlearning_rate = 0.5\n")
    done = run("Good", "--json", "--run", str(tables), "--rounds", "1")
    found = json.loads(done.output)
    assert found["findings"] == []
    (only,) = found["rounds"]
    assert only["training"]["loss"] == pytest.approx(2 * 0.25**2, rel=0.2)
    bad = run("Bad", "--json")
    assert bad.exit_code == 1
    kinds = [finding["check"] for finding in json.loads(bad.output)["findings"]]
    assert set(kinds) == {"shapes", "weight"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("train = 3 =", "run.toml"), ("[trian]\nepochs = 1", "Unknown setting 'trian'")],
)
def test_invalid_settings_are_refused(run, tmp_path, text, sentence):
    """Exit 2, as for an invalid argument."""
    tables = tmp_path / "run.toml"
    tables.write_text(text)
    done = run("Good", "--run", str(tables))
    assert done.exit_code == 2
    assert sentence in done.output
