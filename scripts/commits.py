"""Other commits of this repository beside this one: worktrees, and processes that import them."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
ROOTS = ("server", "client_sdk", "strategies", "simulations")


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """A worktree of a commit, removed in the end."""
    _git("worktree", "add", "--quiet", "--detach", str(folder), commit)
    try:
        yield folder
    finally:
        _git("worktree", "remove", "--force", str(folder))


def environment(worktree: Path) -> dict[str, str]:
    """Of a process that imports a worktree's product and computes in one thread."""
    roots = os.pathsep.join(str(worktree / root) for root in ROOTS)
    return {**os.environ, "PYTHONPATH": roots, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}


def _git(*words: str) -> None:
    subprocess.run(["git", *words], cwd=REPOSITORY, check=True)
