"""Stop a cluster: end the processes that it started, and remove its folder."""

import shutil
import signal
from pathlib import Path

from cluster.processes import Processes
from cluster.settings import REPLICAS, Settings

STARTER = "make"
"""Name of the record of the command that starts a cluster, while it runs."""

_LAST = ("haproxy", *reversed(REPLICAS), "s3", "postgresql")


def stop(folder: Path, *, keep: bool) -> None:
    """Stop the cluster of a folder, also what a command left that was killed.

    Args:
        folder: of the cluster.
        keep: whether the folder stays, without records.

    Raises:
        UsageError: it is no cluster's folder.
    """
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()  # of a command that was killed at its very beginning
    if not folder.exists():
        print(f"There is no cluster in {folder}.")
        return
    Settings.read(folder)  # only a cluster's folder is removed
    ended = stop_all(Processes(folder))
    print(f"{ended} processes ended.")
    if keep:
        shutil.rmtree(folder / "pids", ignore_errors=True)
        print(f"{folder} is kept; `make cluster-stop` removes it.")
    else:
        shutil.rmtree(folder)
        print(f"{folder} is removed.")


def stop_all(processes: Processes) -> int:
    """End all processes of a cluster; how many there were.

    What starts others is first, then devices, and each part before those that it needs.
    """
    starter = [each for each in processes.all() if each.name == STARTER and each.is_alive]
    processes.stop(starter, signal.SIGKILL)
    alive = [each for each in processes.all() if each.is_alive]
    processes.stop([each for each in alive if each.name not in _LAST])
    for name in _LAST:
        processes.stop([each for each in alive if each.name == name], _signal_of(name))
    return len(starter) + len(alive)


def _signal_of(name: str) -> signal.Signals:
    return signal.SIGINT if name == "postgresql" else signal.SIGTERM
