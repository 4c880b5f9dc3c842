"""The same rounds as flwr's own server optimizers, if flwr is installed.

Six rounds of clients that step towards their own targets from the given model, so that any
difference would grow. The tests compensate these deliberate differences:

- FedAdam, FedAdagrad, FedYogi: v starts at τ² as in Reddi et al. 2021; in flwr it starts at 0.
- FedAdam: no bias correction, as in their algorithm; flwr scales η by
  √(1 - β2^(t+1)) / (1 - β1^(t+1)) in round t = 1, 2, … (one more than Adam's own exponent).
- q-FedAvg: each client has its own loss, as in Li et al. 2020; flwr uses the server's loss for all,
  which the tests give to ours. Both weight clients equally.
- Sums: ours are of fixed-point integers in any order, flwr's of floats in the order of arrival.
"""

import math

import numpy as np
import pytest

from fedloom.strategies import (
    DELTA,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
    Full,
    LocalWork,
    Partial,
    State,
    TensorSpec,
    exponent,
    weight_units,
)
from fedloom.strategies.algorithms.qfedavg import QFedAvg
from fedloom.strategies.client_rules import TrainedTensor
from fedloom.strategies.exact.partial import SCALAR

theirs = pytest.importorskip("flwr.server.strategy")
common = pytest.importorskip("flwr.common")

SHAPES = {"w": (6, 5), "b": (7,)}
EXAMPLES = (10, 40, 25)
ROUNDS = 6
MODEL = {
    name: np.random.default_rng(5).normal(size=shape).astype(np.float64)
    for name, shape in SHAPES.items()
}


def trained(model, number):
    """Each client's model after a round, from the given model."""
    generator = np.random.default_rng([3, number])
    for client in range(len(EXAMPLES)):
        targets = np.random.default_rng([4, client])
        yield {
            name: value
            + 0.3 * (targets.normal(size=value.shape) - value)
            + 0.01 * generator.normal(size=value.shape)
            for name, value in model.items()
        }


def our_round(strategy, state, model, number, scalars=None):
    """A round by exact sums."""
    specs = {(DELTA, name): TensorSpec(shape=v.shape, dtype=v.dtype) for name, v in model.items()}
    for name in scalars[0] if scalars else ():
        specs[SCALAR, name] = TensorSpec(shape=(), dtype=np.dtype(np.float64))
    partial = Partial(specs, exponent(64.0, 256.0))
    for client, new in enumerate(trained(model, number)):
        units = weight_units(1.0 if scalars else EXAMPLES[client])
        for name, value in new.items():
            delta = value - model[name]
            if scalars:
                delta, _ = sent(strategy, delta, model, new)
            partial.add_array((DELTA, name), Full(), units, delta)
        for name, value in scalars[client].items() if scalars else ():
            partial.add_array((SCALAR, name), Full(), units, np.asarray(value))
    return strategy.finish(state, model, partial)


def their_round(strategy, model, number):
    """The same by flwr: a list of arrays in, a list of arrays out."""
    results = [
        (
            None,  # the client's proxy, which is not used
            common.FitRes(
                status=common.Status(common.Code.OK, ""),
                parameters=common.ndarrays_to_parameters(list(new.values())),
                num_examples=EXAMPLES[client],
                metrics={},
            ),
        )
        for client, new in enumerate(trained(model, number))
    ]
    parameters, _ = strategy.aggregate_fit(number, results, [])
    return dict(zip(model, common.parameters_to_ndarrays(parameters), strict=True))


def initial():
    return common.ndarrays_to_parameters(list(MODEL.values()))


def zero_variance(strategy):
    """Flwr's initial v."""
    state = strategy.init(MODEL)
    zeros = {name: np.zeros_like(value) for name, value in MODEL.items()}
    return State(step=state.step, slots={"momentum": zeros, "variance": dict(zeros)})


PAIRS = {
    "fedavg": (FedAvg(), theirs.FedAvg),
    "fedavgm": (
        FedAvgM(server_learning_rate=0.7, momentum=0.8),
        lambda: theirs.FedAvgM(
            initial_parameters=initial(), server_learning_rate=0.7, server_momentum=0.8
        ),
    ),
    "fedadagrad": (
        FedAdagrad(server_learning_rate=0.2, tau=1e-3),
        lambda: theirs.FedAdagrad(initial_parameters=initial(), eta=0.2, tau=1e-3),
    ),
    "fedyogi": (
        FedYogi(server_learning_rate=0.2, tau=1e-3),
        lambda: theirs.FedYogi(initial_parameters=initial(), eta=0.2, tau=1e-3),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_six_rounds_equal_flwrs(name):
    """Each side continues from its own model."""
    ours, make = PAIRS[name]
    flwr = make()
    state = zero_variance(ours) if hasattr(ours, "tau") else ours.init(MODEL)
    here = there = MODEL
    for number in range(1, ROUNDS + 1):
        here, state = our_round(ours, state, here, number)
        there = their_round(flwr, there, number)
        for tensor, value in here.items():
            np.testing.assert_allclose(value, there[tensor], rtol=1e-9, atol=1e-11)


def test_fedadam_equals_flwrs_except_for_the_bias_correction():
    """With flwr's factor on the rate, round by round."""
    flwr = theirs.FedAdam(initial_parameters=initial(), eta=0.1, tau=1e-3)
    here = there = MODEL
    state = zero_variance(FedAdam())
    for number in range(1, ROUNDS + 1):
        factor = math.sqrt(1 - 0.99 ** (number + 1)) / (1 - 0.9 ** (number + 1))
        ours = FedAdam(server_learning_rate=0.1 * factor, tau=1e-3)
        here, state = our_round(ours, state, here, number)
        there = their_round(flwr, there, number)
        for tensor, value in here.items():
            np.testing.assert_allclose(value, there[tensor], rtol=1e-9, atol=1e-11)


def test_starting_v_at_tau_squared_matters_little():
    """The distance of the models after six rounds is bounded."""
    flwr = theirs.FedYogi(initial_parameters=initial(), eta=0.2, tau=1e-3)
    ours = FedYogi(server_learning_rate=0.2, tau=1e-3)
    here = there = MODEL
    state = ours.init(MODEL)
    for number in range(1, ROUNDS + 1):
        here, state = our_round(ours, state, here, number)
        there = their_round(flwr, there, number)
    apart = max(np.abs(here[name] - there[name]).max() for name in MODEL)
    moved = max(np.abs(there[name] - MODEL[name]).max() for name in MODEL)
    assert 0 < apart < 0.05 * moved


def sent(strategy, delta, model, new):
    """What q-FedAvg's device sends, with flwr's loss and rate."""
    norm = math.sqrt(sum(float(np.square(new[n] - model[n]).sum()) for n in model))
    work = LocalWork(steps=1, learning_rate=0.1, num_examples=1, initial_loss=1.5, norm=norm)
    rule = strategy.rule
    at = TrainedTensor(delta=delta, received={}, memory={}, full_gradient=None, work=work)
    return rule.after(at).groups[DELTA], rule.numbers(work)


@pytest.mark.parametrize("q", [0.0, 0.2, 2.0])
def test_q_fedavg_equals_flwrs_for_equal_losses(q):
    """At a rate of 0.1; q = 0 is the plain mean."""
    ours = QFedAvg(q=q)
    flwr = theirs.QFedAvg(q_param=q, qffl_learning_rate=0.1, evaluate_fn=lambda *_: (1.5, {}))
    here = there = MODEL
    state = ours.init(MODEL)
    for number in range(1, ROUNDS + 1):
        scalars = [sent(ours, np.zeros(1), here, new)[1] for new in trained(here, number)]
        here, state = our_round(ours, state, here, number, scalars)
        flwr.pre_weights = list(there.values())
        there = their_round(flwr, there, number)
        for tensor, value in here.items():
            np.testing.assert_allclose(value, there[tensor], rtol=1e-9, atol=1e-11)
