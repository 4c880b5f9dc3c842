"""Trains, is killed, resumes, and compares the bits with an undisturbed training.

Usage: checkpointed.py FOLDER [CASE ...]. Each case is killed by SIGKILL in a child of this process,
right after a checkpoint; prints a line of JSON for each.
"""

import functools
import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedloom.client import Kind, Task, Weighting
from fedloom.client.agent.task_run import differences
from fedloom.client.torch import TorchClient, parameters
from fedloom.client.training.checkpoints import Checkpoints
from fedloom.client.training.client_rule import RuleContext, apply_rule
from fedloom.protocol import crash_points
from fedloom.strategies import Personal, RoundSettings, client_rule

CASES = {
    "plain": {},
    "patience": {"settings": {"patience": 3, "epochs": 6}},
    "steps": {"settings": {"epochs": None, "steps": 20}},
    "one batch": {"settings": {"batch_size": 0}},
    "cosine": {"how": {"schedule": "cosine"}},
    "momentum, linear": {
        "optimizer": functools.partial(torch.optim.SGD, momentum=0.9),
        "how": {"schedule": "linear"},
    },
    "bf16": {"how": {"precision": "bf16"}},
    "fp16": {"optimizer": functools.partial(torch.optim.SGD), "how": {"precision": "fp16"}},
    "momentum": {"optimizer": functools.partial(torch.optim.SGD, momentum=0.9)},
    "adam": {"optimizer": torch.optim.Adam},
    "fedprox": {"rule": ("fedprox", {"mu": 0.1})},
    "scaffold": {"rule": ("scaffold", {})},
    "feddyn": {"rule": ("feddyn", {"alpha": 0.1})},
    "fednova": {"rule": ("fednova", {})},
    "fednova, momentum, linear": {
        "rule": ("fednova", {}),
        "optimizer": functools.partial(torch.optim.SGD, momentum=0.9),
        "how": {"schedule": "linear"},
    },
    "mimelite": {"rule": ("mimelite", {"momentum": 0.9})},
    "qfedavg": {"rule": ("qfedavg", {"q": 1.0})},
    "fedrep": {"personal": Personal(keep=("5.*",), head_epochs=2)},
    "ditto": {"personal": Personal(name="ditto")},
    "apfl": {"personal": Personal(name="apfl")},
}
KILLS = (1, 3)


def model():
    """Dropout draws random numbers, and normalisation keeps statistics."""
    torch.manual_seed(0)
    layers = (nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 8))
    return nn.Sequential(*layers, nn.Linear(8, 2))


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(22, 3, generator=generator)
    return x, torch.randint(0, 2, (22,), generator=generator)


def task(case, path):
    """With values for every received and remembered slot of the rule."""
    rule = client_rule(*case.get("rule", ("plain", {})))
    rng = np.random.default_rng(1)
    params = parameters(model())

    def slot(scale=0.01):
        floats = {n: a for n, a in params.items() if a.dtype.kind == "f"}
        return {n: rng.normal(0, scale, a.shape).astype(np.float32) for n, a in floats.items()}

    local = RuleContext(
        received={name: slot() for name in rule.receives},
        memory={name: slot() for name in rule.remembers},
        personal=case.get("personal", Personal()),
    )
    settings = {"epochs": 4, "steps": None, "batch_size": 4, "learning_rate": 0.1}
    return Task(
        run="r",
        round=1,
        kind=Kind.TRAIN,
        settings=RoundSettings(**settings | case.get("settings", {})),
        rule=rule,
        config={},
        seed=7,
        deadline_s=60.0,
        weighting=Weighting.EXAMPLES,
        local=local,
        checkpoints=Checkpoints(path, every_s=0),
    )


def trained(case, path=None):
    """A digest of what a training leaves (sent, remembered, measured), and its steps."""
    asked = task(case, path)
    options = {"optimizer": case["optimizer"]} if "optimizer" in case else {}
    options |= case.get("how", {})
    batches = []

    def loss(output, target):
        batches.append(output.requires_grad)
        return cross_entropy(output, target)

    client = TorchClient(model(), data(), loss, **options)
    received = {name: value.copy() for name, value in parameters(model()).items()}
    params, num_examples, metrics = client.train(received, asked)
    parts = differences(params, parameters(model()), asked)
    settled = apply_rule(asked.rule, parts, asked.local, asked.settings, num_examples)
    digest = hashlib.sha256(repr((sorted(metrics.items()), settled.scalars)).encode())
    for part in sorted(settled.parts, key=lambda p: (p.group, p.tensor)):
        digest.update(np.ascontiguousarray(part.values).tobytes())
    for name, arrays in sorted(settled.memory.items()):
        for tensor, array in sorted(arrays.items()):
            digest.update(f"{name}/{tensor}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest(), sum(batches)


def killed(case, path, number):
    """Train in a child until it is killed at a checkpoint; returns how it ended."""
    pid = os.fork()
    if not pid:
        crash_points._ARMED["client.checkpoint.saved"] = number
        trained(case, path)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def main(folder, names):
    torch.set_num_threads(1)
    for name in names or CASES:
        case = CASES[name]
        undisturbed, all_steps = trained(case)
        for number in KILLS:
            path = folder / f"{name}.{number}.checkpoint"
            status = killed(case, path, number)
            resumed, steps = trained(case, path)
            found = {
                "case": f"{name}, killed at checkpoint {number}",
                "killed": os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL,
                "saved_steps": all_steps - steps,
                "same": resumed == undisturbed,
            }
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
