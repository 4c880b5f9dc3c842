"""What does not pass through sites is refused at submit, by its name; the rest is as without."""

import json

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.engine import RoundKind
from fedloom.server.planning.spec import parse
from fedloom.server.planning.task import describe

BASE = {
    "sites": True,
    "cohort": {"goal": 8},
    "train": {"epochs": 1, "batch_size": 4, "learning_rate": 0.1},
}


MASKED = {
    "masking": {"group": 4, "min_group": 3, "metrics": {}},
    "evaluate": False,
    "max_abs": 1.0,
    "weighting": "uniform",
    "cohort": {"goal": 8, "quorum": 7},
}
NOISY = MASKED | {
    "privacy": {
        "mechanism": "distributed", "clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (MASKED | {"cohort": {"goal": 8, "quorum": 7, "over_selection": 1.5}}, "over_selection"),
        ({"privacy": {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}}, r"\[privacy\]"),
        ({"cohort": {"mode": "buffered", "goal": 2, "concurrency": 4}}, "buffered"),
        ({"aggregation": {"name": "median"}}, "aggregation median"),
        ({"adapters": {"aggregate": "product"}}, "adapters.aggregate = 'product'"),
        ({"selection": {"name": "power_of_choice"}}, "selection power_of_choice"),
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
        {"compression": {"up": {"name": "int8", "error_feedback": True}}},
        {"strategy": {"name": "scaffold", "clients": 8}, "weighting": "uniform"},
        {"personal": {"keep": ["head.*"]}},
        {"compression": {"down": {"name": "int8"}}},
        {"privacy": {"mechanism": "local", "clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}},
        {"adapters": {"scale": 2.0}},
        {"train": {**BASE["train"], "tensor_share": 0.5}},
        {"train": {**BASE["train"], "widths": [0.5, 1.0]}},
        {"evaluate": "after", "best": {"metric": "loss"}},
        {"evaluate_only": True},
        {"metrics": {"quantiles": [0, 1], "edges": {"loss": [0, 0.5, 2]}}},
        {"weighting": "uniform", "max_norm": 5.0},
        MASKED,
        NOISY,
    ],
)
def test_a_run_through_sites_has_the_sums_of_one_without(changes):
    """The same exponent and width, so the same bits; and it survives its JSON form."""
    spec = parse({**BASE, **changes})
    flat = parse({**BASE, **changes, "sites": False})
    assert (spec.exponent(), spec.is_narrow) == (flat.exponent(), flat.is_narrow)
    assert parse(json.loads(json.dumps(spec.as_dict()))) == spec


def test_sessions_at_sites_have_as_many_devices_as_are_there():
    """From the smallest session to the largest, whatever numbers close the parent's round."""
    flat, spec = (parse({**BASE, **MASKED, "sites": sites}) for sites in (False, True))

    def sizes(facts):
        return [each["members"] for each in facts["masking"]["sessions"]]

    assert sizes(flat.sum_facts()) == [3, 4]
    few = {"cohort": {"goal": 8, "quorum": 8}}
    flat, spec = (parse({**BASE, **MASKED, **few, "sites": sites}) for sites in (False, True))
    assert sizes(flat.sum_facts()) == [4]
    assert sizes(spec.sum_facts()) == sizes(flat.sum_facts(held=True)) == [3, 4]


def test_devices_are_asked_to_mask_and_sites_are_not():
    """The parent's task is in clear, as a sum is; its noise is that of the devices."""
    for sites in (False, True):
        spec = parse({**BASE, **NOISY, "sites": sites})
        task = describe(spec, run="r-1", number=1, trained=0, kind=RoundKind.TRAIN, clip=1.0)
        assert (task.masking is None) == sites
        assert task.privacy.noise_multiplier == 1.0


def test_the_claim_of_a_run_through_sites_is_that_of_one_without():
    """Noise is that of each session, wherever it lies, and no draw amplifies it."""
    flat, spec = (parse({**BASE, **NOISY, "sites": sites}) for sites in (False, True))
    assert spec.privacy_plan().claim(["w"]) == flat.privacy_plan().claim(["w"])
