"""How fast one core folds updates, beside numpy's float32 addition and memcpy in the same run.

Prints a table and writes out/fold.json. GB/s count the bytes of the values that clients sent.
"""

import argparse
import json
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
from fedloom.strategies.exact.words import BLOCK, Slicer, Words

KEY = ("delta", "w")
UNITS = weight_units(600.0)
FINISHED = ("fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi")


def rate(work, size_bytes, repeats):
    """The best GB/s of the repeats, after one run to touch the memory."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return size_bytes / min(times) / 1e9


def empty(shape, dtype):
    spec = TensorSpec(shape=shape, dtype=np.dtype(dtype))
    return Partial({KEY: spec}, exponent(1.0, 1e6))


def adding(shape, coverage, values):
    partial = empty(shape, values.dtype)
    return lambda: partial.add_array(KEY, coverage, UNITS, values)


def kernel(values, block):
    """The bare loop of a full coverage, with blocks of another size."""
    slicer = Slicer(Words(values.size), Full(), values.shape, 6)

    def work():
        for start in range(0, values.size, block):
            run = slice(start, min(start + block, values.size))
            slicer.add(run, (run.stop - run.start,), values[run], 600.0 * 2**20)

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
        ("limit", "memcpy", rate(lambda: np.copyto(y, x), size, repeats)),
        ("limit", "float32 addition", rate(lambda: np.add(y, x, out=y), size, repeats)),
    ]
    for dtype in (np.float32, np.float16, np.float64):
        values = x.astype(dtype)
        speed = rate(adding(shape, Full(), values), values.nbytes, repeats)
        rows.append(("fold", f"full, {values.dtype}", speed))
    parts = {"slice of 64 %": (box, x[: box.count(shape)]), "mask of 25 %": (Mask(bits), x[bits])}
    for name, (coverage, values) in parts.items():
        rows.append(("fold", name, rate(adding(shape, coverage, values), values.nbytes, repeats)))
    a, b = empty(shape, x.dtype), empty(shape, x.dtype)
    for partial in (a, b):
        partial.add_array(KEY, Full(), UNITS, x)
    rows.append(("merge", "two partials", rate(lambda: a.merge(b), size, repeats)))
    model = {"w": x.reshape(shape)}
    rows += [("finish", name, rate(finishing(name, model, b), size, repeats)) for name in FINISHED]
    for block in (2**exp for exp in range(11, 16)):
        note = " (in use)" if block == BLOCK else ""
        rows.append(("block", f"{block} values{note}", rate(kernel(x, block), size, repeats)))
    return rows


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
