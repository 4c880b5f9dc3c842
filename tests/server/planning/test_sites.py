"""What does not pass through sites is refused at submit, by its name; the rest is as without."""

import json

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.planning.spec import parse

BASE = {
    "sites": True,
    "cohort": {"goal": 8},
    "train": {"epochs": 1, "batch_size": 4, "learning_rate": 0.1},
}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (
            {"masking": {"metrics": {}, "min_group": 3, "sum_bits": 64}, "evaluate": False,
             "cohort": {"goal": 8, "quorum": 3}},
            r"\[masking\]",
        ),
        ({"privacy": {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}}, r"\[privacy\]"),
        (
            {"privacy": {"mechanism": "local", "clip": 1.0, "noise_multiplier": 1.0,
                         "delta": 1e-5}},
            r"\[privacy\]",
        ),
        ({"cohort": {"mode": "buffered", "goal": 2, "concurrency": 4}}, "buffered"),
        ({"aggregation": {"name": "median"}}, "aggregation median"),
        ({"adapters": {"aggregate": "product"}}, "adapters.aggregate = 'product'"),
        ({"selection": {"name": "power_of_choice"}}, "selection power_of_choice"),
        ({"strategy": {"name": "scaffold", "clients": 8}}, "rule scaffold"),
        ({"compression": {"down": {"name": "int8"}}}, "compression.down"),
        ({"compression": {"up": {"name": "int8", "error_feedback": True}}}, "error_feedback"),
        ({"personal": {"keep": ["head.*"]}}, r"\[personal\]"),
        ({"adapters": {"scale": 2.0}}, r"\[adapters\]"),
        ({"train": {**BASE["train"], "tensor_share": 0.5}}, "tensor_share"),
        ({"metrics": {"per_client": True}}, "metrics.per_client"),
        ({"metrics": {"bins": 4}}, "metrics.bins"),
        ({"metrics": {"quantiles": [0.3]}}, "metrics.quantiles"),
    ],
)  # fmt: skip
def test_what_does_not_pass_through_sites_is_refused_by_name(changes, name):
    """And the message says what to do; without sites the same run is accepted."""
    with pytest.raises(UsageError, match=f"Expected no .*{name}.* set sites = false"):
        parse({**BASE, **changes})
    parse({**BASE, **changes, "sites": False})


def test_an_app_decides_alone_whom_it_asks():
    """A run of a ServerApp sends messages to clients by name."""
    with pytest.raises(UsageError, match=r"no sites in a run with \[flower\]"):
        parse({"sites": True, "flower": {"server_app": "app"}})


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": {"name": "fedadam"}},
        {"rule": {"name": "fedprox", "mu": 0.1}},
        {"sum_bits": 32, "precision": 0.1, "max_abs": 1.0, "max_weight": 16.0},
        {"compression": {"up": {"name": "fp16"}}},
        {"evaluate": "after", "best": {"metric": "loss"}},
        {"evaluate_only": True},
        {"weighting": "uniform", "max_norm": 5.0},
    ],
)
def test_a_run_through_sites_has_the_sums_of_one_without(changes):
    """The same exponent and width, so the same bits; and it survives its JSON form."""
    spec = parse({**BASE, **changes})
    flat = parse({**BASE, **changes, "sites": False})
    assert (spec.exponent(), spec.is_narrow) == (flat.exponent(), flat.is_narrow)
    assert parse(json.loads(json.dumps(spec.as_dict()))) == spec
