"""The inputs of a client that failed, and its training repeated in this process."""

import json
import traceback
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from fedloom.protocol.errors import UsageError
from fedloom.simulation import replay
from fedloom.simulation.api import simulate
from fedloom.simulation.experiment import EngineSettings
from support.experiments import Nudge, experiment, population


class Picky(nn.Module):
    """Raises for a batch that has the marked example; or returns NaN for it."""

    def __init__(self, mark, spoils):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(int(np.prod(population().examples.x.shape[1:])), 4)
        self.mark, self.spoils = mark, spoils

    def forward(self, x):
        found = self.linear(x.flatten(1))
        if self.mark is None or not (x.flatten(1)[:, 0] == self.mark).any():
            return found
        if self.spoils:
            return found * float("nan")
        raise IndexError("a bad batch")


def described(tmp_path, *, spoils=False, **engine):
    data = population()
    data.examples.x[data.shards[2][3]].reshape(-1)[0] = 77.0
    settings = {"workers": 1, "kernel": "resident", "device": "cpu", "debug": str(tmp_path / "d")}
    return replace(
        experiment(data=data, rounds=2, goal=len(data.names)),
        model=lambda: Picky(77.0, spoils),
        engine=EngineSettings(**(settings | engine)),
    )


def place(error):
    return [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)][-1]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_error_of_one_batch_is_raised_again(tmp_path, workers):
    """At the same line, with the inputs of that client alone in the file."""
    made = described(tmp_path, workers=workers)
    with pytest.raises(UsageError, match=r"fedloom\.simulation\.replay"):
        simulate(made, show=False)
    (path,) = (tmp_path / "d").iterdir()
    saved = load_file(path)
    assert path.name == "round-1-client-2.safetensors"
    assert np.array_equal(saved["x"], made.population.examples.x[made.population.shards[2]])
    with pytest.raises(IndexError, match="a bad batch") as caught:
        replay(path, made)
    file, line = place(caught.value)
    assert f'File "{file}", line {line}, in forward' in saved["note"].tobytes().decode().replace(
        '\\"', '"'
    )
    assert replay(path, replace(made, model=lambda: Picky(None, spoils=False))) is None


def test_an_update_that_is_not_finite_is_repeated(tmp_path):
    """Its refusal names the file; other clients have none."""
    made = described(tmp_path, spoils=True)
    record = simulate(made, show=False).records[0]
    assert "round-1-client-2.safetensors" in record.reason
    names = {path.name for path in (tmp_path / "d").iterdir()}
    assert names == {"round-1-client-2.safetensors", "round-2-client-2.safetensors"}
    for name in names:
        with pytest.raises(UsageError, match=r"finite values in 'linear\."):
            replay(tmp_path / "d" / name, made)


def test_nothing_is_stored_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="a bad batch"):
        simulate(described(tmp_path, debug=""), show=False)
    assert not list(tmp_path.iterdir())


def test_another_experiment_is_refused(tmp_path):
    made = described(tmp_path)
    with pytest.raises(UsageError, match="a bad batch"):
        simulate(made, show=False)
    (path,) = (tmp_path / "d").iterdir()
    with pytest.raises(UsageError, match="other data"):
        replay(path, replace(made, population=population()))
    train = {"epochs": 1, "batch_size": 2, "learning_rate": 0.1}
    other = experiment(data=made.population, goal=len(made.population.names), train=train)
    with pytest.raises(UsageError, match=r"other settings of \[train\]"):
        replay(path, replace(made, spec=other.spec))
    with pytest.raises(UsageError, match="no such file"):
        replay(tmp_path / "none", made)


@pytest.mark.parametrize("strategy", ["fedavg", "scaffold", "feddyn"])
def test_the_client_gets_what_it_received_and_remembered(tmp_path, strategy):
    """In round 2: its error tells the bits of the weights at the bad batch."""
    armed = []

    class Late(Picky):
        def forward(self, x):
            try:
                return super().forward(x)
            except IndexError:
                if armed:
                    raise IndexError(self.linear.weight.detach().numpy().tobytes().hex()) from None
            return self.linear(x.flatten(1))

    made = described(tmp_path)
    more = {"fedavg": {}, "scaffold": {"clients": 6}, "feddyn": {"clients": 6, "alpha": 0.1}}
    table = {"name": strategy} | more[strategy]
    train = {"epochs": 2, "batch_size": 4, "learning_rate": 0.1}
    spec = experiment(data=made.population, goal=6, rounds=2, strategy=table, train=train).spec
    made = replace(made, model=lambda: Late(77.0, False), spec=spec)
    with pytest.raises(UsageError, match="client-2"):
        simulate(made, show=False, on_round=lambda *_: armed.append(1) and None)
    (path,) = (tmp_path / "d").iterdir()
    assert path.name == "round-2-client-2.safetensors"
    saved = load_file(path)
    assert any(name.startswith("memory/") for name in saved) == (strategy != "fedavg")
    with pytest.raises(IndexError) as caught:
        replay(path, made)
    note = json.loads(saved["note"].tobytes())
    assert note["error"] == f"IndexError: {caught.value}"


def test_own_code_of_clients_is_repeated(tmp_path):
    class Own(Nudge):
        def train(self, params, task):
            if self.number == 2:
                raise KeyError(f"{task.seed} {sorted(params)}")
            return super().train(params, task)

    data = population()
    engine = EngineSettings(workers=1, device="cpu", debug=str(tmp_path / "d"))
    made = replace(experiment(data=data, goal=len(data.names), client=Own), engine=engine)
    with pytest.raises(UsageError, match="KeyError"):
        simulate(made, show=False)
    (path,) = (tmp_path / "d").iterdir()
    with pytest.raises(KeyError) as caught:
        replay(path, made)
    note = json.loads(load_file(path)["note"].tobytes())
    assert note["error"] == f"KeyError: {caught.value}"
