"""A simulation resumes only as what it was begun as, and a refusal leaves its folder as it was."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedloom.protocol.errors import UsageError
from fedloom.simulation import Experiment, config, run, simulate
from fedloom.simulation.experiment import EngineSettings
from fedloom.simulation.training.origins import changes
from support.experiments import experiment, population
from support.marks import sampled

X = np.random.default_rng(1).normal(size=(60, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
OWN = """
import torch

SHARE = 0.5


def weakened(x):
    return x * SHARE


def weak(x):
    return weakened(x)


def mine(outputs, targets):
    return float(outputs.mean())


def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = torch.nn.Linear(64, 10)

    def forward(self, x):
        return self.scores(x.flatten(1))
"""


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(6, 2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a simulation that has ended."""
    out = tmp_path_factory.mktemp("finished") / "out"
    simulate(experiment(), out=out, show=False)
    return out


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def own_code(folder, rounds):
    """An experiment whose transform, metric, loss and model are of one file."""
    file = folder / "own.py"
    return config.load(
        {
            "rounds": rounds,
            "data": {"source": "digits", "clients": 5, "transform": [f"{file}:weak"]},
            "model": {"name": f"{file}:Net", "loss": f"{file}:loss"},
            "cohort": {"goal": 2},
            "train": {"epochs": 1, "batch_size": 64, "learning_rate": 0.1},
            "engine": {"workers": 1},
            "test": {"metrics": {"mine": f"{file}:mine"}},
        }
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 2}, r"3 rounds .* --resume \(in Python resume=True\) needs rounds >= 3, got 2"),
        ({"seed": 5}, r"has seed = 0, not 5.*Restore the setting"),
        ({"data": population(seed=3)}, "Changed since the first rounds: the examples"),
        ({"data": population(sizes=(9,) * 6)}, "data.examples"),
        ({"model": "logistic"}, r"Restore the setting|the initial values"),
        ({"backend": "ray", "aggregation": {"name": "median"}}, "aggregation"),
    ],
    ids=["rounds", "seed", "values", "sizes", "model", "aggregation"],
)
def test_a_refused_resumption_changes_nothing_in_the_folder(finished, tmp_path, change, message):
    """It stays finished, with its settings and rounds."""
    out = shutil.copytree(finished, tmp_path / "out")
    before = contents(out)
    with pytest.raises(UsageError, match=message):
        simulate(experiment(**change), out=out, resume=True, show=False)
    assert contents(out) == before
    assert json.loads((out / "simulation.json").read_text())["state"] == "finished"


def test_a_device_that_is_missing_changes_nothing_in_the_folder(tmp_path):
    """Workers that cannot be set up are a refusal too."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    out = tmp_path / "out"
    simulate(experiment(), out=out, show=False)
    before = contents(out)
    other = replace(experiment(rounds=5), engine=EngineSettings(device="cuda"))
    with pytest.raises(UsageError, match="Expected a CUDA device"):
        simulate(other, out=out, resume=True, show=False)
    assert contents(out) == before


def test_messages_name_what_a_user_types_in_a_shell_and_in_python(tmp_path):
    simulate(experiment(rounds=1), out=tmp_path / "out", show=False)
    with pytest.raises(UsageError, match=r"Continue it with --resume \(in Python resume=True\)"):
        simulate(experiment(rounds=2), out=tmp_path / "out", show=False)
    with pytest.raises(UsageError, match=r"--accept-changes \(in Python accept_changes=True\) is"):
        simulate(experiment(), out=tmp_path / "new", accept_changes=True, show=False)
    assert not (tmp_path / "new").exists()


@pytest.mark.long
def test_a_module_with_other_initial_values_is_refused(tmp_path):
    """It would be recorded as the start of rounds that began elsewhere."""
    given = {"out": tmp_path / "out", "show": False, "settings": {"engine": {"workers": 1}}}
    run(net(), (X, Y), rounds=1, **given)
    before = contents(tmp_path / "out")
    with pytest.raises(UsageError, match=r"initial values of the model\..*torch\.manual_seed"):
        run(net(seed=1), (X, Y), rounds=2, resume=True, **given)
    assert contents(tmp_path / "out") == before
    resumed = run(net(), (X, Y), rounds=2, resume=True, **given)
    whole = run(net(), (X, Y), rounds=2, show=False, settings=given["settings"])
    assert resumed.digest == whole.digest


def test_other_test_examples_are_refused(tmp_path):
    """Accuracies of one table would be of two sets."""
    given = {"out": tmp_path / "out", "show": False, "settings": {"engine": {"workers": 1}}}
    run(net(), (X, Y), rounds=1, test=(X[:9], Y[:9]), **given)
    with pytest.raises(UsageError, match="Changed since the first rounds: the examples"):
        run(net(), (X, Y), rounds=2, test=(X[1:10], Y[1:10]), resume=True, **given)


@pytest.mark.long
@pytest.mark.parametrize(
    ("old", "new", "changed"),
    sampled(
        [
            ("SHARE = 0.5", "SHARE = 0.25", "data.transform"),
            ("return x * SHARE", "return x + SHARE", "data.transform"),
            ("float(outputs.mean())", "float(outputs.max())", "test.metrics.mine"),
            ("cross_entropy(outputs, targets)", "cross_entropy(2 * outputs, targets)", "the loss"),
            ("self.scores(x.flatten(1))", "self.scores(x.flatten(1)).tanh()", "the model"),
            ("def mine", "# a comment\n\n\ndef mine", None),
            ("def mine", "def unused():\n    return 0\n\n\ndef mine", None),
        ],
        3,
    ),
)
def test_edited_code_is_refused_unless_it_is_accepted(tmp_path, old, new, changed):
    """Also a constant or a function that the code uses; comments and other code do not count."""
    file, out = tmp_path / "own.py", tmp_path / "out"
    file.write_text(OWN)
    simulate(own_code(tmp_path, 1), out=out, show=False)
    assert old in OWN
    file.write_text(OWN.replace(old, new))
    edited = own_code(tmp_path, 2)
    if changed is not None:
        before = contents(out)
        with pytest.raises(UsageError, match=f"Changed .*: the code of {changed}\\. No run"):
            simulate(edited, out=out, resume=True, show=False)
        assert contents(out) == before
    simulate(edited, out=out, resume=True, accept_changes=changed is not None, show=False)
    noted = json.loads((out / "simulation.json").read_text()).get("changes")
    assert noted == (
        None if changed is None else [{"after_rounds": 1, "changed": [f"the code of {changed}"]}]
    )
    simulate(edited, out=out, resume=True, show=False)  # accepted once and for all


@pytest.mark.long
def test_metrics_may_be_added_and_hooks_may_change(tmp_path):
    """They change no number that was recorded."""
    out, made = tmp_path / "out", experiment(rounds=1)
    simulate(made, out=out, show=False, on_round=lambda record, params: None)
    more = replace(experiment(rounds=2), metrics={"mean": lambda o, t: float(o.mean())})
    found = simulate(more, out=out, resume=True, show=False, on_round=lambda record, params: False)
    assert ["mean" in record.test for record in found.records] == [False, True]


@pytest.mark.long
def test_looking_at_the_origins_changes_no_bit(tmp_path):
    """A model that draws from the global generator is the same with and without a folder."""
    found = []
    for out in (None, tmp_path / "out"):
        torch.manual_seed(7)
        made = experiment(rounds=1)
        drawn = Experiment(
            population=made.population,
            model=lambda: nn.Linear(12, 4),
            spec=made.spec,
            engine=made.engine,
        )
        found.append(simulate(drawn, out=out, show=False).digest)
    assert found[0] == found[1]


def test_folders_of_earlier_versions_and_other_pythons_can_be_resumed():
    """What is unknown, or cannot be compared, is not refused."""
    now = {"Python": "3.12", "the examples": "a", "the code of the loss": "b"}
    assert changes({}, now) == []
    assert changes({**now, "Python": "3.11", "the code of the loss": "c"}, now) == []
    assert changes({**now, "Python": "3.11", "the examples": "c"}, now) == ["the examples"]
    assert changes({**now, "the code of the loss": "c"}, now) == ["the code of the loss"]
