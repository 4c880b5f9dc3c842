"""Free memory of a machine, and the priority of a thread."""

import os
import sys
import threading

import numpy as np
import pytest

from fedloom.client.budgets import machine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


def lay(root, meminfo=None, **cgroup):
    if meminfo is not None:
        (root / "proc").mkdir(exist_ok=True)
        (root / "proc/meminfo").write_text(meminfo)
    folder = root / "sys/fs/cgroup"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in cgroup.items():
        (folder / f"memory.{name}").write_text(f"{text}\n")
    return root


def test_a_smaller_limit_of_the_container_counts(tmp_path):
    """Cached files can be evicted, so they count as free."""
    lay(tmp_path, "MemTotal: 9999 kB\nMemAvailable:    1000 kB\n")
    assert machine.available_bytes(tmp_path) == 1_024_000
    lay(tmp_path, max="500000", current="300000", stat="anon 5\ninactive_file 100000")
    assert machine.available_bytes(tmp_path) == 300_000
    lay(tmp_path, max="max")
    assert machine.available_bytes(tmp_path) == 1_024_000


@pytest.mark.parametrize("meminfo", [None, "", "MemAvailable: much kB"])
def test_unreadable_memory_figures_impose_no_limit(tmp_path, meminfo):
    assert machine.available_bytes(lay(tmp_path, meminfo)) == float("inf")


def test_this_process_has_memory():
    """From the real /proc."""
    assert 10e6 < machine.resident_bytes() < machine.available_bytes() + 1e12


def test_only_the_training_thread_gets_a_lower_priority():
    """And the threads that it starts."""
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    seen = []

    def work():
        machine.step_back(min(19, before + 3), idle_io=True)
        child = threading.Thread(target=lambda: seen.append(os.getpriority(os.PRIO_PROCESS, 0)))
        child.start()
        child.join()
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen[1] == min(19, before + 3)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


def test_openblas_keeps_to_the_thread_limit():
    """If numpy has loaded it."""
    libraries = machine._loaded("openblas")
    if not libraries:
        pytest.skip("numpy is built with another library")
    import ctypes

    library = ctypes.CDLL(next(iter(libraries)))
    names = [n.replace("set", "get") for n in machine._SETTERS]
    get = next(getattr(library, n) for n in names if hasattr(library, n))
    before = get()
    try:
        machine.use_threads(1)
        assert get() == 1
        np.ones((64, 64)) @ np.ones((64, 64))
    finally:
        machine.use_threads(before)
