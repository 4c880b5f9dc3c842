"""Memory of an agent beyond that of the training, as measured by the kernel."""

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


@pytest.mark.longest
@pytest.mark.skipif(sys.platform != "linux", reason="/proc/PID/clear_refs is Linux's")
@pytest.mark.parametrize("shape", [[], ["--one"]], ids=["three tensors", "one tensor"])
def test_an_agent_needs_less_memory_than_three_models(shape):
    """An agent, its training process and a server over rounds of an 80 MB model; also with torch.

    About 40 MB of the code's pages come with any model.
    """
    command = [sys.executable, str(SCRIPT), "--sizes", "80", *shape, "--cases", *CASES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
