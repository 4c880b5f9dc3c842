"""Pairs of parts of a run: each pair runs, or is refused with a message that names both."""

import itertools

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation.training.simulator import Simulation
from support.experiments import experiment

PARTS = {
    "FedAdam": {"strategy": {"name": "fedadam"}},
    "scaffold": {"strategy": {"name": "scaffold", "clients": 6}, "weighting": "uniform"},
    "fednova": {"strategy": {"name": "fednova"}},
    "qfedavg": {"strategy": {"name": "qfedavg", "q": 1}, "weighting": "uniform"},
    "fedprox": {"rule": {"name": "fedprox", "mu": 0.1}},
    "median": {"aggregation": {"name": "median"}, "weighting": "uniform"},
    "int8": {"compression": {"up": {"name": "int8"}}},
    "top_k": {"compression": {"up": {"name": "top_k", "fraction": 0.1}}},
    "compression.down": {"compression": {"down": {"name": "int8"}}},
    "privacy": {
        "privacy": {
            "mechanism": "dp_fedavg",
            "clip": 1.0,
            "noise_multiplier": 1.0,
            "delta": 1e-3,
            "population": 6,
        },
        "weighting": "uniform",
        "evaluate": False,
    },
    "buffered": {"cohort": {"mode": "buffered", "goal": 2, "concurrency": 3}},
    "keep": {"personal": {"keep": ["2.bias"]}},
    "ditto": {"personal": {"name": "ditto", "pull": 1.0}},
    "power_of_choice": {"selection": {"name": "power_of_choice"}},
    "clip_norm": {"train": {"clip_norm": 1.0}},
    "only": {"train": {"only": ["2.*"]}},
}
TRAIN = {"epochs": 1, "batch_size": 4, "learning_rate": 0.1}
TABLES = ("cohort", "train", "compression", "personal")


def together(*parts):
    """The tables of several parts as one run's."""
    tables = {"train": TRAIN}
    for part in parts:
        for name, value in part.items():
            merged = name in TABLES and isinstance(value, dict)
            tables[name] = {**tables.get(name, {}), **value} if merged else value
    return tables


def alternatives(pair):
    """Whether both parts fill the same place of a run."""
    return set(pair) <= {"FedAdam", "scaffold", "fednova", "qfedavg", "fedprox"}


@pytest.mark.long
@pytest.mark.parametrize("first", list(PARTS)[:-1])
def test_two_parts_run_or_are_refused_by_name(first):
    """Every pair of parts ends with a committed round or an error."""
    names = list(PARTS)
    for second in names[names.index(first) + 1 :]:
        if alternatives((first, second)):
            continue
        try:
            simulation = Simulation(experiment(rounds=1, **together(PARTS[first], PARTS[second])))
        except UsageError as refusal:
            said = str(refusal)
            assert said.startswith("Expected"), said
            assert all(name in said for name in (first, second)), (first, second, said)
            continue
        try:
            records = list(simulation.rounds())
        finally:
            simulation.close()
        assert {record.state for record in records} == {"committed"}, (first, second)


def test_most_pairs_run():
    pairs = [p for p in itertools.combinations(PARTS, 2) if not alternatives(p)]
    refused = 0
    for first, second in pairs:
        try:
            experiment(rounds=1, **together(PARTS[first], PARTS[second]))
        except UsageError:
            refused += 1
    assert refused < len(pairs) / 3
