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
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"size": arguments.size, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
