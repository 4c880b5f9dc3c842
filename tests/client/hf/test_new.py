"""`fedloom new --hf` and `fedloom up`, as they are typed."""

import re
import subprocess
import sys
import time

import pytest

pytest.importorskip("transformers", reason="needs transformers: make hf")
pytest.importorskip("sqlalchemy", reason="needs the server: make hf")

CLI = [sys.executable, "-m", "fedloom.cli.main"]


def typed(*words, cwd):
    """What a command printed."""
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.e2e
def test_two_commands_from_an_empty_folder_to_a_trained_model(tmp_path, capsys):
    """No download; the time is printed. Then the folder's own tests, and the check."""
    begun = time.monotonic()
    typed(*CLI, "new", "notes", "--hf", cwd=tmp_path)
    printed = typed(*CLI, "up", "notes", cwd=tmp_path)
    with capsys.disabled():
        print(f"\nnew and up --hf: {time.monotonic() - begun:.1f} s")
    before, after = re.search(r"^loss\s+(\S+)\s+(\S+)$", printed, re.MULTILINE).groups()
    assert float(after) < 0.8 * float(before)
    assert "pip install 'fedloom[hf]'" in printed
    assert (tmp_path / "notes" / "model.safetensors").stat().st_size > 100_000
    typed(sys.executable, "-m", "pytest", "-q", cwd=tmp_path / "notes")
    typed(*CLI, "client", "test", "my_client.py:client", cwd=tmp_path / "notes")
