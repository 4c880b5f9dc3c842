"""How far the mean of masked sums of b bits is from exact rational arithmetic.

Prints the table of docs/masking.md and writes out/masked_sums.json.
"""

import argparse
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np

from fedloom.protocol.codecs.draws import stream, uniform32
from fedloom.strategies import Full, Partial, TensorSpec, weight_units
from fedloom.strategies.exact.grid import SUM_BITS, Grid
from fedloom.strategies.masking.sessions import session_sizes

KEY = ("delta", "w")
BOUNDS = {
    "fitting": {"max_abs": 0.5, "max_weight": 1.0, "heaviest": 1},
    "examples": {"max_abs": 0.5, "max_weight": 1000.0, "heaviest": 1000},
    "loose": {"max_abs": 8.0, "max_weight": 1000.0, "heaviest": 10},
}
"""Stated bounds, and the largest weight that there is."""


def masked(grid, deltas, weights):
    """The round's sum: sessions of b bits, reduced modulo 2^b and merged."""
    spec = TensorSpec(shape=deltas.shape[1:], dtype=deltas.dtype)
    total, start = Partial({KEY: spec}, grid.exponent, narrow=True), 0
    for size in session_sizes(len(deltas), grid.session):
        session = total.empty()
        for place in range(start, start + size):
            draws = uniform32(stream(place, "sum_bits/delta", "w")) if grid.is_stochastic else None
            units = weight_units(float(weights[place]))
            session.add_array(KEY, Full(), units, deltas[place], draws=draws)
        session.wrap(grid.bits)
        total.merge(session)
        start += size
    return total


def measured(grid, deltas, weights):
    """Errors of the mean against rationals, and values that became zero."""
    total = masked(grid, deltas, weights)
    mean, _ = total.mean_block(KEY, 0, deltas.shape[1])
    rationals = [Fraction(w) for w in weights.tolist()]
    errors = [
        float(Fraction(m) - sum(Fraction(x) * w for x, w in zip(xs, rationals, strict=True))
              / sum(rationals))
        for m, xs in zip(mean.tolist(), deltas.T.tolist(), strict=True)
    ]  # fmt: skip
    return {
        "bits": grid.bits,
        "step": grid.step,
        "stated": grid.largest_error,
        "rms": math.sqrt(math.fsum(e * e for e in errors) / len(errors)),
        "largest": max(map(abs, errors)),
        "bias": abs(math.fsum(errors)) / len(errors),
        "zeros": total.vanished / total.nonzero,
        "upload": grid.bits / 32,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2000, help="coordinates")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--group", type=int, default=64)
    parser.add_argument("--scale", type=float, default=0.01, help="standard deviation of deltas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/masked_sums.json"))
    arguments = parser.parse_args()

    rows = []
    for name, bounds in BOUNDS.items():
        rng = np.random.default_rng(arguments.seed)
        deltas = arguments.scale * rng.standard_normal((arguments.clients, arguments.size))
        weights = rng.integers(1, bounds["heaviest"] + 1, arguments.clients).astype(float)
        for bits in reversed(SUM_BITS):
            grid = Grid(
                bits=bits,
                max_abs=bounds["max_abs"],
                weighting="examples",
                max_weight=bounds["max_weight"],
                updates=2 * arguments.clients + 64,
                session=arguments.group,
            )
            rows.append({"bounds": name, **measured(grid, deltas.astype(np.float32), weights)})

    print(f"{arguments.clients} clients in sessions of at most {arguments.group}, ", end="")
    print(f"deltas of {arguments.scale:g}, {arguments.size} coordinates")
    print(f"{'bounds':10}{'bits':>4}{'step':>10}{'stated':>10}{'rms':>10}{'largest':>10}", end="")
    print(f"{'bias':>10}{'zeros':>9}{'upload':>8}")
    for row in rows:
        figures = "".join(f"{row[n]:10.1e}" for n in ("step", "stated", "rms", "largest", "bias"))
        line = f"{row['bounds']:10}{row['bits']:4}{figures}{row['zeros']:9.2%}"
        print(f"{line}{row['upload']:7.2f}x")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
