"""Another process that holds the lock of a state directory, as a running agent does."""

import subprocess
import sys

HOLD = """
import os, sys, time
from pathlib import Path
from fedloom.client.state.process_lock import only_agent
with only_agent(Path(sys.argv[1])):
    child = os.fork() if len(sys.argv) > 2 else 1
    if child:
        print(os.getpid(), child, flush=True)
    time.sleep(60)
"""


def hold(directory, *more):
    """Let another process hold the lock; returns it and its forked child."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory), *more], stdout=subprocess.PIPE, text=True
    )
    return process, int(process.stdout.readline().split()[1])
