"""Runs a module until it ends, or until the process that wants it does, however that came about.

    python -m fedloom.simulation.demo.kept 4711 fedloom.cli.main server run

A parent that is killed tells nobody, so its child looks whether it still is whose child it is. Not
by a pipe: what else the parent forks would hold its other end too. Nor by prctl: it is Linux' own,
and goes by the parent's thread.
"""

import os
import runpy
import signal
import sys
import threading
import time

LOOK_S = 0.5
STOP_S = 5.0
"""From SIGTERM, by which a server leaves its files whole, to the end of who does not heed it."""


def main() -> None:
    """Run the module that the arguments name, with those that follow."""
    parent, module, *words = sys.argv[1:]
    threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_S)
    os._exit(1)


if __name__ == "__main__":
    main()
