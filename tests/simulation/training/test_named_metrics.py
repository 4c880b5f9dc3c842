"""Metrics that an experiment's file names."""

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation import metrics
from fedloom.simulation.api import simulate
from fedloom.simulation.config import load

SETTINGS = {
    "rounds": 1,
    "cohort": {"goal": 2},
    "train": {"epochs": 1, "batch_size": 4, "learning_rate": 0.1},
    "data": {"source": "digits", "clients": 4},
    "model": {"name": "logistic"},
}


def described(table):
    return load({**SETTINGS, "test": {"metrics": table}})


def test_names_files_and_functions_are_measured(tmp_path):
    """A ready one in any case, a function of a file, and a function."""
    file = tmp_path / "mine.py"
    file.write_text(
        "def errors(outputs, targets):\n    return (outputs.argmax(1) != targets).sum()"
    )
    made = described({"F": "F1", "errors": f"{file}:errors", "own": metrics.perplexity})
    assert made.metrics["F"] is metrics.f1
    test = simulate(made, out=tmp_path / "out", show=False).records[0].test
    assert test.keys() == {"loss", "accuracy", "F", "errors", "own"}
    wrong = (1 - test["accuracy"]) * len(made.population.test)
    assert test["errors"] == pytest.approx(wrong, abs=1e-3)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"m": "f2"}, "f1"),
        ({"m": 3}, "got int"),
        ({"loss": "f1"}, "measures 'loss' itself"),
        ("f1", "test.metrics as a table"),
        ({"m": "none.py:f"}, "none.py"),
    ],
)
def test_others_are_refused(table, said):
    with pytest.raises(UsageError) as caught:
        described(table)
    assert said in str(caught.value)
