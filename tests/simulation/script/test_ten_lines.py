"""A researcher's scripts of ten lines, each run as a file in its own process."""

import subprocess
import sys

import pytest

ARRAYS = """
import torch; torch.manual_seed(0)
from sklearn.datasets import load_digits
from fedloom.simulation import run
x, y = load_digits(return_X_y=True)
net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
result = run(net, (x / 16, y), strategy="FedAvg", partition="dirichlet", rounds=10)
print(result.best())
"""
CLIENT = """
import numpy as np
from fedloom.client import Client, Update
from fedloom.simulation import run
x = np.random.default_rng(1).normal(size=(3, 40, 2)).astype("float32")
data = {f"site-{n}": (x[n], x[n] @ [[1.0], [2.0]]) for n in range(3)}
class LeastSquares(Client):
    def __init__(self, name): self.x, self.y = data[name]
    def train(self, params, task):
        weights = np.linalg.lstsq(self.x, self.y, rcond=None)[0].T.astype("float32")
        return Update({"0.weight": weights, "0.bias": params["0.bias"]}, num_examples=len(self.x))
result = run("logistic", data, client=LeastSquares, loss="mse", rounds=2)
print(result.params["0.weight"].round(3).tolist())
"""
AUC = """
import torch; torch.manual_seed(0)
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from fedloom.simulation import run
x, y = load_digits(return_X_y=True)
x, y = (x / 16).astype("float32"), (y % 3 == 0).astype(int)
def auc(outputs, targets): return roc_auc_score(targets, outputs[:, 1] - outputs[:, 0])
net, test = torch.nn.Linear(64, 2), (x[1500:], y[1500:])
result = run(net, (x[:1500], y[:1500]), test=test, metrics={"auc": auc}, rounds=20)
scores = x[1500:] @ result.params["weight"].T + result.params["bias"]
print(result.best("auc"), result.records[-1].test["auc"], auc(scores, y[1500:]))
"""
HUGGING_FACE = """
import datasets, torch; torch.manual_seed(0)
from sklearn.datasets import load_digits
from fedloom.simulation import run
x, y = load_digits(return_X_y=True)
made = datasets.Dataset.from_dict({"pixels": (x / 16).tolist(), "label": y.tolist()})
splits = made.train_test_split(0.2, seed=1)
net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
result = run(net, splits, strategy="fedadam", rounds=10)
print(result.best())
"""


def ran(source, folder, *needs):
    """The last line of a script's output."""
    for package in needs:
        pytest.importorskip(package)
    assert len(source.strip().splitlines()) <= 13
    script = folder / "script.py"
    script.write_text(source)
    command = [sys.executable, "-W", "error", str(script)]
    ended = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip().splitlines()[-1]


@pytest.mark.long
def test_own_model_and_arrays(tmp_path):
    assert float(ran(ARRAYS, tmp_path)) > 0.5


@pytest.mark.long
def test_own_client_function(tmp_path):
    """Least squares without noise is exact, so each client and their mean have the true weights."""
    assert ran(CLIENT, tmp_path) == "[[1.0, 2.0]]"


@pytest.mark.long
def test_a_metric_of_ones_own(tmp_path):
    """The last round's AUC is that of the last model on the test examples, computed apart."""
    best, last, apart = map(float, ran(AUC, tmp_path).split())
    assert best >= last > 0.8
    assert last == pytest.approx(apart, abs=1e-6)


@pytest.mark.long
def test_a_hugging_face_data_set(tmp_path):
    assert float(ran(HUGGING_FACE, tmp_path, "datasets")) > 0.5


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "Expected one column of targets in data, got none of pixels, kind, text"),
        ({"target": "kind"}, "Expected one column of inputs in data, got pixels, text. Set inputs"),
        ({"target": "kind", "inputs": "text"}, "Set text = 'text' for tokens"),
        ({"target": "kind", "inputs": "pixel"}, "Did you mean 'pixels'"),
    ],
)
def test_columns_that_are_not_decided_are_refused(change, message):
    datasets = pytest.importorskip("datasets")
    from fedloom.protocol.errors import UsageError
    from fedloom.simulation import sources

    made = datasets.Dataset.from_dict(
        {"pixels": [[0.0], [1.0]], "kind": [0, 1], "text": ["a", "b"]}
    )
    with pytest.raises(UsageError, match=message):
        sources.load(source=made, seed=0, clients=2, **change)
