"""What a machine has free, and how a thread steps back."""

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


def test_the_container_counts_where_it_has_less(tmp_path):
    """Cached files can be let go, so they are free."""
    lay(tmp_path, "MemTotal: 9999 kB\nMemAvailable:    1000 kB\n")
    assert machine.available_bytes(tmp_path) == 1_024_000
    lay(tmp_path, max="500000", current="300000", stat="anon 5\ninactive_file 100000")
    assert machine.available_bytes(tmp_path) == 300_000
    lay(tmp_path, max="max")
    assert machine.available_bytes(tmp_path) == 1_024_000


@pytest.mark.parametrize("meminfo", [None, "", "MemAvailable: much kB"])
def test_what_cannot_be_read_limits_nothing(tmp_path, meminfo):
    """Rather a training than a guess."""
    assert machine.available_bytes(lay(tmp_path, meminfo)) == float("inf")


def test_this_process_has_memory():
    """From the real /proc."""
    assert 10e6 < machine.resident_bytes() < machine.available_bytes() + 1e12


def test_one_thread_steps_back_and_the_others_do_not():
    """The agent itself stays as quick as it was."""
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


def test_linear_algebra_keeps_to_the_threads():
    """Of the OpenBLAS that numpy has loaded, where it has."""
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
