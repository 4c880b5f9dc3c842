"""What an agent needs above its training's own memory, as the kernel counts it."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "agent_memory.py"
CASES = (
    "plain",
    "int8, error kept",
    "top_k, error kept",
    "scaffold",
    "scaffold, int8, error kept",
    "models as int8 differences",
    "boxes, int8, error kept",
    "owner clips",
    "torch, plain",
    "torch, fedprox",
    "torch, ifca",
    "torch, scaffold",
    "torch, feddyn",
    "torch, mimelite",
)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="/proc/PID/clear_refs is Linux's")
@pytest.mark.parametrize("shape", [[], ["--one"]], ids=["three tensors", "one tensor"])
def test_it_stays_under_three_models(shape):
    """A real agent and a real server, a model of 40 MB, one round after another; also by torch."""
    command = [sys.executable, str(SCRIPT), "--sizes", "40", *shape, "--cases", *CASES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
