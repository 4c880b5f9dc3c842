"""Parts that do not support buffered rounds are refused when a run is composed."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from fedloom.strategies import ClientRule, FedAvg
from fedloom.strategies.compatibility import Recipe, check
from fedloom.strategies.registry import aggregation, selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembering(ClientRule):
    """A rule that stores a memory on the device."""

    name: ClassVar[str] = "remembering"
    remembers: ClassVar[tuple[str, ...]] = ("control",)


def test_a_rule_with_memory_needs_synchronous_rounds():
    """The message names both parts."""
    strategy = FedAvg(rule=Remembering())
    check(Recipe(strategy=strategy))
    with pytest.raises(ValueError, match=r"rule remembering, got buffered .* control"):
        check(Recipe(strategy=strategy, buffered=True))


def test_an_aggregation_that_compares_updates_needs_synchronous_rounds():
    strategy = FedAvg(aggregation=aggregation("median"))
    with pytest.raises(ValueError, match="mean with buffered rounds, got median"):
        check(Recipe(strategy=strategy, weighting="uniform", buffered=True))


def test_a_selection_with_history_needs_synchronous_rounds():
    check(Recipe(strategy=FedAvg(), buffered=True, selection=selection("uniform")))
    with pytest.raises(ValueError, match="uniform with buffered rounds, got oort"):
        check(Recipe(strategy=FedAvg(), buffered=True, selection=selection("oort")))
