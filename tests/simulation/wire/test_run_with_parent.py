"""Processes that end when their parent ends, even by SIGKILL."""

import os
import subprocess
import sys
from textwrap import dedent

import psutil
import pytest

PARENT = """
import os, subprocess, sys, time
words = [sys.executable, "-c", sys.argv[1], str(os.getpid()), "timeit", *sys.argv[2:]]
print(subprocess.Popen(words, stdout=subprocess.PIPE).stdout.readline().decode(), flush=True)
time.sleep(600)
"""
KEPT = (
    "from fedloom.simulation.wire import run_with_parent as module; "
    "module.POLL_S = module.STOP_S = 0.1; module.main()"
)
SAYS = "print('there', flush=True)"
SLEEPS = "import time; time.sleep(600)"
LEAVES = "import os, signal; signal.signal(15, lambda *_: (os.mkdir({!r}), os._exit(0)))"
HOLDS_OUT = "import signal; signal.signal(15, signal.SIG_IGN)"


def ended(processes):
    """Whether all processes end within 30 s."""
    _, alive = psutil.wait_procs(processes, timeout=30)
    for process in alive:
        process.kill()
    return not alive


def orphaned(prepared):
    """A process whose parent was killed."""
    statements = ("-n1", "-s", f"{prepared}; {SAYS}", SLEEPS)
    words = [sys.executable, "-c", PARENT, KEPT, *statements]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline().strip() == b"there"
        (child,) = psutil.Process(parent.pid).children()
        parent.kill()
    return child


@pytest.mark.long
def test_a_killed_parent_ends_its_process_by_sigterm(tmp_path):
    """Its signal handler runs."""
    left = tmp_path / "left"
    assert ended([orphaned(LEAVES.format(str(left)))])
    assert left.exists()


@pytest.mark.long
def test_a_process_that_ignores_sigterm_is_ended():
    assert ended([orphaned(HOLDS_OUT)])


def test_a_process_ends_if_its_parent_ended_first():
    """The first poll detects it."""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    words = [sys.executable, "-c", KEPT, str(gone.pid), "timeit", "-n1", SLEEPS]
    with subprocess.Popen(words) as child:
        assert ended([psutil.Process(child.pid)])


def test_a_module_runs_as_with_python():
    """With its arguments, output and exit code."""
    module = [sys.executable, "-m", "fedloom.simulation.wire.run_with_parent", str(os.getpid())]
    words = ["fedloom.cli.main", "nothing"]
    kept = subprocess.run([*module, *words], capture_output=True, check=False)
    plain = subprocess.run([sys.executable, "-m", *words], capture_output=True, check=False)
    assert (kept.returncode, kept.stdout, kept.stderr) == (2, plain.stdout, plain.stderr)
    assert b"nothing" in kept.stderr


@pytest.mark.long
@pytest.mark.e2e
def test_over_the_wire_leaves_no_process_after_a_sigkill(tmp_path):
    """The server, the relay that counts bytes, and the clients end."""
    script = dedent("""
        import sys, time
        from pathlib import Path
        from fedloom.simulation import over_the_wire
        from support.experiments import experiment, population

        def wait(record, params):
            print("there", flush=True)
            time.sleep(600)

        described = experiment(data=population(sizes=(9, 8)), goal=2, rounds=500)
        over_the_wire(described, on_round=wait, show=False, meter=Path(sys.argv[1]))
    """)
    paths = os.pathsep.join([*filter(None, sys.path)])
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "bytes.json")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path)},
    ) as parent:
        assert parent.stdout.readline().strip() == b"there"
        others = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()
    assert len(others) == 4
    assert ended(others)
