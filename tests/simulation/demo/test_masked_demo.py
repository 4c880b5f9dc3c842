"""The masked demo: real agents, and what its server could see beside what it could not."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedloom.client.owner import journal


@pytest.mark.longest
@pytest.mark.long
def test_a_masked_demo_prints_what_its_server_could_see(tmp_path):
    """Eight devices, of which the ledger has sums alone; each journal says what left."""
    command = [str(Path(sys.executable).with_name("fedloom")), "demo", "--masked", "--rounds", "2"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    shown = " ".join(done.stdout.split())
    assert re.search(r"[23] sums of the updates of 8 devices", shown), shown[-1500:]
    assert "it could not see" in shown
    assert "needed 6 to its end" in shown
    assert tomllib.loads((tmp_path / "site-1/policy.toml").read_text())["masking"]["required"]
    texts = [e["text"] for e in journal.read(tmp_path / "site-1/client-state")]
    assert any("readable only as part of a sum of at least 6 devices" in text for text in texts)
