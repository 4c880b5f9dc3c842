"""Shell completion, without loading the commands."""

import os
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main


def _completed(words):
    """The completions after these words, and the modules that were imported."""
    env = {**os.environ, "_FEDLOOM_COMPLETE": "bash_complete", "COMP_WORDS": f"fedloom {words}",
           "COMP_CWORD": str(len(words.split(" ")))}  # fmt: skip
    code = (
        "import sys; from fedloom.cli.main import main\n"
        "try: main(prog_name='fedloom')\n"
        "finally: print(sorted(sys.modules), file=sys.stderr)"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    return [line.partition(",")[2] for line in done.stdout.splitlines()], done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "some"),
    [
        ("", {"server", "run", "round", "top"}),
        ("ro", {"round"}),
        ("round cl", {"close"}),
        ("client qua", {"quarantine"}),
        ("run pause --y", {"--yes"}),
        ("completion ", {"bash", "zsh", "fish"}),
    ],
)
def test_completion_has_no_heavy_imports(words, some):
    """Commands, subcommands, options and choices; rich and FastAPI are not imported."""
    found, loaded = _completed(words)
    assert some <= set(found)
    assert "'rich'" not in loaded
    assert "fastapi" not in loaded


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_accepts_its_script(shell):
    """The script is printed, and parsed by the shell if it is installed."""
    result = CliRunner().invoke(main, ["completion", shell])
    assert "_FEDLOOM_COMPLETE" in result.output
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=result.output, text=True, check=False)
        assert done.returncode == 0
