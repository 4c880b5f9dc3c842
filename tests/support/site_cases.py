"""What the ranks of a site do in tests, and what one process does alone: the same code.

Run as a program by each rank: `python -m support.site_cases OUT.json CASE…`.
"""

import json
import shutil
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedloom.client.api import Kind, Task, Weighting
from fedloom.client.torch import TorchClient, lora, parameters
from fedloom.client.training.checkpoints import Checkpoints
from fedloom.client.training.client_rule import RuleContext
from fedloom.strategies import Personal, RoundSettings, client_rule

EXAMPLES, HELD_OUT, INPUTS, CLASSES = 103, 301, 12, 4


def data(num_examples, seed):
    """Examples with structure, so that training moves."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_examples, INPUTS, generator=generator)
    return x, (x[:, :CLASSES] + 0.3 * x[:, 4:8]).argmax(dim=1)


class Thrower(nn.Module):
    """Fails on the rank that gets the marked example."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        if (x[:, 0] > 1e6).any():
            raise ValueError("a marked example")
        return self.module(x)


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def normed():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(INPUTS, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES)
    )


def unused():
    torch.manual_seed(0)
    module = linear()
    module.extra = nn.Linear(2, 2)
    module.forward = lambda x: module[2](module[1](module[0](x)))
    return module


def adapted():
    torch.manual_seed(0)
    return lora(linear(), rank=2)


def dropping():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, 16), nn.Dropout(0.5), nn.Linear(16, CLASSES))


def settings(**changed):
    return RoundSettings(
        **{"epochs": 2, "steps": None, "batch_size": 10, "learning_rate": 0.1, **changed}
    )


def filled(module, value):
    return {n: np.full(a.shape, value, np.float32) for n, a in parameters(module).items()}


CASES = {
    "plain": {},
    "clip": {"settings": {"clip_norm": 0.05}},
    "steps": {"settings": {"epochs": None, "steps": 7}},
    "one batch": {"settings": {"batch_size": 0, "epochs": 3}},
    "patience": {"settings": {"epochs": 12, "patience": 1, "learning_rate": 1.0}},
    "cosine": {"client": {"schedule": "cosine"}},
    "adapters": {"module": adapted},
    "prox": {"rule": ("fedprox", {"mu": 0.5})},
    "scaffold": {"rule": ("scaffold", {}), "slots": True},
    "mime": {"rule": ("mimelite", {"momentum": 0.5}), "slots": True},
    "loss first": {"rule": ("qfedavg", {"q": 0.5})},
    "norm": {"module": normed},
    "norm of few": {"module": normed, "num_examples": 102},
    "norm of one": {"module": normed, "num_examples": 101},
    "empty share": {"num_examples": 101},
    "head first": {"personal": {"keep": ("2.*",), "head_epochs": 1}},
    "only": {"settings": {"only": ("2.*",)}},
    "width": {"settings": {"widths": (0.5,)}},
    "uneven": {"settings": {"batch_size": 5}},
    "own model": {"personal": {"name": "ditto"}},
    "unused": {"module": unused},
    "throws": {"throws": True},
    "resumed": {
        "module": dropping,
        "client": {"schedule": "cosine"},
        "settings": {"epochs": 4, "patience": 3},
        "resumes": True,
    },
    "resumed in the body": {
        "module": dropping,
        "personal": {"keep": ("2.*",), "head_epochs": 1},
        "rule": ("fedprox", {"mu": 0.5}),
        "settings": {"epochs": 3},
        "resumes": True,
    },
    "plain again": {},
}
"""What differs from plain local training."""

LONG = {"adam": {"optimizer": torch.optim.Adam, "settings": {"learning_rate": 0.01}}}
"""What imports a lot."""


def made(case):
    """The client and the task of a case."""
    spec = {**CASES, **LONG}[case]
    module = spec.get("module", linear)()
    x, y = data(spec.get("num_examples", EXAMPLES), 1)
    if spec.get("throws"):
        module = Thrower(module)
        x[50, 0] = 2e6
    client = TorchClient(
        module,
        (x, y),
        cross_entropy,
        evaluate=data(HELD_OUT, 2),
        optimizer=spec.get("optimizer", _default()),
        **spec.get("client", {}),
    )
    rule = client_rule(*spec.get("rule", ("plain", {})))
    local = RuleContext(personal=Personal(**spec.get("personal", {})))
    if spec.get("slots"):
        local.received = {slot: filled(module, 0.01) for slot in rule.receives}
        local.memory = {slot: filled(module, -0.02) for slot in rule.remembers}
    task = Task(
        run="r",
        round=1,
        client="site",
        kind=Kind.TRAIN,
        settings=settings(**spec.get("settings", {})),
        rule=rule,
        config={},
        seed=7,
        deadline_s=60.0,
        weighting=Weighting.EXAMPLES,
        local=local,
    )
    return client, task


def _default():
    from fedloom.client.torch.loop import SGD

    return SGD


def do(client, task):
    """Train and evaluate; returns the results as JSON numbers."""
    start = {n: np.array(a) for n, a in parameters(client.model).items()}
    try:
        new, num_examples, metrics = client.train(start, task)
    except Exception as error:  # noqa: BLE001 - what is looked at
        return {"failed": f"{type(error).__name__}: {error}"}
    new = {n: np.array(getattr(v, "values", v)) for n, v in new.items()}
    after = {**start, **{n: v for n, v in new.items() if v.shape == start[n].shape}}
    counted, evaluation = client.evaluate(after, task)
    return {
        "params": {n: v.tolist() for n, v in new.items()},
        "num_examples": num_examples,
        "metrics": metrics,
        "counted": counted,
        "evaluation": evaluation,
        "steps": task.local.steps,
        "initial_loss": task.local.initial_loss,
        "gradient": {n: g.tolist() for n, g in task.local.full_gradient.items()},
    }


class Snapped(Checkpoints):
    """Keeps every state, and a copy of the second one."""

    def __init__(self, path):
        super().__init__(path, 0.0)
        self.path, self.count = path, 0

    def save(self, write):
        super().save(write)
        self.count += 1
        if self.count == 2:
            shutil.copy(self.path, self.path.with_suffix(".second"))


def resume(client, task, folder):
    """Train in one go, and again from the second checkpoint; returns both results."""
    path = Path(folder) / f"{task.seed}.checkpoint"
    snapped = Snapped(path)
    counted, real, start = [], client._loss, deepcopy(client.model.state_dict())

    def counting(output, target):
        counted.append(len(target))
        return real(output, target)

    client._loss = counting
    whole = do(client, replace(task, checkpoints=snapped))
    steps = len(counted)
    path.with_suffix(".second").replace(path)
    client.model.load_state_dict(start)
    again = do(client, replace(task, checkpoints=Checkpoints(path, 1e9)))
    return {"whole": whole, "again": again, "calls": [steps, len(counted) - steps]}


def main(out, names):
    """One rank of a site of cases: each case is a client that joins the same group."""
    from fedloom.client.torch.site import follow, join
    from fedloom.client.training.ranks import ranks

    place = ranks()
    first, _ = made("plain")
    group = join(first, place)
    found = {}
    for name in names:
        client, task = made(name)
        client.group = group
        if place.rank == 0:
            resumes = CASES.get(name, {}).get("resumes")
            found[name] = resume(client, task, Path(out).parent) if resumes else do(client, task)
            group._store.set(f"order/{group._number}", "stop")
        else:
            follow(client, group)
        group._number += 1
        group.sums([0.0])
    group.close()
    if place.rank == 0:
        Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
