"""The benchmark of GPUs, run small and without one; and its judgement, on models made here."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPT = BENCHMARKS / "gpu.py"


@pytest.fixture
def gpu(monkeypatch):
    """The judgement as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu_agreement")


def leave(gpu, folder, change=(), **models):
    """Models as the ways of a quick 2NN leave them."""
    for way in gpu.ways("2NN", "cpu", quick=True):
        weight = np.array([[1.0, -4.0]], np.float32) + dict(change).get(way.name, 0)
        for after in ("", "-first"):
            np.savez(gpu.saved(folder, way, after), weight=weight, **models)


def test_equal_models_agree(gpu, tmp_path):
    """Each way beside one worker, or beside the resident kernel in float32."""
    leave(gpu, tmp_path)
    rows = gpu.agreement("2NN", "cpu", tmp_path, quick=True)
    assert {row[3] for row in rows} == {"same bits", "agrees", "coarser"}
    assert len(rows) == len(list(gpu.ways("2NN", "cpu", quick=True))) - 1


def test_one_bit_of_another_worker_differs(gpu, tmp_path):
    leave(gpu, tmp_path, {"fedloom resident, bf16, 2": np.float32(2**-20)})
    rows = gpu.agreement("2NN", "cpu", tmp_path, quick=True)
    assert [row[0] for row in rows if row[3] == "DIFFERS"] == ["fedloom resident, bf16, 2"]


@pytest.mark.parametrize(("change", "verdict"), [(0.015, "agrees"), (0.025, "DIFFERS")])
def test_kernels_agree_within_a_two_hundredth_of_the_largest_weight(gpu, tmp_path, change, verdict):
    names = ("fedloom batched, float32, 1", "fedloom batched, float32, 2")
    leave(gpu, tmp_path, dict.fromkeys(names, np.float32(change)))
    rows = gpu.agreement("2NN", "cpu", tmp_path, quick=True)
    assert {row[0]: row[3] for row in rows}[names[0]] == verdict


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
@pytest.mark.long
def test_without_a_card_it_says_so():
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "finds no CUDA device; --device cpu --quick" in done.stderr


@pytest.mark.longest
def test_the_whole_of_it_runs_small_on_a_cpu(tmp_path):
    """Every kernel that a CPU has, one and two workers, bfloat16, and the naive loop."""
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert list(found) == ["2NN, quick", "CNN, quick", "ResNet-18, quick"]
    for figures in found.values():
        rows = figures["agreement"]
        assert "same bits" in {row[3] for row in rows}
        assert figures["clients_per_s"].keys() == figures["memory_mb"].keys()
        assert "naive loop" in figures["clients_per_s"]
    table = (tmp_path / "gpu.md").read_text()
    assert "| fedloom channels-last, float32, 1 |" in table
    assert "| fedloom resident, bf16, 2 | 1 worker | 0 | same bits |" in table
