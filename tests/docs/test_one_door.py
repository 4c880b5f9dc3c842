"""docs/one-door.md: its commands make a configuration that haproxy accepts."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "one-door.md").read_text("utf-8")


def test_the_commands_make_a_configuration_for_one_server(tmp_path):
    """With the names of the page replaced everywhere but in comments."""
    if shutil.which("haproxy") is None:
        pytest.skip("haproxy is not installed")
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    made = tmp_path / "haproxy.cfg"
    commands = block.replace("/etc/haproxy/haproxy.cfg", str(made))
    found = subprocess.run(
        ["sh", "-e"], check=False, input=commands, text=True, cwd=ROOT, capture_output=True
    )
    assert found.returncode == 0, found.stderr
    lines = [line for line in made.read_text().splitlines() if not line.lstrip().startswith("#")]
    assert "example.org" not in "\n".join(lines)
    assert sum(line.lstrip().startswith("server ") for line in lines) == 3


@pytest.mark.parametrize("path", sorted((ROOT / "deploy" / "haproxy").iterdir()))
def test_the_page_names_the_limits_of_the_file(path):
    """Of new connections, of connections at once, of those of enrolment, and the waits."""
    text = path.read_text()
    rate, total, enrolment = re.findall(r"table_conn_\w+\(\w+\) ge (\d+)", text)
    assert f"{rate} new connections in ten seconds" in PAGE
    assert f"{int(total):,} at once, and to {enrolment} at once of" in PAGE
    assert "conn_rate(10s)" in text
    assert "inspect-delay 5s" in text
    assert "timeout client 5m" in text
