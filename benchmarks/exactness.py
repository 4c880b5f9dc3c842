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

KEY = ("delta", "w")


def ours(deltas, weights, max_abs, max_weight):
    """The mean by int64 fixed point, under bounds of the round's choosing."""
    clients, size = deltas.shape
    spec = TensorSpec(shape=(size,), dtype=deltas.dtype)
    partial = Partial({KEY: spec}, exponent(max_abs, max_weight * clients))
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
    # On the grid that weights are rounded to first: what is measured is the sum.
    "any": lambda rng, clients: np.rint(rng.uniform(1, 1000, clients) * 2**20) / 2**20,
}
METHODS = {
    "int64, bound 1, weight cap 1e3": lambda d, w: ours(d, w, 1.0, 1e3),
    "int64, bound 1e3, weight cap 1e6": lambda d, w: ours(d, w, 1e3, 1e6),
    "float64 running sum": lambda d, w: running(d, w, np.float64),
    "float32 running sum": lambda d, w: running(d, w, np.float32),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1000, help="coordinates")
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 1000])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/exactness.json"))
    arguments = parser.parse_args()

    rows = []
    for clients, (weighting, draw) in product(arguments.clients, WEIGHTINGS.items()):
        rng = np.random.default_rng(arguments.seed)
        deltas = (0.01 * rng.standard_normal((clients, arguments.size))).astype(np.float32)
        weights = draw(rng, clients)
        truth = exact(deltas, weights)
        for name, method in METHODS.items():
            result = measure(method, deltas, weights, truth, rng)
            rows.append({"clients": clients, "weights": weighting, "method": name, **result})

    print(f"deltas of 0.01, {arguments.size} coordinates, weights up to 1000")
    print(f"{'clients':>7}  {'weights':10}{'method':34}{'max error':>10}{'mean':>9}{'order':>7}")
    for row in rows:
        print(
            f"{row['clients']:7}  {row['weights']:10}{row['method']:34}{row['max_error']:10.1e}"
            f"{row['mean_error']:9.1e}{row['order_dependent']:7.1%}"
        )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"size": arguments.size, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
