"""The parts of a run's settings: built once, and left out of copies."""

import copy
import pickle
from dataclasses import fields, replace

import pytest

from fedloom.server.planning.spec import RunSpec, parse

PARTS = (
    "build_compression", "build_personal", "build_adapters", "build_masking", "build_privacy",
    "metrics_settings", "local_training", "round_config",
)  # fmt: skip


@pytest.fixture
def spec():
    return parse({"cohort": {"goal": 3}, "train": {"learning_rate": 0.5, "epochs": 2}})


def test_a_part_is_built_once(spec):
    for name in PARTS:
        assert getattr(spec, name)() is getattr(spec, name)()
    assert spec.client_rule is spec.client_rule
    assert spec.build_strategy() is not spec.build_strategy()  # a user's own may have state


def test_changed_settings_build_their_own_parts(spec):
    assert spec.round_config().goal == 3
    changed = replace(spec, cohort={"goal": 5})
    assert (changed.round_config().goal, spec.round_config().goal) == (5, 3)
    assert changed.capacity == spec.capacity + 4


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies_get_the_settings_alone(spec, copied):
    """A part may hold a user's class, which another process may not know."""
    spec.round_config()
    other = copied(spec)
    assert other == spec
    assert set(vars(other)) == {field.name for field in fields(RunSpec)}
    assert other.round_config() == spec.round_config()
