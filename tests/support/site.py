"""Sites of several real processes: the program of each rank, and how to start them."""

import json
import os
import subprocess
import sys
from pathlib import Path

from support.patience import PATIENCE_S
from support.ports import steady_port

ROOT = Path(__file__).parents[2]


def start_each(commands, *, environment=None, bare=False):
    """Start the ranks of a site by the environment that torchrun would give them.

    Args:
        commands: arguments of the interpreter, of one rank each.
        environment: more of it.
        bare: leave out what torchrun sets: this is torchrun.
    """
    port = steady_port()
    path = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    shared = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **(environment or {})}
    ranks = []
    for rank, arguments in enumerate(commands):
        place = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(len(commands)),
        }
        ranks.append(
            subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                env=shared if bare else {**shared, **place},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return ranks


def finish(ranks):
    """Wait for all ranks; returns their exit codes and what they printed."""
    try:
        outputs = [
            "" if rank.stdout.closed else rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks
        ]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            rank.stdout.close()
    return [rank.returncode for rank in ranks], outputs


def run_cases(names, folder):
    """Let two ranks run the cases of `support.site_cases`; returns the results of rank 0."""
    out = Path(folder) / "found.json"
    codes, outputs = finish(start_each([("-m", "support.site_cases", out, *names)] * 2))
    assert codes == [0, 0], "\n".join(outputs)
    return json.loads(out.read_text())
