"""Failures of worker processes at start, at end and in between."""

import errno
import gc
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fedloom.client import Client
from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.simulation import config
from fedloom.simulation.api import simulate
from fedloom.simulation.output.files import OutputFolder
from fedloom.simulation.workers import setup
from fedloom.simulation.workers.failures import explained
from fedloom.simulation.workers.pool import WorkerPool

SETTINGS = {
    "rounds": 2,
    "data": {"source": "synthetic", "clients": 6, "examples": 300},
    "model": {"name": "logistic"},
    "cohort": {"goal": 4},
    "train": {"epochs": 1, "batch_size": 10, "learning_rate": 0.1},
    "engine": {"workers": 2},
}

UNGUARDED = """
from fedloom.simulation.workers.pool import WorkerPool
from fedloom.strategies import Partial

def make(number):
    raise AssertionError("nobody comes here")

data = bytes(10_000_000)  # more than a pipe holds
make.data = data

class Make:
    def __init__(self): self.data = data
    def __call__(self, number): make(number)

WorkerPool(Make(), 1, names=["worker 0"], model={}, empty=Partial({}, 0), fork=False)
"""


@pytest.mark.long
def test_a_script_without_a_guard_is_an_error(tmp_path):
    """Spawned workers import the script; one that ends there must not block its parent."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 1
    assert "UsageError: worker 0 ended at its start with exit code 1" in ended.stderr
    assert 'if __name__ == "__main__":' in ended.stderr


@pytest.mark.long
def test_spawned_workers_have_the_bits_of_forked_ones(monkeypatch):
    experiment = config.load(SETTINGS)
    forked = simulate(experiment, show=False)
    monkeypatch.setattr(setup, "WorkerPool", partial(_spawned, WorkerPool))
    assert simulate(experiment, show=False).digest == forked.digest


def _spawned(pool, *arguments, fork, **settings):
    assert fork
    return pool(*arguments, fork=False, **settings)


@pytest.mark.long
def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(OutputFolder, "write_model", full)
    with pytest.raises(UnavailableError, match=r"No room for the results in .*first: No space"):
        simulate(config.load(SETTINGS), out=tmp_path / "first", show=False)
    monkeypatch.undo()
    assert simulate(config.load(SETTINGS), out=tmp_path / "first", resume=True, show=False).records


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError(errno.ENOSPC, "full"), UnavailableError, "Free disk space"),
        (MemoryError(), UnavailableError, "Lower engine.workers"),
        (OSError(errno.EROFS, "read-only"), UsageError, "failed: OSError: .*read-only"),
        (ValueError(), UsageError, "failed: ValueError. Fix"),
    ],
    ids=["disk", "memory", "other", "silent"],
)
def test_a_workers_error_has_advice(error, kind, said):
    with pytest.raises(kind, match=said) as found:
        raise explained(error, "The training of client-1")
    assert type(error).__name__ in found.value.__notes__[0]


def test_workers_leave_what_they_inherit_out_of_collections():
    gc.unfreeze()
    try:
        result = simulate(replace(config.load(SETTINGS), client=Counting), show=False)
    finally:
        gc.freeze()  # as the tests began
    assert all(record.training["frozen"] > 10_000 for record in result.records)


class Counting(Client):
    """A client that trains nothing and counts the frozen objects of its process."""

    def __init__(self, name):
        """Without data."""

    def train(self, params, task):
        return params, 1, {"frozen": gc.get_freeze_count()}


def test_an_invalid_result_in_a_worker_raises_usage_error():
    broken = replace(config.load(SETTINGS), client=Forgetful)
    with pytest.raises(UsageError, match=r"Expected train to return \(params, num"):
        simulate(broken, show=False)


class Forgetful:
    """A client that returns half of the required values."""

    def __init__(self, _):
        pass

    def train(self, params, _):
        """Omit the metrics."""
        return params, 1


def test_a_compiler_without_its_own_cache_uses_torchs(tmp_path, monkeypatch):
    """If the user's cache is not writable, such as in a container."""
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    compiled = pytest.importorskip("fedloom.simulation.kernels.compiled")
    monkeypatch.setattr("torch.compile", lambda step, **_: step)
    compiled._compile(print)
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled._compile(print)
    assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).is_dir()
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
