"""Augmented training: the same bits for any workers, after a kill, and over the wire."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import psutil
import pytest
import torch

from fedloom.client.torch import augment
from fedloom.protocol.errors import FedloomError, UsageError
from fedloom.simulation import config, sources
from fedloom.simulation.api import simulate
from fedloom.simulation.kernels.choose import KERNELS, choose
from fedloom.simulation.wire.harness import over_the_wire
from fedloom.strategies import Plain
from support import kernels
from support.patience import PATIENCE_S

TRANSFORMS = [
    {"name": "crop", "padding": 1},
    "flip",
    {"name": "jitter", "contrast": 0.2, "brightness": 0.1},
    {"name": "noise", "deviation": 0.05},
    {"name": "cutout", "size": 2},
    {"name": "normalise", "mean": 0.3, "deviation": [0.4]},
]
quietly = partial(simulate, show=False)


def settings(*, kernel="auto", model="digits-cnn", workers=1, transform=TRANSFORMS, clients=6):
    """An experiment on digits."""
    return {
        "name": "augmented",
        "rounds": 3,
        "evaluate": True,
        "data": {
            "source": "digits",
            "clients": clients,
            "held_out": 0.2,
            "transform": transform,
            "partition": {"name": "dirichlet", "alpha": 1.0},
        },
        "model": {"name": model},
        "cohort": {"goal": 3},
        "train": {"epochs": 2, "batch_size": 16, "learning_rate": 0.05},
        "engine": {"kernel": kernel, "workers": workers},
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("kernel", "model"),
    [("channels-last", "digits-cnn"), ("resident", "digits-cnn"), ("fused", "2nn")],
)
def test_augmented_training_has_the_same_bits_for_any_number_of_workers(kernel, model):
    """One process, two or three; and other bits than without transforms."""
    runs = [
        quietly(config.build(settings(kernel=kernel, model=model, workers=n))) for n in (1, 2, 3)
    ]
    assert len({run.digest for run in runs}) == 1
    assert runs[0].engine.startswith(kernel)
    assert [r.test for r in runs[0].records] == [r.test for r in runs[2].records]
    plain = quietly(config.build(settings(kernel=kernel, model=model, transform=[])))
    assert plain.digest != runs[0].digest


@pytest.mark.long
def test_a_function_of_a_file_reaches_other_processes(tmp_path):
    """Pickled by its file, as workers on GPUs and Ray and some wire clients need."""
    (tmp_path / "own.py").write_text(CODE)
    made = config.build(settings(transform=[f"{tmp_path / 'own.py'}:shake"])).population.transform
    (tmp_path / "made.pickle").write_bytes(pickle.dumps(made))
    code = f"import pickle; print(pickle.load(open({str(tmp_path / 'made.pickle')!r}, 'rb')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "shake", done.stderr


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize(("kernel", "model"), [("auto", "digits-cnn"), ("fused", "2nn")])
def test_augmented_training_has_the_same_bits_over_the_wire(kernel, model):
    """A real server and enrolled processes end with the simulation's model."""
    given = settings(kernel=kernel, model=model, clients=3)
    described = config.build(given)
    here, there = quietly(described), over_the_wire(described, show=False)
    assert there.digest == here.digest
    assert [r.evaluation for r in there.records] == [r.evaluation for r in here.records]


OWN = """
import itertools, os, random
import numpy as np
import torch
from fedloom.client.torch.augment import Transform

GENERATORS = np.random.default_rng(0), random.Random(5), torch.Generator().manual_seed(1)
COUNT = itertools.count()

def of_numpy(x): return x + 0.1 * np.random.randn()
def of_python(x): return x + 0.1 * random.random()
def of_torch(x): return x.flip(-1) if torch.rand(1) < 0.5 else x
def in_place(x): x += float(np.random.rand()); return x
def own_numpy(x): return x + 0.1 * float(GENERATORS[0].standard_normal())
def own_python(x): return x + 0.1 * GENERATORS[1].random()
def own_torch(x): return x.flip(-1) if torch.rand(1, generator=GENERATORS[2]) < 0.5 else x
def fresh(x): return x + 0.1 * float(np.random.default_rng().standard_normal())
def system(x): return x + 0.001 * os.urandom(1)[0]
def counted(x): return x + 0.001 * next(COUNT)

class Keyed(Transform):
    def train(self, x, draws): return x + draws.normal(tuple(x.shape[1:]))

class Global(Transform):
    def train(self, x, draws): return x + 0.1 * torch.randn(x.shape)

class Numpy(Transform):
    def train(self, x, draws): return x + 0.1 * float(np.random.randn())
"""


@pytest.mark.long
@pytest.mark.parametrize("name", ["of_numpy", "of_python", "of_torch", "in_place", "Keyed"])
def test_own_code_with_global_generators_has_the_same_bits_for_any_workers(tmp_path, name):
    """Whatever the callers drew before."""
    (tmp_path / "own.py").write_text(OWN)
    transform = [f"{tmp_path / 'own.py'}:{name}"]
    digests = set()
    for workers in (1, 2, 3):
        torch.rand(workers)
        given = settings(transform=transform, model="2nn", workers=workers)
        digests.add(quietly(config.build(given)).digest)
    assert len(digests) == 1


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "name",
    [
        "own_numpy", "own_python", "own_torch", "fresh", "system", "counted", "Global", "Numpy",
    ],
)  # fmt: skip
def test_own_code_with_another_state_is_refused(tmp_path, name, workers):
    """Its bits would depend on the number of workers."""
    (tmp_path / "own.py").write_text(OWN)
    given = settings(transform=[f"{tmp_path / 'own.py'}:{name}"], model="2nn", workers=workers)
    with pytest.raises(FedloomError, match="the same result of the transform"):
        quietly(config.build(given))


KILLED = """
name = "killed"
rounds = 20
[data]
source = "digits"
clients = 8
[[data.transform]]
name = "crop"
padding = 1
[[data.transform]]
name = "FUNCTION"
[model]
name = "digits-cnn"
[cohort]
goal = 4
[train]
epochs = 2
batch_size = 16
learning_rate = 0.05
[engine]
workers = 2
"""
CODE = "import torch\n\ndef shake(x):\n    return x + 0.1 * torch.randn(x.shape)\n"


@pytest.mark.long
@pytest.mark.e2e
def test_augmented_training_has_the_same_bits_after_a_kill(tmp_path):
    """SIGKILL of the process group between any two instructions, then --resume."""
    (tmp_path / "own.py").write_text(CODE)
    file = tmp_path / "killed.toml"
    file.write_text(KILLED.replace("FUNCTION", f"{tmp_path / 'own.py'}:shake"))
    whole = _digest(file, tmp_path / "whole")
    folder = tmp_path / "out"
    process = _command(file, "--out", str(folder), "--quiet", start_new_session=True)
    metrics = folder / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    psutil.wait_procs(workers, timeout=PATIENCE_S)
    assert len(metrics.read_text().splitlines()) < 20
    assert _digest(file, folder, "--resume") == whole


def _command(file, *words, **kwargs):
    return subprocess.Popen(
        [sys.executable, "-m", "fedloom.cli.main", "simulate", str(file), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


def _digest(file, folder, *words):
    process = _command(file, "--out", str(folder), "--json", *words)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return json.loads(out)["digest"]


def test_kernels_agree_on_augmented_inputs():
    """`fused` draws the numbers of `resident`, also in an epoch that ends early: up to rounding."""
    people = kernels.population(transform=[augment.Noise(deviation=0.5)])
    model = kernels.seeded(kernels.mlp)
    params = kernels.received(model)
    for given in ({"epochs": 2}, {"epochs": None, "steps": 7}, {"batch_size": 0}):
        task = kernels.task(**given)
        for job in kernels.jobs():
            both = []
            for name in ("resident", "fused"):
                kernel = KERNELS[name](
                    kernels.seeded(kernels.mlp), torch.nn.functional.cross_entropy, people,
                    kernels.CPU,
                )  # fmt: skip
                (outcome,) = kernel.work(params, task, [job])
                both.append(kernels.values(outcome))
            for name, value in both[0].items():
                np.testing.assert_allclose(both[1][name], value, atol=1e-5)


def test_the_batched_kernel_is_not_used_with_transforms():
    """On request it is refused; the reason is given."""
    people = kernels.population(transform=[augment.Noise(deviation=0.5)])
    model, loss = kernels.seeded(kernels.mlp), torch.nn.functional.cross_entropy
    with pytest.raises(UsageError, match=r"batched does not support data\.transform"):
        choose("batched", model, loss, Plain(), None, kernels.CPU, people)


def test_evaluations_see_normalised_inputs():
    """The test accuracy after training is that of the model on normalised inputs."""
    described = config.build(
        settings(transform=[{"name": "normalise", "mean": 3.0, "deviation": 0.1}])
    )
    result = quietly(described)
    model = described.model()
    model.load_state_dict({n: torch.from_numpy(np.array(v)) for n, v in result.params.items()})
    test = described.population.test
    x = (torch.from_numpy(test.x) - 3.0) / 0.1
    hits = (model(x).argmax(dim=1) == torch.from_numpy(test.y)).float().mean().item()
    assert result.records[2].test["accuracy"] == pytest.approx(hits, abs=2 / len(test))


def test_a_smaller_crop_gives_the_model_its_input_shape():
    """The model is built for cropped images."""
    described = config.build(settings(transform=[{"name": "crop", "size": 6}], model="2nn"))
    assert described.population.input_shape == (1, 6, 6)
    assert described.model()[1].in_features == 36
    assert quietly(described).records[2].test["loss"] > 0


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        ("flip", r"data\.transform as a list"),
        (["flop"], "'flip'"),
        ([{"name": "crop", "paddings": 2}], "padding"),
        ([{"padding": 2}], "name"),
        ([{"name": "crop", "size": 9}], "crop.size <= 8 for images of 8×8"),
        ([{"name": "normalise", "mean": [0, 0, 0], "deviation": 1}], "or as 1 for inputs"),
    ],
)
def test_impossible_transforms_are_refused(transform, message):
    """Before anything is trained."""
    with pytest.raises(UsageError, match=message):
        config.build(settings(transform=transform))


def test_text_tables_and_own_clients_are_refused():
    """Image transforms need images; own clients read their own data."""
    x, y = np.zeros((8, 5), np.int64), np.zeros((8, 5), np.int64)
    with pytest.raises(UsageError, match="such as tokens of a text"):
        sources.from_arrays(x, y, clients=2, transform=["flip"])
    with pytest.raises(UsageError, match="flip needs images"):
        sources.from_arrays(x.astype(np.float32), y[:, 0], clients=2, transform=["flip"])
    given = {**settings(), "client": {"code": "support.experiments:Nudge"}}
    with pytest.raises(UsageError, match=r"Remove data\.transform"):
        config.build(given)


def test_a_function_that_fails_is_refused_before_training(tmp_path):
    """With its error."""
    (tmp_path / "bad.py").write_text("def broken(x):\n    return x.nonsense()\n")
    described = config.build(settings(transform=[f"{tmp_path / 'bad.py'}:broken"]))
    with pytest.raises(UsageError, match=r"data\.transform fails .*nonsense"):
        quietly(described)
