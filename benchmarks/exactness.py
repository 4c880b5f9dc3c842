"""How far a round's mean is from exact rational arithmetic: ours beside plain float accumulation.

Prints a table and writes out/exactness.json. The numbers in docs/exactness.md come from here.
"""

import argparse
import json
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np

from fedloom.strategies import Full, Partial, TensorSpec, exponent, weight_units
from fedloom.strategies.exact.grid import SUM_BITS, Grid

KEY = ("delta", "w")


def ours(deltas, weights, max_abs=1024.0, max_weight=2.0**18, *, narrow=False):
    """The mean of a round under these bounds; by default, those of a run that sets none."""
    clients, size = deltas.shape
    spec = TensorSpec(shape=(size,), dtype=deltas.dtype)
    most = max_weight * (2 * clients + 64)
    partial = Partial({KEY: spec}, exponent(max_abs, most), narrow=narrow)
    for delta, weight in zip(deltas, weights, strict=True):
        partial.add_array(KEY, Full(), weight_units(float(weight)), delta)
    return partial.mean_block(KEY, 0, size)[0]


def running(deltas, weights, dtype):
    """The mean as most servers compute it: one running sum of w · x."""
    total = np.zeros(deltas.shape[1], dtype)
    for delta, weight in zip(deltas, weights, strict=True):
        total += delta.astype(dtype) * dtype(weight)
    return total / dtype(weights.sum())


def exact(deltas, weights):
    """The mean as rationals."""
    rationals = [Fraction(w) for w in weights.tolist()]
    total = sum(rationals)
    return [
        sum(Fraction(x) * w for x, w in zip(column, rationals, strict=True)) / total
        for column in deltas.T.tolist()
    ]


def measure(method, deltas, weights, truth, rng):
    """Errors against the truth, and the share of coordinates that another order changes."""
    mean = method(deltas, weights)
    errors = [abs(Fraction(float(m)) - t) for m, t in zip(mean, truth, strict=True)]
    order = rng.permutation(len(weights))
    moved = float(np.mean(method(deltas[order], weights[order]) != mean))
    return {
        "max_error": float(max(errors)),
        "mean_error": float(sum(errors) / len(errors)),
        "order_dependent": moved,
    }


WEIGHTINGS = {
    "examples": lambda rng, clients: rng.integers(1, 1001, clients).astype(np.float64),
    "any": lambda rng, clients: rng.uniform(1, 1000, clients),
    "shares": lambda rng, clients: rng.dirichlet(np.ones(clients)).clip(min=1e-9),
}


def narrow(bits, weighting, deltas, weights, truth):
    """A narrow sum under fitting bounds: its stated and largest error, and its zeros."""
    clients, size = deltas.shape
    grid = Grid(
        bits=bits,
        max_abs=float(np.abs(deltas).max()),
        weighting=weighting,
        max_weight=float(weights.max()),
        updates=2 * clients + 64,
    )
    spec = TensorSpec(shape=(size,), dtype=deltas.dtype)
    partial = Partial({KEY: spec}, grid.exponent, narrow=True)
    for delta, weight in zip(deltas, weights, strict=True):
        partial.add_array(KEY, Full(), weight_units(float(weight)), delta)
    mean = partial.mean_block(KEY, 0, size)[0]
    errors = [abs(Fraction(float(m)) - t) for m, t in zip(mean, truth, strict=True)]
    return {
        "bits": bits,
        "stated_error": grid.largest_error,
        "max_error": float(max(errors)),
        "zeros": partial.underflow,
    }


def narrow_rows(arguments):
    """Narrow sums of each width, of equal weights and of whole numbers of examples."""
    rows = []
    for clients, weighting in product(arguments.clients, ("uniform", "examples")):
        rng = np.random.default_rng(arguments.seed)
        shape = clients, arguments.size
        deltas = (arguments.scale * rng.standard_normal(shape)).astype(np.float32)
        weights = WEIGHTINGS["examples"](rng, clients)
        if weighting == "uniform":
            weights = np.ones(clients)
        truth = exact(deltas, weights)
        for bits in SUM_BITS:
            found = narrow(bits, weighting, deltas, weights, truth)
            rows.append({"clients": clients, "weights": weighting, **found})
    return rows


METHODS = {
    "exact (default)": ours,
    "sum_bits = 64, fitting bounds": lambda d, w: ours(d, w, 1.0, float(w.max()), narrow=True),
    "sum_bits = 64, default bounds": lambda d, w: ours(d, w, narrow=True),
    "float64 running sum": lambda d, w: running(d, w, np.float64),
    "float32 running sum": lambda d, w: running(d, w, np.float32),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1000, help="coordinates")
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 1000])
    parser.add_argument("--scale", type=float, default=0.01, help="standard deviation of deltas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/exactness.json"))
    arguments = parser.parse_args()

    rows = []
    for clients, (weighting, draw) in product(arguments.clients, WEIGHTINGS.items()):
        rng = np.random.default_rng(arguments.seed)
        deltas = (arguments.scale * rng.standard_normal((clients, arguments.size))).astype(
            np.float32
        )
        weights = draw(rng, clients)
        truth = exact(deltas, weights)
        for name, method in METHODS.items():
            result = measure(method, deltas, weights, truth, rng)
            rows.append({"clients": clients, "weights": weighting, "method": name, **result})

    print(f"deltas of {arguments.scale:g}, {arguments.size} coordinates")
    print(f"{'clients':>7}  {'weights':10}{'method':34}{'max error':>10}{'mean':>9}{'order':>7}")
    for row in rows:
        print(
            f"{row['clients']:7}  {row['weights']:10}{row['method']:34}{row['max_error']:10.1e}"
            f"{row['mean_error']:9.1e}{row['order_dependent']:7.1%}"
        )
    widths = narrow_rows(arguments)
    print(
        f"\n{'clients':>7}  {'weights':10}{'bits':>4}{'stated error':>14}{'largest':>9}{'zeros':>8}"
    )
    for row in widths:
        print(
            f"{row['clients']:7}  {row['weights']:10}{row['bits']:4}{row['stated_error']:14.1e}"
            f"{row['max_error']:9.1e}{row['zeros']:8.2%}"
        )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    results = {"size": arguments.size, "rows": rows, "narrow": widths}
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
