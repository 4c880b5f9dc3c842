"""Invariants of every registered strategy.

Three rounds of real updates (rules, memory and scalars included) are folded as on a server. The
result must be the same for any order, shards and restarts, and correct without updates and with one
client.
"""

import dataclasses
import pickle

import numpy as np
import pytest

from fedloom.client.training.client_rule import RuleContext, apply_rule
from fedloom.protocol.updates.message import TensorPart
from fedloom.strategies import (
    AGGREGATIONS,
    DELTA,
    STRATEGIES,
    Full,
    Mask,
    Partial,
    RoundSettings,
    Slice,
    TensorSpec,
    exponent,
    registry,
    weight_units,
)
from fedloom.strategies.exact.partial import SCALAR
from fedloom.strategies.robust import ArrayUpdate, ArrayUpdates
from fedloom.strategies.state import state_from_arrays, state_to_arrays

SETTINGS = {
    "feddyn": {"alpha": 0.5, "clients": 9},
    "qfedavg": {"q": 1.0},
    "scaffold": {"clients": 9},
    "ifca": {"clusters": 2},
    "bulyan": {"num_byzantine": 1},
    "krum": {"num_byzantine": 1},
    "multi_krum": {"num_byzantine": 1},
    "fltrust": {"trusted": "c4"},
}
"""Of those that have no defaults."""
ROUNDS, CLIENTS = 3, 9
SPECS = {
    "w": TensorSpec(shape=(3, 4), dtype=np.dtype(np.float32)),
    "b": TensorSpec(shape=(4,), dtype=np.dtype(np.float32)),
    "s": TensorSpec(shape=(), dtype=np.dtype(np.float64)),
}
TRAINING = RoundSettings(epochs=None, steps=3, batch_size=0, learning_rate=0.1)


def settings_of(name, known):
    """The given settings that a case has."""
    fields = {field.name for field in dataclasses.fields(known[name])}
    return {k: v for k, v in SETTINGS.get(name, {}).items() if k in fields}


def strategies():
    """Every strategy with the mean, and FedAvg and FedAdam with every aggregation."""
    for name in STRATEGIES:
        yield name, registry.strategy(name, settings_of(name, STRATEGIES))
    for name in AGGREGATIONS:
        if name != "mean":
            reduce = registry.aggregation(name, settings_of(name, AGGREGATIONS))
            for base in ("fedavg", "fedadam"):
                yield f"{base}-{name}", registry.strategy(base, aggregation=reduce)


CASES = dict(strategies())
each_case = pytest.mark.parametrize("algorithm", CASES.values(), ids=CASES.keys())


def start():
    """The first model."""
    rng = np.random.default_rng(0)
    return {n: rng.standard_normal(s.shape).astype(s.dtype) for n, s in SPECS.items()}


class Fleet:
    """Nine clients with memories; some send everything, some a part."""

    def __init__(self, algorithm, *, silent=()):
        self.algorithm, self.silent, self.memory = algorithm, set(silent), {}

    def updates(self, state, model, number):
        """(client, weight, settled) of a round, by client."""
        return {
            f"c{i}": self._update(state, model, number, i)
            for i in range(CLIENTS)
            if f"c{i}" not in self.silent
        }

    def _update(self, state, model, number, i):
        rng = np.random.default_rng([number, i])
        parts = [
            TensorPart(DELTA, name, *self._covered(name, i, old, rng))
            for name, old in model.items()
            if not (name == "b" and i % 3 == 1)
        ]
        local = RuleContext(
            received=self.algorithm.sends(state),
            memory=self.memory.get((number - 1, i), {}),
            initial_loss=1.0 + i,
            cluster=i % 2 if self.algorithm.rule.picks else None,
            full_gradient={n: rng.standard_normal(v.shape) for n, v in model.items()},
        )
        settled = apply_rule(self.algorithm.rule, parts, local, TRAINING, 10)
        self.memory[number, i] = settled.memory
        weight = 1.0 if self.algorithm.weightings == ("uniform",) else 1.0 + i
        return weight, settled

    def _covered(self, name, i, old, rng):
        new = old + 0.1 * rng.standard_normal(old.shape).astype(old.dtype)
        if self.algorithm.rule.is_elementary and name == "w":
            if i % 3 == 0:
                return Slice(((0, 2), (1, 4))), new[0:2, 1:4], old[0:2, 1:4]
            if i % 3 == 1:
                bits = np.arange(12).reshape(3, 4) % 2 == 0
                return Mask(bits.reshape(-1)), new[bits], old[bits]
        return Full(), new, old


def differences(settled):
    """The parts of an update, as sent."""
    for part in settled.parts:
        values = part.values if part.less is None else part.values - part.less
        yield (part.group, part.tensor), part.coverage, np.asarray(values)


def folded(algorithm, updates, shards=1):
    """The argument of `finish`: a sum of sums, or the rule's means."""
    specs = algorithm.specs(SPECS)
    if algorithm.needs == "each":
        arrays = {
            client: ArrayUpdate({key: (cov, v) for key, cov, v in differences(settled)}, weight)
            for client, (weight, settled) in updates.items()
        }
        return ArrayUpdates(specs, arrays)
    partials = [Partial(specs, exponent(64.0, 1024.0)) for _ in range(shards)]
    for number, (weight, settled) in enumerate(updates.values()):
        partial, units = partials[number % shards], weight_units(weight)
        for key, coverage, values in differences(settled):
            partial.add_array(key, coverage, units, values)
        for name, value in settled.scalars.items():
            partial.add_array((SCALAR, name), Full(), units, np.array(value))
        partial.count += 1
    total = partials[0]
    for other in partials[1:]:
        total = other + total
    return total


def finished(algorithm, state, model, sums):
    """The next model and state."""
    if algorithm.needs == "each":
        sums = algorithm.aggregation.reduce(sums, state.slots.get("last_means", {}))
    return algorithm.finish(state, model, sums)


def run(algorithm, *, order=list, shards=1, restart=lambda model, state: (model, state)):
    """Model and state after three rounds."""
    fleet, model = Fleet(algorithm), start()
    state = algorithm.init(model)
    for number in range(1, ROUNDS + 1):
        made = fleet.updates(state, model, number)
        updates = {client: made[client] for client in order(made)}
        model, state = finished(algorithm, state, model, folded(algorithm, updates, shards))
        model, state = restart(model, state)
    return model, state


def bits(model, state):
    """Comparable to the last bit."""
    arrays = {**model, **{f"state/{n}": a for n, a in state_to_arrays(state).items()}}
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}


def test_every_registered_name_has_a_case():
    assert STRATEGIES.keys() <= CASES.keys()
    assert all(f"fedavg-{name}" in CASES for name in AGGREGATIONS if name != "mean")


@each_case
def test_a_strategy_is_a_frozen_value(algorithm):
    """Equal settings make equal strategies, also in another process."""
    assert pickle.loads(pickle.dumps(algorithm)) == algorithm
    assert dataclasses.replace(algorithm) == algorithm
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.server_learning_rate = 2.0


@pytest.mark.long
@each_case
def test_order_of_arrival_changes_no_bit(algorithm):
    expected = bits(*run(algorithm))
    assert bits(*run(algorithm, order=lambda made: list(made)[::-1])) == expected
    assert bits(*run(algorithm, order=lambda made: sorted(made, key=hash))) == expected


@each_case
def test_shards_change_no_bit(algorithm):
    """Three processes that each fold some of the updates give the sum of one."""
    if algorithm.needs == "each":
        pytest.skip("looks at every update in one place")
    assert bits(*run(algorithm, shards=3)) == bits(*run(algorithm))


@pytest.mark.long
@each_case
def test_a_restart_after_each_round_changes_no_bit(algorithm):
    """The arrays contain the whole state."""

    def written_down(model, state):
        arrays = {
            name: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)
            for name, array in state_to_arrays(state).items()
        }
        return model, state_from_arrays(arrays)

    assert bits(*run(algorithm, restart=written_down)) == bits(*run(algorithm))


@pytest.mark.long
@each_case
def test_finishing_twice_gives_the_same(algorithm):
    """As after a crash; the inputs do not change."""
    model, state = run(algorithm)
    before = bits(model, state)
    updates = Fleet(algorithm).updates(state, model, 1)
    once = finished(algorithm, state, model, folded(algorithm, updates))
    again = finished(algorithm, state, model, folded(algorithm, updates))
    assert bits(*once) == bits(*again)
    assert bits(model, state) == before


@each_case
def test_uncovered_tensors_are_the_same_arrays(algorithm):
    """Their slots do not begin or change."""
    model, fleet = start(), Fleet(algorithm)
    state = algorithm.init(model)
    updates = {
        client: (weight, dataclasses.replace(
            settled, parts=[part for part in settled.parts if part.tensor != "b"]
        ))
        for client, (weight, settled) in fleet.updates(state, model, 1).items()
    }  # fmt: skip
    new, after = finished(algorithm, state, model, folded(algorithm, updates))
    assert new["b"] is model["b"]
    assert all(
        tensors.get("b") is state.slots.get(slot, {}).get("b")
        for slot, tensors in after.slots.items()
    )
    assert new["w"].tobytes() != model["w"].tobytes()


@each_case
def test_uncovered_coordinates_keep_their_bits(algorithm):
    """With any memory, where only a slice was sent."""
    if not algorithm.rule.is_elementary:
        pytest.skip("its rule needs whole tensors")
    model, state = run(algorithm)
    box = Slice(((0, 1), (0, 4)))
    parts = {
        f"c{i}": (1.0, apply_rule(algorithm.rule, [
            TensorPart(DELTA, "w", box, model["w"][:1] + np.float32(0.1 + i / 100), model["w"][:1])
        ], RuleContext(), TRAINING, 10))
        for i in range(CLIENTS)
    }  # fmt: skip
    new, _ = finished(algorithm, state, model, folded(algorithm, parts))
    assert new["w"][1:].tobytes() == model["w"][1:].tobytes()
    assert (new["w"][:1] != model["w"][:1]).all()
    assert new["b"] is model["b"]


@each_case
def test_a_round_without_updates_changes_nothing(algorithm):
    """Except the count of rounds."""
    model, state = run(algorithm)
    new, after = finished(algorithm, state, model, folded(algorithm, {}))
    assert all(new[name] is model[name] for name in model)
    assert after.step == state.step + 1
    kept = state_to_arrays(after).items()
    assert {n: a.tobytes() for n, a in kept if n != "step"} == {
        n: a.tobytes() for n, a in state_to_arrays(state).items() if n != "step"
    }


@each_case
def test_a_lone_client_moves_the_model(algorithm):
    """Unless the rule needs more."""
    if algorithm.aggregation.min_updates > 1:
        pytest.skip("needs more, and says so: see test_rules")
    fleet = Fleet(algorithm, silent=[f"c{i}" for i in range(CLIENTS) if i != 4])
    model = start()
    state = algorithm.init(model)
    updates = fleet.updates(state, model, 1)
    new, _ = finished(algorithm, state, model, folded(algorithm, updates))
    assert all(np.isfinite(value).all() for value in new.values())
    assert any(new[name].tobytes() != model[name].tobytes() for name in model)


@each_case
def test_dtypes_and_shapes_do_not_change(algorithm):
    """For a model of float32 and float64."""
    model, state = run(algorithm)
    assert {n: (a.shape, a.dtype) for n, a in model.items()} == {
        n: (s.shape, s.dtype) for n, s in SPECS.items()
    }
    assert state.step == ROUNDS
    for tensors in state.slots.values():
        assert all(array.shape == SPECS[name].shape for name, array in tensors.items())
