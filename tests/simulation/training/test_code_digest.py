"""Digests of code follow from what it does: equal in every process, different after an edit."""

import functools
import os
import subprocess
import sys
from dataclasses import dataclass
from textwrap import dedent

import numpy as np
import pytest
import torch

from fedloom.simulation.metrics import by_group
from fedloom.simulation.training.code_digest import arrays_digest, code_digest

PROGRAM = """
import functools, math
import numpy as np, torch
from dataclasses import dataclass
from fedloom.simulation.training.code_digest import code_digest

RATE, NAMES = 0.5, ("a", "b")
counted = []

@functools.lru_cache
def table(n):
    return {"one", "two", "three"} & {"two", str(n)}

@dataclass(frozen=True)
class Blur:
    width: int = 3
    def __call__(self, x):
        return x * RATE if "c" in {"a", "b", "c"} else helper(x)

def helper(x):
    counted.append(x)
    return [math.sqrt(v) for v in table(2) if v in ("x", "y")]

print(code_digest((Blur(), helper, functools.partial(helper, x=1), torch.nn.Dropout(0.5))))
"""


def made(source, name="f", **scope):
    """A function of a program's own text."""
    names = {"__name__": "__main__", "np": np, **scope}
    exec(dedent(source), names)
    return names[name]


@pytest.mark.long
def test_a_program_has_one_digest_in_every_process(tmp_path):
    """Also with other seeds of hashes, which order sets."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    digests = {
        subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(x): return x + 1", "def f(x): return x + 2"),
        ("def f(x): return x.min()", "def f(x): return x.max()"),
        ("def f(x, by=1): return x * by", "def f(x, by=2): return x * by"),
        ("def f(x, *, by=1): return x * by", "def f(x, *, by=2): return x * by"),
        ("C = 1\ndef f(x): return x * C", "C = 2\ndef f(x): return x * C"),
        ("C = (1, 2)\ndef f(x): return C", "C = (1, 3)\ndef f(x): return C"),
        ("C = np.ones(3)\ndef f(x): return x * C", "C = np.zeros(3)\ndef f(x): return x * C"),
        (
            "def g(x): return x\ndef f(x): return [g(v) for v in x]",
            "def g(x): return -x\ndef f(x): return [g(v) for v in x]",
        ),
        (
            "class f:\n def __call__(self, x): return x",
            "class f:\n def __call__(self, x): return -x",
        ),
        (
            "class f:\n rate = 1\n def __call__(self, x): return x * self.rate",
            "class f:\n rate = 2\n def __call__(self, x): return x * self.rate",
        ),
        (
            "def make(by):\n def inner(x): return x * by\n return inner\nf = make(1)",
            "def make(by):\n def inner(x): return x * by\n return inner\nf = make(2)",
        ),
        (
            "class A:\n def __init__(self, by): self.by = by\n def go(self): ...\nf = A(1)",
            "class A:\n def __init__(self, by): self.by = by\n def go(self): ...\nf = A(2)",
        ),
    ],
)
def test_an_edit_changes_the_digest(one, other):
    assert code_digest(made(one)) == code_digest(made(one))
    assert code_digest(made(one)) != code_digest(made(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(x): return x + 1", "\n\n# why\ndef f(x):\n    return (x +\n        1)"),
        ("def f(x): return x", "def unused(): return 0\ndef f(x): return x"),
        ("seen = []\ndef f(x): seen.append(x)", "seen = [1]\ndef f(x): seen.append(x)"),
        ("class f:\n def go(self): return 1", "\n\n\nclass f:\n\n def go(self): return 1"),
    ],
)
def test_other_edits_do_not(one, other):
    """Layout, code that is not used, and what a program collects while it runs."""
    assert code_digest(made(one)) == code_digest(made(other))


@dataclass(frozen=True)
class Settings:
    size: int


def test_settings_of_objects_count():
    """Of partials, frozen dataclasses, modules, and functions that installed packages made."""

    def metric(outputs, targets):
        return 0.0

    def other(outputs, targets):
        return 1.0

    groups = np.arange(4)
    pairs = [
        (functools.partial(int, base=2), functools.partial(int, base=3)),
        (Settings(1), Settings(2)),
        (torch.nn.Dropout(0.5), torch.nn.Dropout(0.4)),
        (by_group(metric, groups), by_group(other, groups)),
        (by_group(metric, groups), by_group(metric, groups[::-1])),
        (torch.nn.functional.mse_loss, torch.nn.functional.l1_loss),
        (torch.tensor([1.0]), torch.tensor([2.0])),
        (None, 0),
    ]
    for first, second in pairs:
        assert code_digest(first) != code_digest(second), first


def test_any_object_has_a_digest():
    """Of code that holds something odd, such as itself, a file or a sparse tensor."""

    class Odd:
        def __init__(self):
            self.own = self
            self.file = sys.stdout
            self.sparse = torch.eye(2).to_sparse()
            self.half = torch.ones(2, dtype=torch.bfloat16)
            self.texts = np.array(["a", None], dtype=object)
            self.step = lambda: self

    assert len(code_digest(Odd())) == 64


def test_arrays_differ_by_values_shapes_and_types():
    big = np.arange(3 << 20, dtype=np.int64)
    changed = big.copy()
    changed[len(big) // 2 :] += 1
    arrays = [
        np.zeros(4), np.zeros((2, 2)), np.zeros(4, np.float32), np.ones(4), np.float64(1),
        np.zeros(0), np.zeros((0, 2)), big, changed,
    ]  # fmt: skip
    assert len({arrays_digest([array]) for array in arrays}) == len(arrays)
    assert arrays_digest([big]) == arrays_digest([big.copy()])
