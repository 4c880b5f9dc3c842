"""The benchmark of large populations, run small."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scale.py"


@pytest.mark.longest
def test_it_runs_small():
    """Both cases, each with its events or clients, seconds and memory."""
    command = [sys.executable, str(SCRIPT), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "quick: 2,000, 1,000 a round, 1 round" in done.stdout
    assert "1,000" in done.stdout.replace("a round, 1 round", "")
