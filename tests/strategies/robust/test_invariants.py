"""Invariants of every robust rule: order, blocks, scale, coverage, empty and one-client rounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.strategies import FedAdam, FedAvg, State
from fedloom.strategies import reduced as means_of
from fedloom.strategies.robust import ArrayUpdate, ArrayUpdates, CenteredClipping, Median
from support.robust import IDS, LAST, RULES, SPECS, ragged, reduced, vector


def bits(found):
    """Comparable to the last bit."""
    return {name: (mean.tobytes(), there.tobytes()) for name, (mean, there) in found.items()}


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES, ids=IDS)
@given(order=st.permutations(range(14)), block_values=st.sampled_from([1, 2, 7, 100]))
def test_order_and_blocks_change_no_bit(rule, order, block_values):
    """Order of arrival and sizes of blocks."""
    updates = ragged()
    shuffled = {f"c{n}": updates[f"c{n}"] for n in order}
    expected = reduced(rule, ArrayUpdates(SPECS, updates), LAST)
    found = reduced(rule, ArrayUpdates(SPECS, shuffled, block_values=block_values), LAST)
    assert bits(found) == bits(expected)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_means_are_the_same_in_any_pieces(rule):
    """A server optimizer may ask for any coordinates, and twice."""
    updates = ArrayUpdates(SPECS, ragged(), block_values=4)
    means = rule.reduce(updates, LAST)
    for key, spec in SPECS.items():
        whole, has = means.mean_block(key, 0, spec.size)
        for start in range(spec.size):
            mean, there = means.mean_block(key, start, start + 1)
            assert mean.tobytes() == whole[start : start + 1].tobytes()
            assert np.all(there) == np.broadcast_to(has, spec.size)[start]


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_uncovered_tensors_do_not_change(rule):
    """Such a tensor has no mean, and an empty round has none at all."""
    without = {
        name: ArrayUpdate({k: v for k, v in update.parts.items() if k[1] != "b"})
        for name, update in ragged().items()
    }
    means = rule.reduce(ArrayUpdates(SPECS, without), {})
    assert not means.covered(("delta", "b"))
    assert means.mean_block(("delta", "b"), 0, 7)[1] is False
    empty = rule.reduce(ArrayUpdates(SPECS, {}), {})
    assert empty.count == 0
    model = {"a": np.ones((3, 5), np.float32)}
    new, _ = FedAvg(aggregation=rule).finish(State(), model, Only("a", empty))
    assert new["a"] is model["a"]


class Only:
    """Means of some tensors, for a model that has only those."""

    def __init__(self, tensor, means):
        self._means, self.specs = means, {("delta", tensor): SPECS["delta", tensor]}

    def __getattr__(self, name):
        return getattr(self._means, name)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_one_client_is_its_own_mean(rule):
    """For rules that accept a single update."""
    if rule.min_updates > 1:
        pytest.skip("needs more")
    row = [0.3, -0.1, 0.02]
    found = vector(rule, [row]) if rule.name != "fltrust" else vector(rule, [[0, 0, 0]] * 2 + [row])
    np.testing.assert_allclose(found, row, rtol=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_equal_updates_are_the_result(rule):
    row = [0.125, -0.0625, 0.03125]
    np.testing.assert_allclose(vector(rule, [row] * 9), row, rtol=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_two_of_nine_cannot_move_the_result_far(rule):
    """Honest updates are near 1, and so is the result, for any two others."""
    rng = np.random.default_rng(4)
    honest = 0.1 + 0.01 * rng.normal(size=(9, 50))
    plain = honest.mean(axis=0)
    for bad in (-30 * plain, 1e6 * rng.normal(size=50), plain + 5 * honest.std(axis=0)):
        rows = honest.copy()
        rows[0] = bad
        last = plain if rule.remembers else None
        found = vector(rule, rows, last=last)
        assert np.linalg.norm(found - plain) < 0.35 * np.linalg.norm(plain)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_a_rule_works_with_a_server_optimizer(rule):
    """FedAdam on the rule's means: finite, changed where covered, with slots."""
    strategy = FedAdam(aggregation=rule)
    model = {name: np.zeros(SPECS["delta", name].shape, np.float32) for name in "abc"}
    updates = ArrayUpdates(SPECS, ragged())
    state = State()
    for _ in range(2):
        means = rule.reduce(updates, state.slots.get("last_means", {}))
        model, state = strategy.finish(state, model, means)
    assert all(np.isfinite(value).all() for value in model.values())
    assert any(value.any() for value in model.values())
    assert state.step == 2
    assert ("last_means" in state.slots) is rule.remembers


def test_a_rule_is_rebuilt_from_its_settings():
    """As stored in a ledger."""
    for rule in RULES:
        assert type(rule)(**rule.settings()) == rule


def test_the_last_rounds_means_are_the_centre_of_the_next_clipping():
    """The strategy keeps them for rules that only read them."""
    model = {name: np.zeros(SPECS["delta", name].shape, np.float32) for name in "abc"}
    updates = ArrayUpdates(SPECS, ragged())
    strategy = FedAvg(aggregation=CenteredClipping())
    first = means_of(strategy, State(), updates)
    _, state = strategy.finish(State(), model, first)
    for name, kept in state.slots["last_means"].items():
        mean, there = first.mean_block(("delta", name), 0, kept.size)
        np.testing.assert_allclose(kept.reshape(-1), np.where(there, mean, 0), rtol=1e-6)
        assert kept.any()
    second = means_of(strategy, state, updates)
    a = ("delta", "a")
    assert not np.array_equal(first.mean_block(a, 0, 15)[0], second.mean_block(a, 0, 15)[0])
    _, plain = FedAvg(aggregation=Median()).finish(State(), model, Median().reduce(updates, {}))
    assert not plain.slots
