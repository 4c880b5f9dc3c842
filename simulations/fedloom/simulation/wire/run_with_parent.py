"""Run a module until it ends, or until its parent process does, even by SIGKILL.

    python -m fedloom.simulation.wire.run_with_parent 4711 fedloom.cli.main server run

The child polls its parent's process id. Not a pipe: what else the parent forks would hold its other
end, too. Nor prctl: it exists on Linux alone, and follows the parent's thread.
"""

import os
import runpy
import signal
import sys
import threading
import time

POLL_S = 0.5
STOP_S = 5.0
"""From SIGTERM, on which a server leaves its files whole, to SIGKILL for what ignores it."""


def main() -> None:
    """Run the module that the arguments name, with those that follow."""
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
