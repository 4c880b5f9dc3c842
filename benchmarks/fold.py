"""How fast one core folds updates, beside numpy's float32 addition and memcpy in the same run.

Prints a table and writes out/fold.json. GB/s count the bytes of the values that clients sent, and
seconds of the thread's own CPU time, in turns, so that other processes disturb all rows alike.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np

from fedloom.strategies import (
    Full,
    Mask,
    Partial,
    Slice,
    State,
    TensorSpec,
    exponent,
    strategy,
    weight_units,
)
from fedloom.strategies.exact import words
from fedloom.strategies.staleness import discounted

BLOCK = words.BLOCK

KEY = ("delta", "w")
UNITS = weight_units(600.0)
FINISHED = ("fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi")


def rates(rows, repeats):
    """The best GB/s of each (kind, name, work, bytes), in turns; the first turn is not counted."""
    best = [math.inf] * len(rows)
    for turn in range(repeats + 1):
        for place, (*_, work, _) in enumerate(rows):
            start = time.thread_time()
            work()
            if turn:
                best[place] = min(best[place], time.thread_time() - start)
    return [
        (kind, name, size / seconds / 1e9)
        for (kind, name, _, size), seconds in zip(rows, best, strict=True)
    ]


def empty(shape, dtype, narrow=False):
    spec = TensorSpec(shape=shape, dtype=np.dtype(dtype))
    return Partial({KEY: spec}, exponent(1.0, 1e6), narrow=narrow)


def adding(shape, coverage, values, units=UNITS, narrow=False):
    partial = empty(shape, values.dtype, narrow)
    return lambda: partial.add_array(KEY, coverage, units, values)


def kernel(values, block):
    """The bare loop of a full coverage, with blocks of another size."""
    words.BLOCK = block  # of the slicer's buffers
    slicer = words.Slicer(words.Words(values.size), Full(), values.shape, 6)
    words.BLOCK = BLOCK

    def work():
        for start in range(0, values.size, block):
            run = slice(start, min(start + block, values.size))
            slicer.add(run, (run.stop - run.start,), [(values[run], 600.0 * 2**20)])

    return work


def finishing(name, model, partial):
    algorithm = strategy(name)
    _, state = algorithm.finish(State(), model, partial)
    return lambda: algorithm.finish(state, model, partial)


def measure(shape, repeats):
    rng = np.random.default_rng(0)
    x = (0.01 * rng.standard_normal(shape, dtype=np.float32)).reshape(-1)
    y, size = np.zeros_like(x), x.nbytes
    box = Slice(tuple((extent // 10, extent - extent // 10) for extent in shape))
    bits = rng.random(x.size) < 0.25
    rows = [
        ("limit", "memcpy", lambda: np.copyto(y, x), size),
        ("limit", "float32 addition", lambda: np.add(y, x, out=y), size),
    ]
    for dtype in (np.float32, np.float16, np.float64):
        values = x.astype(dtype)
        work = adding(shape, Full(), values)
        rows.append(("fold", f"full, {values.dtype}", work, values.nbytes))
    for name, units in (
        ("stale, weight 600/√7", discounted(UNITS, 7**-0.5)),
        ("full, weight 600.1", weight_units(600.1)),
    ):
        rows.append(("fold", name, adding(shape, Full(), x, units), size))
    rows.append(("fold", "full, in one word", adding(shape, Full(), x, narrow=True), size))
    parts = {"slice of 64 %": (box, x[: box.count(shape)]), "mask of 25 %": (Mask(bits), x[bits])}
    for name, (coverage, values) in parts.items():
        rows.append(("fold", name, adding(shape, coverage, values), values.nbytes))
    a, b = empty(shape, x.dtype), empty(shape, x.dtype)
    for partial in (a, b):
        partial.add_array(KEY, Full(), UNITS, x)
    rows.append(("merge", "two partials", lambda: a.merge(b), size))
    model = {"w": x.reshape(shape)}
    rows += [("finish", name, finishing(name, model, b), size) for name in FINISHED]
    for block in (2**exp for exp in range(13, 18)):
        note = " (in use)" if block == BLOCK else ""
        rows.append(("block", f"{block} values{note}", kernel(x, block), size))
    return rates(rows, repeats)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4000, help="the tensor is rows x 2500")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("out/fold.json"))
    arguments = parser.parse_args()

    shape = (arguments.rows, 2500)
    results = measure(shape, arguments.repeats)
    print(f"{4e-6 * shape[0] * shape[1]:.0f} MB of float32, numpy {np.__version__}, one core")
    for kind, name, speed in results:
        print(f"{kind:8}{name:24}{speed:7.2f} GB/s")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"kind": kind, "name": name, "gb_per_s": speed} for kind, name, speed in results]
    arguments.out.write_text(json.dumps({"shape": shape, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
