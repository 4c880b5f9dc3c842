"""The costs of a task: passes are counted in a PyTorch client, bytes follow from the container.

A real server's ledger is the other witness of bytes: see
tests/simulation/wire/test_same_rounds_everywhere.py.
"""

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedloom.client import Kind, Task, Weighting
from fedloom.client.torch import TorchClient
from fedloom.client.training.client_rule import RuleContext
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.task_description import DifferenceRef, FileRef
from fedloom.server.engine import RoundKind
from fedloom.server.planning import costs
from fedloom.server.planning.spec import parse
from fedloom.server.planning.task import describe
from fedloom.strategies import RoundSettings, TensorSpec
from support import parts

TRAIN = {"epochs": 2, "batch_size": 4, "learning_rate": 0.1}
SIZE, HELD_OUT = 13, 5
NARROWING = {
    ("narrowing", "a head"): {"train": {**TRAIN, "only": ["3.*"]}},
    ("narrowing", "widths"): {"train": {**TRAIN, "widths": [0.5]}},
    ("narrowing", "drawn tensors"): {"train": {**TRAIN, "tensor_share": 0.5}},
    ("narrowing", "steps"): {"train": {"steps": 5, "batch_size": 4, "learning_rate": 0.1}},
    ("narrowing", "all examples"): {"train": {"steps": 3, "learning_rate": 0.1}},
    ("personal", "head epochs"): {
        "personal": {"name": "shared", "keep": ["3.*"], "head_epochs": 5}
    },
    ("strategy", "ifca of three"): {"strategy": {"name": "ifca", "clusters": 3}},
}
PARTS = {**parts.parts(), **NARROWING}


def described(kind=RoundKind.TRAIN, **values):
    spec = parse({"rounds": 4, "train": TRAIN, "cohort": {"goal": 6, "quorum": 5}, **values})
    return describe(spec, run="r", number=1, trained=0, kind=kind, clip=1.0)


# ---- passes --------------------------------------------------------------------------------------

PASSED = Counter()


class Counted(nn.Identity):
    """Counts the examples that pass, with and without gradients."""

    def forward(self, x):
        PASSED[torch.is_grad_enabled()] += len(x)
        return x


class Loaded(torch.utils.data.Dataset):
    """A data set that counts the examples that are read."""

    def __init__(self, size):
        self.x = torch.randn(size, 6, generator=torch.Generator().manual_seed(size))
        self.reads = 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.reads += 1
        return self.x[index], index % 4


def performed(task):
    """The examples that a client passes with and without gradients, and that it reads."""
    PASSED.clear()
    train, held_out = Loaded(SIZE), Loaded(HELD_OUT)
    model = nn.Sequential(Counted(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    client = TorchClient(model, train, nn.functional.cross_entropy, evaluate=held_out)
    asked = Task(
        run=task.run, round=1, client="a", kind=Kind.TRAIN if task.train else Kind.EVALUATE,
        settings=task.settings, rule=task.rule, config={}, seed=1, deadline_s=60.0,
        weighting=Weighting.EXAMPLES, local=RuleContext(personal=task.personal),
    )  # fmt: skip
    if task.evaluates:
        client.evaluate(client.initial(), asked)
    if task.train:
        client.train(client.initial(), asked)
    return PASSED[True], PASSED[False], train.reads + held_out.reads


@pytest.mark.long
@pytest.mark.parametrize("kind", RoundKind)
@pytest.mark.parametrize("part", PARTS, ids=lambda part: "-".join(part).replace(" ", "_"))
def test_passes_are_those_of_a_client(part, kind):
    """A counting layer and a counting data set see as many examples as the task is said to cost."""
    task = described(kind, **PARTS[part])
    work = costs.work(task, np.array([SIZE]), np.array([HELD_OUT]))
    trained, evaluated, reads = performed(task)
    assert (work.trained.item(), work.evaluated.item()) == (trained, evaluated)
    both_models = trained if task.personal.own_model is not None else 0  # read once
    assert reads == trained + evaluated - both_models // 2


@pytest.mark.parametrize(
    ("settings", "most", "trained"),
    [
        ((2, None, 10), None, [14, 50]),
        ((None, 3, 10), None, [21, 25]),  # 7 alone three times; 10 + 10 + 5
        ((None, 4, 10), None, [28, 35]),
        ((None, 2, 0), None, [14, 50]),
        ((2, None, 10), [1, 4], [7, 35]),
        ((None, 3, 10), [5, 2], [21, 20]),
    ],
)
def test_examples_are_counted_like_in_the_training_loop(settings, most, trained):
    """Passes over 7 and 25 examples; the last batch of a pass may be smaller."""
    epochs, steps, batch_size = settings
    told = RoundSettings(epochs=epochs, steps=steps, batch_size=batch_size, learning_rate=0.1)
    most = None if most is None else np.array(most)
    assert costs.trained_examples(np.array([7, 25]), told, most).tolist() == trained


# ---- bytes ---------------------------------------------------------------------------------------


def manifest(**shapes):
    """Of a model of float32; the length of its file is not used."""
    specs = {name: TensorSpec(shape=s, dtype=np.dtype(np.float32)) for name, s in shapes.items()}
    return Manifest(dtypes=dict.fromkeys(shapes, "F32"), specs=specs, size_bytes=10**6)


def container(**tensors):
    """The length of a safetensors file, computed by its specification."""
    header, start = {}, 0
    for name, (dtype, shape) in tensors.items():
        stop = start + math.prod(shape) * {"F64": 8, "F32": 4, "I8": 1}[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header, separators=(",", ":"))
    return 8 + -(-len(text) // 8) * 8 + start


def test_an_update_is_a_container_with_its_header():
    """Plain, with a control variate for each float, of a head alone, narrow, and encoded."""
    model = manifest(body=(40, 50), head=(50,))
    whole = {"0": ("F32", (40, 50)), "1": ("F32", (50,))}
    assert costs.upload_bytes(described(), model) == container(**whole)
    scaffold = described(**parts.parts()["strategy", "scaffold"])
    both = {
        "0": ("F32", (40, 50)),
        "1": ("F32", (40, 50)),
        "2": ("F32", (50,)),
        "3": ("F32", (50,)),
    }
    assert costs.upload_bytes(scaffold, model) == container(**both)
    statistics = {"0": ("F32", (50,)), "1": ("F32", (40, 50)), "2": ("F32", (40, 50))}
    assert costs.upload_bytes(scaffold, model, trainable={"body"}) == container(**statistics)
    head = container(**{"0": ("F32", (50,))})
    for values in ({"train": {**TRAIN, "only": ["head"]}}, {"personal": {"keep": ["body"]}}):
        assert costs.upload_bytes(described(**values), model) == head
    narrow = {"0": ("F32", (20, 25)), "1": ("F32", (25,))}
    boxes = {"body": (20, 25), "head": (25,)}
    assert costs.upload_bytes(described(), model, boxes=boxes) == container(**narrow)
    coded = {"0.scales": ("F32", (2,)), "1.scales": ("F32", (1,)),
             "0.codes": ("I8", (2000,)), "1.codes": ("I8", (50,))}  # fmt: skip
    int8 = described(compression={"up": {"name": "int8"}})
    assert costs.upload_bytes(int8, model) == container(**coded)
    assert costs.upload_bytes(described(RoundKind.EVALUATE), model) == 0


def test_a_private_update_has_no_integers():
    """They stay as the server sent them; otherwise they are sent as differences of float64."""
    dtypes = {"count": "I64", "weight": "F32"}
    specs = {
        "count": TensorSpec(shape=(), dtype=np.dtype(np.int64)),
        "weight": TensorSpec(shape=(30,), dtype=np.dtype(np.float32)),
    }
    model = Manifest(dtypes=dtypes, specs=specs, size_bytes=10**6)
    private = described(**parts.parts()["privacy", "dp_fedavg"])
    assert costs.upload_bytes(private, model) == container(**{"0": ("F32", (30,))})
    both = {"0": ("F64", ()), "1": ("F32", (30,))}
    assert costs.upload_bytes(described(), model) == container(**both)


def step(base, size):
    return DifferenceRef(base=base, file=FileRef(digest=f"from {base}", size_bytes=size))


@pytest.mark.parametrize(
    ("held", "size"),
    [
        (set(), 1000 + 70),
        ({"model"}, 70),
        ({"model", "beside"}, 0),
        ({"beside"}, 1000),
        ({"first"}, 300 + 200 + 70),
        ({"first", "second"}, 200 + 70),
        ({"unknown"}, 1000 + 70),
    ],
)
def test_a_client_downloads_what_it_lacks(held, size):
    """The whole model, or the differences from the newest model that it has."""
    task = replace(
        described(),
        model=FileRef(digest="model", size_bytes=1000),
        received=FileRef(digest="beside", size_bytes=70),
        differences=(step("first", 300), step("second", 200)),
    )
    assert costs.download_bytes(task, held) == size


def test_differences_are_offered_while_they_are_shorter_than_the_model():
    """The newest one in any case."""
    steps = [step("a", 500), step("b", 400), step("c", 600)]
    assert costs.kept_differences(steps, 1500) == tuple(steps)
    assert costs.kept_differences(steps, 1499) == tuple(steps[1:])
    assert costs.kept_differences(steps, 10) == tuple(steps[2:])
    assert costs.kept_differences([], 10) == ()
