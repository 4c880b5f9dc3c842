"""Updates for the tests of robust rules, and every rule with suitable settings."""

import numpy as np

from fedloom.strategies import DELTA, Full, Mask, Slice, TensorSpec
from fedloom.strategies.robust import (
    ArrayUpdate,
    ArrayUpdates,
    Bulyan,
    CenteredClipping,
    FLTrust,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NormBounding,
    TrimmedMean,
)

RULES = [
    Median(),
    TrimmedMean(fraction=0.2),
    Krum(num_byzantine=1),
    MultiKrum(num_byzantine=1),
    MultiKrum(num_byzantine=1, num_selected=2),
    Bulyan(num_byzantine=1),
    GeometricMedian(),
    CenteredClipping(),
    CenteredClipping(radius=0.5, iterations=3),
    NormBounding(),
    NormBounding(bound=0.75),
    FLTrust(trusted="c2"),
]
IDS = [f"{number}-{rule.name}" for number, rule in enumerate(RULES)]
SHAPES = {"a": (3, 5), "b": (7,), "c": ()}
SPECS = {
    (DELTA, name): TensorSpec(shape=shape, dtype=np.dtype(np.float32))
    for name, shape in SHAPES.items()
}
LAST = {"a": np.full((3, 5), 0.25, np.float32)}


def ragged(count=14, seed=0):
    """Updates of parts of a small model: whole tensors, boxes, masks, and nothing."""
    rng = np.random.default_rng(seed)
    updates = {}
    for number in range(count):
        parts = {}
        for name, shape in SHAPES.items():
            size = int(np.prod(shape))
            bits = rng.random(size) < 0.6
            coverage = [Full(), Mask(bits), None][rng.integers(0, 3)]
            if number == 7:
                coverage = Full() if name == "b" else None
            if name == "a" and number % 4 == 1:
                coverage = Slice(((0, 2), (1, 4)))
            if number == 2:
                coverage = Full()
            if coverage is not None:
                values = rng.normal(size=coverage.count(shape)).astype(np.float32)
                parts[DELTA, name] = coverage, values
        updates[f"c{number}"] = ArrayUpdate(parts, weight=float(1 + number % 3))
    return updates


def reduced(rule, updates, last=None):
    """The means of a round as whole arrays: {tensor: (flat mean, flat bool of covered values)}."""
    means = rule.reduce(updates, last or {})
    found = {}
    for (_, tensor), spec in updates.specs.items():
        mean, there = means.mean_block((DELTA, tensor), 0, spec.size)
        found[tensor] = mean, np.broadcast_to(there, spec.size)
    return found


def vector(rule, rows, last=None, **settings):
    """The means of clients' vectors, given as rows in the order of their names."""
    digits = len(str(len(rows) - 1))
    names = [f"c{number:0{digits}}" for number in range(len(rows))]
    updates = ArrayUpdates.of(
        {name: {"x": np.array(row, np.float64)} for name, row in zip(names, rows, strict=True)},
        **settings,
    )
    before = {} if last is None else {"x": np.array(last, np.float64)}
    return reduced(rule, updates, before)["x"][0]
