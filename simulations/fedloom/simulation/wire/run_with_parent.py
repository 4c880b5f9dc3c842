"""Run a module until it ends, or until its parent process does, even by SIGKILL.

    python -m fedloom.simulation.wire.run_with_parent 4711 fedloom.cli.main server run

The child polls its parent's process id. A pipe would not work: other forks of the parent would hold
its other end. prctl exists only on Linux, and follows the parent's thread.
"""

import os
import runpy
import signal
import sys
import threading
import time

POLL_S = 0.5
STOP_S = 5.0
"""Seconds from SIGTERM, which a server handles, to the exit of the process."""


def main() -> None:
    """Run the module of the arguments."""
    parent, module, *words = sys.argv[1:]
    threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_S)
    os._exit(1)


if __name__ == "__main__":
    main()
