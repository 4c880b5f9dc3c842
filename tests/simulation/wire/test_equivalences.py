"""Cases in which federated averaging equals other methods, and a deployment equals a simulation."""

import os
import signal
from multiprocessing import active_children

import grpc
import numpy as np
import pytest
import torch
from torch.nn import functional

from fedloom.client.torch import parameters
from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.simulation.api import simulate
from fedloom.simulation.training.simulator import Simulation
from fedloom.simulation.wire import clients
from fedloom.simulation.wire.harness import over_the_wire
from support.experiments import experiment, population
from support.patience import PATIENCE_S

STEP = {"steps": 1, "learning_rate": 0.3}


def descend(described, rounds):
    """Gradient descent on all examples at once, in float64."""
    model = described.model().double()
    x = torch.from_numpy(described.population.examples.x).double()
    y = torch.from_numpy(described.population.examples.y)
    for _ in range(rounds):
        loss = functional.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for param, grad in zip(model.parameters(), grads, strict=True):
                param.sub_(0.3 * grad)
    return parameters(model)


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["fused", "resident", "batched"])
@pytest.mark.parametrize("rounds", [1, 10])
def test_fedsgd_is_gradient_descent(kernel, rounds):
    """One step of all clients on all examples is a step on the mean gradient, to 1e-6."""
    described = experiment(kernel=kernel, goal=6, rounds=rounds, train=STEP)
    result = simulate(described, show=False)
    for name, expected in descend(described, rounds).items():
        np.testing.assert_allclose(result.params[name], expected, rtol=0, atol=1e-6)


def test_one_local_step_is_data_parallel_sgd():
    """Batches of one size on every client average to one batch of all examples, to 1e-6."""
    data = population(sizes=(8,) * 6)
    train = {"steps": 1, "batch_size": 8, "learning_rate": 0.3}
    described = experiment(kernel="resident", data=data, goal=6, rounds=1, train=train)
    result = simulate(described, show=False)
    for name, expected in descend(described, 1).items():
        np.testing.assert_allclose(result.params[name], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kernel", ["fused", "resident", "batched"])
def test_kernels_agree(kernel):
    """With the resident kernel after three rounds, up to rounding."""
    train = {"epochs": 1, "batch_size": 4, "learning_rate": 0.05}
    expected = simulate(experiment(kernel="resident", train=train), show=False)
    got = simulate(experiment(kernel=kernel, train=train), show=False)
    for name, value in expected.params.items():
        np.testing.assert_allclose(got.params[name], value, rtol=0, atol=2e-6)


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize("kernel", ["fused", "resident"])
def test_over_the_wire_gives_the_same_bits(kernel):
    """A real server with client processes ends with the simulation's model."""
    settings = {"cohort": {"goal": 3, "quorum": 3}, "rounds": 2}
    described = experiment(kernel=kernel, data=population(held_out=2), **settings)
    here = simulate(described, show=False)
    there = over_the_wire(described, show=False)
    assert there.digest == here.digest
    assert [r.evaluation for r in there.records] == [r.evaluation for r in here.records]
    assert there.records[-1].kind == "evaluate"
    assert there.best_model == here.best_model is not None


@pytest.mark.e2e
@pytest.mark.long
def test_over_the_wire_a_hook_gets_the_same_models():
    """After each round, also one that trains nothing; True, which cannot end a run, is refused."""
    described = experiment(data=population(held_out=2), cohort={"goal": 3, "quorum": 3}, rounds=2)
    seen = []
    for runs in (simulate, over_the_wire):
        rounds = []
        runs(
            described,
            on_round=lambda record, params, to=rounds: to.append(
                (
                    record.round,
                    record.kind,
                    {name: array.tolist() for name, array in params.items()},
                )
            ),
            show=False,
        )
        seen.append(rounds)
    assert seen[0] == seen[1]
    assert {"train", "evaluate"} == {kind for _, kind, _ in seen[0]}
    with pytest.raises(UsageError, match="cannot end a run over the wire"):
        over_the_wire(described, on_round=lambda record, params: True, show=False)


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize(
    ("whom", "number", "raised", "said"),
    [
        ("client", signal.SIGKILL, UnavailableError, "fedloom client client-000 ended with -9"),
        ("parent", signal.SIGTERM, KeyboardInterrupt, None),
    ],
    ids=["client", "parent"],
)
def test_over_the_wire_ends_if_one_process_ends(whom, number, raised, said):
    """A server would continue without the client, to other bits; no process remains."""
    described = experiment(data=population(held_out=2), cohort={"goal": 3}, rounds=500)

    def end(record, _):
        if record.round > 1:  # a busy machine reports several rounds at once
            return
        (client,) = (c for c in active_children() if c.name.endswith("client-000"))
        os.kill(client.pid if whom == "client" else os.getpid(), number)

    with pytest.raises(raised, match=said):
        over_the_wire(described, on_round=end, show=False)
    assert not [child for child in active_children() if "fedloom client" in child.name]


@pytest.mark.longest
@pytest.mark.e2e
@pytest.mark.long
def test_over_the_wire_beside_an_open_channel_gives_the_same_bits():
    """Client processes do not inherit their parent's gRPC state."""
    described = experiment(
        data=population(held_out=2), cohort={"goal": 2, "quorum": 2}, rounds=1, evaluate=False
    )
    with grpc.insecure_channel("unix:/nowhere") as channel:
        with pytest.raises(grpc.RpcError):
            channel.unary_unary("/any/Call")(b"", timeout=PATIENCE_S)
        assert clients._start_method() == "spawn"
        there = over_the_wire(described, show=False)
    assert there.digest == simulate(described, show=False).digest


CLIPPED = {"epochs": 1, "batch_size": 4, "learning_rate": 0.3, "clip_norm": 0.05}


def test_a_clipped_step_has_the_length_of_its_limit():
    """One step moves by learning rate × clip_norm; below the limit it is not clipped."""
    norms = {}
    for limit in (0.05, 1e3, None):
        train = {"steps": 1, "learning_rate": 0.3} | ({"clip_norm": limit} if limit else {})
        described = experiment(goal=1, rounds=1, train=train, data=population(sizes=(9,)))
        before = parameters(described.model())
        after = simulate(described, show=False).params
        norms[limit] = sum(np.sum(np.square(after[n] - before[n])) for n in after) ** 0.5
    assert norms[0.05] == pytest.approx(0.3 * 0.05, rel=1e-4)
    assert norms[1e3] == pytest.approx(norms[None], rel=1e-5)
    assert norms[None] > 4 * norms[0.05]


def test_kernels_that_clip_agree():
    """Batched clips each client's gradient by its own norm."""
    results = [
        simulate(experiment(kernel=kernel, train=CLIPPED), show=False)
        for kernel in ("resident", "batched")
    ]
    for name, value in results[0].params.items():
        np.testing.assert_allclose(results[1].params[name], value, rtol=0, atol=2e-6)


def test_a_kernel_that_cannot_clip_is_refused():
    """Fused stores no gradient; `auto` selects another kernel."""
    engine = simulate(experiment(train=CLIPPED), show=False).engine
    assert "fused does not support train.clip_norm" in engine
    with pytest.raises(
        UsageError, match=r"'fused' cannot train .*: fused does not support train\.clip_norm"
    ):
        simulate(experiment(kernel="fused", train=CLIPPED), show=False)


def test_two_workers_give_the_sum_of_one():
    """The sums are exact."""
    digests = set()
    for workers in (1, 2):
        simulation = Simulation(experiment(workers=workers))
        list(simulation.rounds())
        digests.add(simulation.digest())
        simulation.close()
    assert len(digests) == 1
