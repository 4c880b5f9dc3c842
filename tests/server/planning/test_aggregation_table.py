"""The [aggregation] table of a run: names, settings, defaults, and refusals."""

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.planning.spec import parse
from fedloom.strategies import AGGREGATIONS, Mean
from fedloom.strategies.robust import Krum, Median

RUN = {"cohort": {"goal": 20, "quorum": 11}, "train": {"epochs": 1, "learning_rate": 0.1}}
NEEDED = {
    "krum": {"num_byzantine": 2},
    "multi_krum": {"num_byzantine": 2},
    "bulyan": {"num_byzantine": 2},
    "fltrust": {"trusted": "hospital-1"},
}


def test_the_default_is_the_weighted_mean():
    spec = parse(RUN)
    assert spec.build_strategy().aggregation == Mean()
    assert spec.weighting == "examples"


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_every_aggregation_is_built_from_its_table(name):
    """The stored specification builds the same again."""
    spec = parse({**RUN, "aggregation": {"name": name, **NEEDED.get(name, {})}})
    again = parse(spec.as_dict())
    assert again == spec
    built = again.build_strategy().aggregation
    assert built.name == name
    assert again.build_strategy().needs == ("sum" if name == "mean" else "each")
    assert again.weighting == ("examples" if built.weighted else "uniform")


def test_settings_reach_the_rule():
    table = {"name": "krum", "num_byzantine": 3}
    assert parse({**RUN, "aggregation": table}).build_strategy().aggregation == Krum(
        num_byzantine=3
    )
    assert parse({**RUN, "aggregation": {"name": "median"}}).build_strategy().aggregation == (
        Median()
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"aggregation": {"name": "medain"}}, "got 'medain'. Did you mean 'median'"),
        ({"aggregation": {"fraction": 0.1}}, r"Missing setting aggregation\.name"),
        ({"aggregation": "median"}, r"Expected a table \[aggregation\]"),
        ({"aggregation": {"name": 3}}, r"Expected aggregation\.name"),
        ({"aggregation": {"name": "krum"}}, "Missing setting aggregation.num_byzantine of krum"),
        ({"aggregation": {"name": "median", "f": 1}}, "Unknown setting 'aggregation.f' of median"),
        ({"aggregation": {"name": "krum", "num_byzantine": 5}}, "quorum >= 13 .* krum"),
        ({"aggregation": {"name": "median"}, "weighting": "examples"}, "uniform .* median"),
        ({"aggregation": {"name": "fltrust", "trusted": 1}}, "trusted of fltrust as text"),
    ],
)
def test_invalid_aggregations_are_refused(settings, message):
    """Before anything starts."""
    with pytest.raises(UsageError, match=message):
        parse({**RUN, **settings})
