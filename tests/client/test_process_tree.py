"""Processes with their descendants, compared with psutil."""

import subprocess
import sys
import time

import psutil
import pytest

from fedloom.client import process_tree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")

BUSY = "x = bytearray(30_000_000); print(flush=True)\nwhile True: sum(range(10_000))"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"


@pytest.fixture
def parent():
    """A process with a busy child, which has allocated 30 MB."""
    made = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    made.stdout.readline()
    yield made
    if made.poll() is None:
        for each in (*psutil.Process(made.pid).children(recursive=True), made):
            each.kill()
    made.wait()
    made.stdout.close()


def test_descendants_and_their_memory_and_time(parent):
    """Memory is less than psutil's sum of resident sets, in which shared pages count twice."""
    child = psutil.Process(parent.pid).children()[0]
    family = process_tree.tree(parent.pid)
    assert family == [parent.pid, child.pid]
    shared = sum(psutil.Process(pid).memory_full_info().pss for pid in family)
    assert process_tree.memory_bytes(family) == pytest.approx(shared, rel=0.05)
    assert process_tree.memory_bytes([child.pid]) > 30e6

    def used():
        return sum(process_tree.processor_ticks(family).values())

    before, deadline = used(), time.monotonic() + 60
    while used() < before + 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    least = used()
    times = [psutil.Process(pid).cpu_times() for pid in family]
    ticks = round(100 * sum(each.user + each.system for each in times))
    assert least <= ticks <= used()  # they go on between the two readings


def test_only_the_process_that_was_seen_is_killed(parent):
    """A process id that another process has since got is left alone."""
    seen = process_tree.births(process_tree.tree(parent.pid))
    process_tree.kill({pid: f"{int(born) - 1}" for pid, born in seen.items()})
    time.sleep(0.2)
    assert parent.poll() is None
    process_tree.kill(seen)
    assert parent.wait(60) == -9
    (child,) = seen.keys() - {parent.pid}
    psutil.wait_procs([psutil.Process(child)] if psutil.pid_exists(child) else [], timeout=60)
    assert not psutil.pid_exists(child)


def test_a_process_that_has_ended_is_nothing():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert process_tree.tree(ended.pid) == [ended.pid]
    assert process_tree.births([ended.pid]) == {}
    assert process_tree.memory_bytes([ended.pid]) == 0
    assert process_tree.processor_ticks([ended.pid]) == {}
