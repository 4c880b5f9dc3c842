"""Instructions of the kernels and of a round of the engine, against the committed figures.

Valgrind counts the instructions of a process. Other work on the machine does not change them, and
numpy takes the same loops on every x86-64 processor with AVX2, as Valgrind offers no more. A case
runs in two processes, which do its work a few times and some times more; the difference is the
work, without start-up. The fold is the one of numpy, as on devices, not the one of `fast`.

    python benchmarks/cost.py            # fails where a case takes more than 1.1 times its figure
    python benchmarks/cost.py --write    # writes benchmarks/cost.json

Where a figure sinks, or rises for a good reason, write it again and say in the commit why.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fold as kernels
import numpy as np
import virtual_clock

from fedloom.protocol.codecs import codec
from fedloom.protocol.masking.body import BodyLayout
from fedloom.protocol.masking.streams import MaskStream, apply_streams
from fedloom.protocol.tensors.value_checks import ValueChecker

FIGURES = Path(__file__).with_suffix(".json")
MOST = 1.1
VALUES = 1 << 17
FEW, MORE = 2, 6
"""Times that the two processes of a case do its work: the first ones fill caches."""
COUNTED = re.compile(r"I\s+refs:\s+([\d,]+)")


def fold():
    """Add an update of float32 values to the exact sum; instructions a value."""
    values = np.random.default_rng(0).normal(0, 0.01, (VALUES,)).astype(np.float32)
    return kernels.adding(values.shape, kernels.Full(), values), VALUES


def check():
    """Check values at the server's door: finite, in bounds, norm; instructions a value."""
    values = np.random.default_rng(0).normal(0, 0.01, (VALUES,)).astype(np.float32)
    return lambda: ValueChecker(1.0, 1e6).check("w", values), VALUES


def encode():
    """Quantise values to int8 on a device; instructions a value."""
    method, shape = codec("int8", {}), (VALUES // 1024, 1024)
    values = np.random.default_rng(0).normal(0, 0.01, VALUES).astype(np.float32)
    return lambda: method.encode(values, shape, 1, {}), VALUES


def mask():
    """Add one mask of 32 bits to a body; instructions a value."""
    layout = BodyLayout(sum_bits=32, num_values=VALUES, num_words=0)
    body = np.zeros(layout.size_bytes, np.uint8)
    return lambda: apply_streams(body, layout, [MaskStream(bytes(32), 1)]), VALUES


def play():
    """Play a round of 1,000 reports from 10,000 devices on the virtual clock; instructions."""
    return virtual_clock.player(virtual_clock.TROUBLE, 10_000), 1


CASES = {f.__name__: f for f in (fold, check, encode, mask, play)}


def work(name, times):
    """What a counted process does."""
    sys.modules["numba"] = None  # not found by the fold
    one, _ = CASES[name]()
    for _ in range(times):
        one()


def counted(name, times):
    """Instructions of a process that does a case's work so many times."""
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    command += [sys.executable, __file__, "--work", name, str(times)]
    same = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
    env = os.environ | same
    found = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {found.returncode}:\n{found.stderr}")
    return int(COUNTED.search(found.stderr)[1].replace(",", ""))


def measured(name):
    """Instructions of a case, for each of its values or events."""
    _, units = CASES[name]()
    few, more = (counted(name, times) for times in (FEW, MORE))
    return (more - few) / (MORE - FEW) / units


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--write", action="store_true", help=f"write {FIGURES.name}")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work[0], int(given.work[1]))
        return 0
    if platform.machine() not in {"x86_64", "AMD64"} or not shutil.which("valgrind"):
        print("not measured: expected valgrind on x86-64")
        return 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(given.cases, pool.map(measured, given.cases), strict=True))
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    if given.write:
        known |= {name: float(f"{value:.4g}") for name, value in found.items()}
        FIGURES.write_text(json.dumps(known, indent=2) + "\n")
    risen = [name for name, value in found.items() if value > MOST * known[name]]
    for name, value in found.items():
        ratio, what = value / known[name], CASES[name].__doc__.splitlines()[0].rstrip(".")
        print(f"{name:8} {value:14,.1f}  {ratio:5.2f} of the figure   {what}")
    if risen:
        print(f"expected at most {MOST} times the figures of {FIGURES.name}: {', '.join(risen)}")
    return 1 if risen else 0


if __name__ == "__main__":
    sys.exit(main())
