"""The same rounds as flwr's own rules, if flwr is installed.

Deliberate differences: flwr weights the mean of Multi-Krum by examples (equal here), reduces whole
models instead of deltas, and adds in the order of arrival.
"""

import numpy as np
import pytest

from fedloom.strategies.robust import Bulyan, Krum, Median, MultiKrum, TrimmedMean
from support.robust import vector

theirs = pytest.importorskip("flwr.server.strategy.aggregate")


def krum(kept):
    """Flwr's Krum, or its Multi-Krum with this number of updates."""
    return lambda results: theirs.aggregate_krum(results, num_malicious=2, to_keep=kept)


def bulyan(results):
    """Flwr's Bulyan over its Krum."""
    return theirs.aggregate_bulyan(results, 2, theirs.aggregate_krum, to_keep=0)


PAIRS = [
    (Median(), theirs.aggregate_median),
    (TrimmedMean(fraction=0.2), lambda results: theirs.aggregate_trimmed_avg(results, 0.2)),
    (Krum(num_byzantine=2), krum(0)),
    (MultiKrum(num_byzantine=2, num_selected=5), krum(5)),
    (Bulyan(num_byzantine=2), bulyan),
]


@pytest.mark.parametrize("clients", [11, 14])
@pytest.mark.parametrize(("rule", "flwr_rule"), PAIRS, ids=[rule.name for rule, _ in PAIRS])
def test_five_rounds_equal_flwrs(rule, flwr_rule, clients):
    """Clients pull towards different targets, two of them far away."""
    rng = np.random.default_rng(clients)
    targets = rng.normal(size=(clients, 40))
    targets[:2] *= 50
    ours = flwrs = np.zeros(40)
    for _ in range(5):
        noise = 0.1 * rng.normal(size=targets.shape)
        ours = ours + vector(rule, 0.3 * (targets - ours) + noise)
        models = flwrs + 0.3 * (targets - flwrs) + noise
        split = [([row[:30].reshape(5, 6), row[30:]], 10) for row in models]
        flwrs = np.concatenate([array.reshape(-1) for array in flwr_rule(split)])
        np.testing.assert_allclose(ours, flwrs, rtol=1e-10, atol=1e-12)
