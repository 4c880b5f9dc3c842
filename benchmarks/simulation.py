"""Clients a second of fedloom.simulation beside a naive loop, Flower, pfl-research and FedJAX.

The same networks, data, batches and threads for all (simulation_tasks.py), on the same machine in
the same run: every system waits in a process of its own and they take turns, a few rounds each, so
that whatever else the machine does hits all alike. Ratios are medians over the turns of one turn's
times; each system's first two rounds are left out. Then the start-up of fresh processes to the end
of the first round, and the memory (PSS of all a system's processes) of rounds with 1,000 clients of
the 2NN, who hold the 60,000 examples that MNIST has, 60 each.

    python benchmarks/simulation.py --flower-python F/bin/python --pfl-python P/bin/python \\
        --fedjax-python J/bin/python --page docs/benchmarks.md

F, P and J are virtual environments with `flwr[simulation]`, with `pfl` and with `fedjax`, all with
the same torch. Prints tables and writes out/simulation.json; --page also writes the page with its
plots. --quick takes about a minute, with --page five.
"""

import argparse
import json
import os
import select
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import simulation_page
import torch
from deployment import machine, report
from simulation_tasks import ALL_TASKS, TASKS

from fedloom.simulation.output.environment import describe

HERE = Path(__file__).parent
FIRST_S = 300.0
ROUND_S = 600.0
WARM_UP = 2
SAMPLE_S = 0.05

NAIVE, LOADER, PFL, FLOWER = "naive loop", "naive loop, DataLoader", "pfl-research, 2", "Flower, 2"
FEDJAX = "FedJAX, 1"
BEST = "fedloom auto, 2"
MEMORY = "1,000 clients a round"
TARGETS = {
    **{(f"2NN, {n} a round", NAIVE): 4.5 for n in (10, 100)},
    **{(f"2NN, {n} a round", PFL): 2.7 for n in (10, 100)},
    **{(f"CNN, {n} examples", NAIVE): 2.1 for n in (60, 600)},
    **{(f"CNN, {n} examples", PFL): 1.2 for n in (60, 600)},
}
NO_OP_TARGET, START_TARGET_S, MEMORY_TARGET_MB = 7000, 5, 1000


@dataclass(frozen=True)
class System:
    """How to run one: its script's interpreter, script and arguments."""

    python: str
    script: str
    arguments: tuple[str, ...] = ()
    device: str = "cpu"


def systems(flower, pfl, fedjax):
    """All that there are, by name."""
    here = sys.executable
    found = {
        NAIVE: System(here, "naive"),
        LOADER: System(here, "naive", ("--loader", "yes")),
        FLOWER: System(flower or here, "flower"),
        PFL: System(pfl or here, "pfl"),
        FEDJAX: System(fedjax or here, "fedjax"),
    }
    for kernel in ("resident", "auto", "compiled", "batched"):
        for workers in "12":
            arguments = ("--kernel", kernel, "--workers", workers)
            found[f"fedloom {kernel}, {workers}"] = System(here, "fedloom", arguments)
    return found


def names_for(task, *, quick):
    """Which systems are worth a task's time: auto is fused on the 2NN, channels-last on the CNN."""
    both = ["fedloom auto, 1", BEST]
    if not TASKS[task].trains:
        return [NAIVE, *both, FLOWER]
    if task.startswith("CNN"):
        return [NAIVE, LOADER, "fedloom resident, 2", *both, PFL, FLOWER]
    more = [] if quick else ["fedloom compiled, 2", "fedloom batched, 2"]
    return [
        NAIVE,
        LOADER,
        "fedloom resident, 1",
        "fedloom resident, 2",
        *both,
        *more,
        PFL,
        FLOWER,
        FEDJAX,
    ]


class Unavailable(Exception):  # noqa: N818
    """A system that cannot run here; says why."""


class Child:
    """A system at work on a task, in its own processes.

    Args:
        system: which.
        task: name of the task.
        directory: where its output goes.
    """

    def __init__(self, system, task, directory):
        self._log = directory / "log"
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "SIMULATION_DEVICE": system.device,
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        if system.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        script = str(HERE / f"simulation_{system.script}.py")
        begin = time.perf_counter()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [system.python, script, "--task", task, *system.arguments],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=directory,
                start_new_session=True,
            )
        self.peak_mb = 0.0
        self._begin = begin

    def first(self):
        """Wait for the end of the first round; returns the seconds since the start."""
        self._hear(FIRST_S)
        return time.perf_counter() - self._begin

    def turn(self, rounds):
        """Seconds of each of some rounds, and processor seconds of all of them."""
        found, before = [], self._cpu_s()
        for _ in range(rounds):
            self._say("go")
            found.append(self._hear(ROUND_S)["seconds"])
        return found, self._cpu_s() - before

    def end(self):
        """End it; returns what it says of itself."""
        self._say("end")
        return self._hear(ROUND_S)

    def pids(self):
        """Of all its processes."""
        return [process.pid for process in tree(self._process.pid)]

    def _cpu_s(self):
        return sum(sum(p.cpu_times()[:2]) for p in tree(self._process.pid))

    @contextmanager
    def watched(self):
        """Follow the memory meanwhile."""
        done = threading.Event()

        def watch():
            while not done.wait(SAMPLE_S):
                self.peak_mb = max(self.peak_mb, tree_mb(self._process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def stop(self):
        """End what is left of it."""
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()

    def _say(self, word):
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()

    def _hear(self, limit_s):
        if not select.select([self._process.stdout], [], [], limit_s)[0]:
            raise Unavailable(f"no answer in {limit_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            lines = self._log.read_text(errors="replace").strip().splitlines() or ["ended"]
            raise Unavailable(lines[-1][-200:])
        return json.loads(line)


def tree(pid):
    """A process and all that descend from it."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def tree_mb(pid):
    """PSS of a process and all that descend from it, MB: shared pages are split among users."""
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        total = sum(process_mb(process.pid) for process in tree(pid))
    return total


def process_mb(pid):
    """PSS of one process, MB; 0 if it has ended."""
    try:
        return psutil.Process(pid).memory_full_info().pss / 1e6
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0.0


class Bench:
    """The systems that run here.

    Args:
        found: systems by name.
    """

    def __init__(self, found):
        self._systems = found
        self._missing = set()
        self.told = {}
        self.skipped = {}

    @contextmanager
    def running(self, name, task):
        """A child that is on its way to its first round.

        Raises:
            Unavailable: it cannot be.
        """
        system = self._systems[name]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            child = Child(system, task, Path(directory))
            try:
                yield child
            finally:
                child.stop()

    def started(self, stack, names, task):
        """Children that start at once: each after its first round, and how long that took."""
        children = {
            name: stack.enter_context(self.running(name, task))
            for name in names
            if self._systems[name].script not in self._missing
        }
        found = {}
        for name, child in children.items():
            try:
                found[name] = child, child.first()
            except Unavailable as error:
                print(f"{name} skipped on {task}: {error}", flush=True)
                self.skipped[f"{name} on {task}"] = str(error)
                if "ModuleNotFoundError" in str(error):
                    self._missing.add(self._systems[name].script)
        return found

    def speed(self, task, names, turns, *, at_once=1, after=None):
        """Turns by system: seconds of every round, and processor seconds of them all.

        Args:
            task: name of the task.
            names: of the systems.
            turns: of each.
            at_once: how many start together.
            after: called with the names and children after the last turn.
        """
        rounds = ALL_TASKS[task].rounds
        with ExitStack() as stack:
            children = {}
            for place in range(0, len(names), at_once):
                started = self.started(stack, names[place : place + at_once], task)
                children |= {name: child for name, (child, _) in started.items()}
            for child in children.values():
                child.turn(WARM_UP - 1)
            found = {name: [] for name in children}
            for turn in range(turns):
                order = list(children)
                for name in order[turn % len(order) :] + order[: turn % len(order)]:
                    found[name].append(children[name].turn(rounds))
            if after is not None:
                after(children)
            for name, child in children.items():
                self.told[f"{task}: {name}"] = child.end()
        return found

    def start_up(self, names, repeats):
        """Seconds to the end of the first round of the 2NN, by system."""
        found = {name: [] for name in names}
        for _ in range(repeats):
            for name in names:
                with ExitStack() as stack:
                    started = self.started(stack, [name], "2NN, 10 a round")
                    for child, seconds in started.values():
                        found[name].append(seconds)
                        child.end()
        return {name: seconds for name, seconds in found.items() if seconds}

    def memory(self, names):
        """Peak MB over two rounds, by system."""
        found = {}
        for name in names:
            if self._systems[name].script in self._missing:
                continue
            with self.running(name, MEMORY) as child:
                try:
                    with child.watched():
                        child.first()
                        child.turn(1)
                    child.end()
                except Unavailable as error:
                    print(f"{name} skipped on {MEMORY}: {error}", flush=True)
                    self.skipped[f"{name} on {MEMORY}"] = str(error)
                else:
                    found[name] = child.peak_mb
        return found


def speed_rows(task, found):
    """A line for each system: clients a second, what one costs, how many times the peers."""
    rows = []
    cohort = ALL_TASKS[task].cohort
    for name, turns in found.items():
        rates = [cohort / seconds for turn, _ in turns for seconds in turn]
        cpu_ms = 1e3 * sum(cpu_s for _, cpu_s in turns) / (cohort * len(rates))
        times = [ratio(found, name, peer) for peer in (NAIVE, LOADER, PFL, FLOWER, FEDJAX)]
        what = (task, name, statistics.median(rates), min(rates), max(rates), cpu_ms)
        rows.append((*what, *times, target(task, name)))
    return rows


def target(task, name):
    """What was aimed at, in words; of our own choice of kernel with two workers."""
    if name != BEST:
        return ""
    if not ALL_TASKS[task].trains:
        return f">= {NO_OP_TARGET}/s"
    wanted = [(peer, times) for (about, peer), times in TARGETS.items() if about == task]
    return ", ".join(f">= {times:g} × {peer.split(',')[0]}" for peer, times in wanted)


def ratio(found, name, peer):
    """How many times as fast as a peer: the median over turns; empty without that peer."""
    if peer not in found:
        return ""
    pairs = zip(found[name], found[peer], strict=True)
    return statistics.median(sum(theirs) / sum(ours) for (ours, _), (theirs, _) in pairs)


def facts(turns):
    """The machine, before it is measured on."""
    known = describe()
    kept = {name: known[name] for name in ("cpu", "memory_gib")}
    return {**machine(), **kept, "torch": torch.__version__, "turns": turns}


def options(arguments):
    """The options that were given, without the interpreters' paths."""
    folders = {"flower": "F", "pfl": "P", "fedjax": "J"}
    peers = [f"--{peer}-python {folder}/bin/python" for peer, folder in folders.items()
             if getattr(arguments, f"{peer}_python")]  # fmt: skip
    rest = ["--quick"] * arguments.quick
    rest += [f"--turns {arguments.turns}"] if arguments.turns else []
    rest += [f"--tasks {shlex.join(arguments.tasks)}"] if arguments.tasks else []
    return "".join(f" {option}" for option in [*peers, *rest, f"--page {arguments.page}"])


def versions(told):
    """The version of each system that said one."""
    said = {name.partition(": ")[2]: words.get("version") for name, words in told.items()}
    found = {name.partition(",")[0]: version for name, version in said.items() if version}
    ours = {name for name in found if name.startswith("fedloom")}
    return {("fedloom" if name in ours else name): version for name, version in found.items()}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flower-python", help="an interpreter that has flwr[simulation]")
    parser.add_argument("--pfl-python", help="an interpreter that has pfl")
    parser.add_argument("--fedjax-python", help="an interpreter that has fedjax")
    parser.add_argument("--page", type=Path, help="write this page, with plots beside it")
    parser.add_argument("--turns", type=int, help="of each system on each task; 9, or 3 if quick")
    parser.add_argument("--tasks", nargs="+", choices=[t for t in TASKS if t != MEMORY])
    parser.add_argument("--quick", action="store_true", help="fewer tasks and turns")
    arguments = parser.parse_args()
    quick = arguments.quick
    before = facts(arguments.turns or (3 if quick else 9))
    tasks = ["2NN, 10 a round", "no-op, 2NN"] if quick else [t for t in TASKS if t != MEMORY]
    bench = Bench(systems(arguments.flower_python, arguments.pfl_python, arguments.fedjax_python))
    rows, turns = [], {}
    for task in arguments.tasks or tasks:
        print(f"{task} …", flush=True)
        names = names_for(task, quick=quick)
        turns[task] = bench.speed(task, names, arguments.turns or (3 if quick else 9))
        for row in (found := speed_rows(task, turns[task])):
            print(f"  {row[1]}: {row[2]:,.3g} clients/s, {row[5]:.3g} ms of CPU", flush=True)
        rows += found
    print("start-up and memory …", flush=True)
    names = [BEST] if quick else [NAIVE, BEST, PFL, FLOWER, FEDJAX]
    names = names if not arguments.page else [NAIVE, BEST, PFL, FLOWER, FEDJAX]
    starts = bench.start_up(names, 1 if quick else 3)
    memory = bench.memory(names)
    columns = ("task", "system", "clients/s", "least", "most", "CPU ms",
               "× naive", "× with DataLoader", "× pfl", "× Flower", "× FedJAX",
               "target")  # fmt: skip
    report(
        "simulation",
        columns,
        rows,
        torch=torch.__version__,
        turns=turns,
        told=bench.told,
        start_up_s=starts,
        memory_mb=memory,
    )
    if arguments.page:
        found = {
            "command": "python benchmarks/simulation.py" + options(arguments),
            "machine": before,
            "versions": versions(bench.told),
            "skipped": bench.skipped,
            "rows": [dict(zip(columns, row, strict=True)) for row in rows],
            "start_up_s": starts,
            "memory_mb": memory,
        }
        simulation_page.write(found, arguments.page)
    for name, seconds in starts.items():
        aim = f" (target < {START_TARGET_S})" if name == BEST else ""
        print(f"{name}: {statistics.median(seconds):.1f} s from start to first round{aim}")
    for name, peak in memory.items():
        aim = f" (target < {MEMORY_TARGET_MB:,})" if name == BEST else ""
        print(f"{name}: {peak:,.0f} MB at most, {MEMORY}, 60 examples each{aim}")


if __name__ == "__main__":
    main()
