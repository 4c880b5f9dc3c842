"""Incompatible parts are refused when they are composed; the error names both."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from fedloom.strategies import FedAdam, FedAvg
from fedloom.strategies.algorithms.scaffold import Scaffold
from fedloom.strategies.client_rules import ClientRule
from fedloom.strategies.compatibility import Recipe, check
from fedloom.strategies.robust import Bulyan, GeometricMedian, Krum, Median, NormBounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Chatty(ClientRule):
    """A client rule that sends more than its update."""

    name: ClassVar[str] = "chatty"
    groups: ClassVar[tuple[str, ...]] = ("delta", "control")
    scalars: ClassVar[tuple[str, ...]] = ("loss",)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            {"strategy": FedAvg(aggregation=Median()), "weighting": "examples"},
            r"weighting = uniform with the aggregation median, .* got 'examples'",
        ),
        (
            {"strategy": FedAdam(aggregation=Krum(num_byzantine=2)), "quorum": 6},
            r"cohort\.quorum >= 7 with the aggregation krum \(num_byzantine = 2\), .* got 6",
        ),
        (
            {"strategy": FedAvg(aggregation=Bulyan(num_byzantine=1)), "quorum": 1},
            r"cohort\.quorum >= 7 with the aggregation bulyan",
        ),
        (
            {"strategy": FedAvg(rule=Chatty(), aggregation=Median())},
            "the aggregation median, .* got chatty, which also sends control, loss",
        ),
        (
            {"strategy": Scaffold(clients=3), "weighting": "examples"},
            "weighting = uniform with the strategy Scaffold, got 'examples'",
        ),
    ],
)
def test_incompatible_parts_are_refused_by_both_names(recipe, message):
    """An aggregation with a weighting, a quorum, or a client rule."""
    with pytest.raises(ValueError, match=message):
        check(Recipe(**{"weighting": "uniform", **recipe}))


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(strategy=FedAvg(rule=Chatty())),
        Recipe(strategy=FedAvg(aggregation=Median()), weighting="uniform"),
        Recipe(strategy=FedAvg(aggregation=Krum(num_byzantine=2)), weighting="uniform", quorum=7),
        Recipe(strategy=FedAvg(aggregation=GeometricMedian())),
        Recipe(strategy=FedAvg(aggregation=NormBounding()), weighting="client"),
    ],
    ids=lambda recipe: recipe.strategy.aggregation.name,
)
def test_compatible_parts_are_accepted(recipe):
    check(recipe)
