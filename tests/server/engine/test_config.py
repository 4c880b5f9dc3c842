"""Settings out of range are refused when they are set, not in round 40."""

from dataclasses import FrozenInstanceError
from math import inf, nan

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.engine import RoundConfig, RunConfig


@pytest.mark.parametrize(
    "changes",
    [
        {"goal": 0},
        {"over_selection": 0.99},
        {"over_selection": inf},
        {"over_selection": nan},
        {"quorum": 0},
        {"quorum": 11},
        {"deadline_s": 0.0},
        {"deadline_s": inf},
        {"deadline_s": nan},
        {"patience_s": -1.0},
        {"patience_s": inf},
        {"patience_s": nan},
    ],
)
def test_a_round_refuses_settings_out_of_range(changes):
    """The message names the setting and its value."""
    name, value = next(iter(changes.items()))
    with pytest.raises(UsageError, match=f"Expected {name}={value}"):
        RoundConfig(**({"goal": 10} | changes))


@pytest.mark.parametrize("changes", [{"rounds": 0}, {"rounds": 1, "max_abandoned": 0}])
def test_a_run_refuses_settings_out_of_range(changes):
    """The message names the setting and its value."""
    with pytest.raises(UsageError, match="Expected"):
        RunConfig(**changes)


def test_a_config_is_immutable():
    with pytest.raises(FrozenInstanceError):
        RoundConfig(goal=1).goal = 2


@pytest.mark.parametrize(
    ("goal", "factor", "size"),
    [(100, 1.1, 110), (10, 1.0, 10), (3, 1.3, 4), (1, 1.01, 2), (7, 2.0, 14)],
)
def test_the_cohort_is_the_goal_times_the_factor_rounded_up(goal, factor, size):
    """Without the extra client of floating-point error: 100 × 1.1 is 110.00000000000001."""
    assert RoundConfig(goal=goal, over_selection=factor).cohort_size == size
